// Recipes: the empty settings of a distillation are decided here.
#include "distill/runs/settings/recipe.h"

#include <nlohmann/json.hpp>

#include "distill/losses/loss_table.h"
#include "distill/runs/settings/recipe_defaults.h"

namespace brine::distill {

void choose_attention(nn::ModelConfig& student, const std::set<std::string>& set,
                      const AttentionDefaults& defaults) {
  if (set.count("preset")) return;
  data::Schema keys;
  student.method().describe(keys);
  if (!keys.find("preset")) return;  // the defaults are SEA's
  for (const auto& [key, value] : defaults) {
    if (set.count(key) || !keys.find(key)) continue;
    // Who chooses a decoder chooses a block with the method's defaults around it.
    if (key == std::string("preset") && set.count("decoder")) continue;
    keys.set_text(key, {value});
  }
}

void give_mask(nn::ModelConfig& student, std::set<std::string>& set, const nn::MaskSettings& mask) {
  data::Schema keys;
  student.describe_attention(keys);
  keys.collect("attention", set);
  auto give = [&](const char* key, const auto& value) {
    if (value) keys.set(join("attention.", key), *value);
  };
  give("preset", mask.preset);
  give("k", mask.k);
  give("block", mask.block);
  give("columns", mask.columns);
  if (mask.mode) keys.set("attention.mode", name_of(*mask.mode));
}

LossWeights::LossWeights() {
  for (const Loss& loss : distill::losses()) weights_[loss.name] = std::nullopt;
}

std::optional<double>& LossWeights::operator[](const std::string& loss) {
  const auto found = weights_.find(loss);
  check(found != weights_.end(), "losses: unknown loss '", loss, "'");
  return found->second;
}

void LossWeights::describe(data::Schema& s) {
  describe(s, [](const std::string&) { return "by recipe"; });
}

void LossWeights::describe(data::Schema& s,
                           const std::function<std::string(const std::string&)>& unset) {
  for (const Loss& loss : distill::losses()) {
    s.field(loss.name, weights_[loss.name], loss.help, {.min = 0, .unset = unset(loss.name)});
  }
  s.field("kl", kl, "Weight of the KL part inside approx and prob", {.min = 0});
  s.field("mse", mse, "Weight of the squared part inside approx and prob", {.min = 0});
}

LossConfig LossWeights::resolved() const {
  LossConfig config;
  config.kl = kl;
  config.mse = mse;
  for (const Loss& loss : distill::losses()) {
    const std::optional<double>& weight = weights_.at(loss.name);
    check(weight.has_value(), "losses: ", loss.name, " is not decided; resolve the recipe first");
    config[loss.name] = *weight;
  }
  return config;
}

void Recipe::describe(data::Schema& s) {
  s.choice("recipe", name, kRecipeNames,
           "Defaults of keys: for runs of minutes, or of SEA's paper (configs/paper)",
           {.unset = "short"});
  training.describe(s);
  s.section("losses", losses);
  student.describe_attention(s);
  s.collect("attention", attention_keys);
}

void Recipe::keep(const data::Json& stored) {
  data::Schema keys;
  keys.choice("recipe", name, kRecipeNames, "");
  keys.field("losses.kd", losses["kd"], "");
  keys.fill(stored);
}

nn::AttentionTraits attention_traits(nn::ModelConfig& student, bool causal) {
  nn::Init init{.random = {}, .device = Device::meta};
  nn::AttentionShape shape = student.shape().attention();
  shape.causal = causal;
  return student.method().make(init, shape)->traits();
}

std::vector<std::string> Recipe::resolve(const RunFacts& facts) {
  std::vector<std::string> notes;
  auto without = [](std::optional<double>& weight) {
    const bool open = !weight.has_value();
    if (open) weight = 0;
    return open;
  };
  if (facts.self_taught) {
    without(losses["prob"]);  // for a student without another teacher it is 0, and costs T x T
    for (const char* loss : {"context", "kd", "kd_task"}) without(losses[loss]);
  }
  if (facts.pooled && without(losses["prob"])) {
    notes.push_back("its attention is pooled into columns, so losses.prob is 0");
  }
  give_mask(student, attention_keys, mask);
  if (!name) name = RecipeName::short_run;
  const bool leaves_out = name == RecipeName::short_run && !facts.massive.empty();
  if (leaves_out && without(losses["kd"])) {
    notes.push_back("it has massive activations (" + facts.massive +
                    "), of which the loss kd would be almost all, so losses.kd is 0");
  }
  RecipeDefaults defaults = defaults_of(*name, facts);
  choose_attention(student, attention_keys, defaults.attention);
  if (!facts.self_taught && !attention_traits(student, facts.causal).estimates) {
    bool open = false;
    for (const char* loss : {"approx", "prob", "context"}) open = without(losses[loss]) || open;
    if (open)
      notes.push_back("attention '" + student.attention + "' is trained without attention losses");
  }
  if (!epochs && !training.steps) training.steps = defaults.task_steps;
  if (!epochs) epochs = defaults.epochs;
  training.fill(defaults.training);
  data::schema_of(losses).fill(data::schema_of(defaults.losses).to_json());
  if (facts.pooled && !attention_keys.count("columns")) {
    std::set<std::string> given;  // the recipe may still change it
    give_mask(student, given, {.columns = facts.pooled});
    notes.push_back(join("attention.columns is the dump's, ", facts.pooled));
  }
  return notes;
}

}  // namespace brine::distill
