// The settings of a distillation: their keys, their defaults, and which stages have them.
#include "distill/runs/distillation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "distill/losses/loss_table.h"

namespace brine::distill {
namespace {

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

nn::AttentionTraits traits_of(nn::ModelConfig& student, bool causal) {
  nn::Init init{.random = {}, .device = Device::meta};
  nn::AttentionShape shape = student.shape().attention();
  shape.causal = causal;
  return student.method().make(init, shape)->traits();
}

// Keys that were not set get the defaults, unless a preset was chosen.
void choose_attention(Distillation& what, bool causal) {
  if (what.attention_keys.count("preset")) return;
  data::Schema keys = data::schema_of(what.student.method());
  if (!keys.find("preset")) return;
  for (const auto& [key, value] : what.attention_defaults(causal)) {
    if (what.attention_keys.count(key) || !keys.find(key)) continue;
    // Who chooses a decoder chooses a block with the method's defaults around it.
    if (key == "preset" && what.attention_keys.count("decoder")) continue;
    keys.set_text(key, {value});
  }
}

// A task's k of a new student, unless it was given or texts are long: most texts of GLUE have fewer
// than 64 tokens.
int64_t choose_task_k(Distillation& what, int64_t text_tokens) {
  data::Schema keys = data::schema_of(what.student.method());
  if (text_tokens == 0 || !what.model.empty() || what.recipe == Recipe::paper ||
      what.attention_keys.count("k") || !keys.find("k"))
    return 0;
  const int64_t k = std::max<int64_t>((text_tokens + 3) / 4, 4);
  if (k >= keys.to_json()["k"].get<int64_t>()) return 0;
  keys.set_text("k", {std::to_string(k)});
  return k;
}

// Gives the weight 0 unless it has one; whether it had none.
bool leave_out(std::optional<double>& weight) {
  const bool open = !weight.has_value();
  if (open) weight = 0;
  return open;
}

}  // namespace

void Distillation::describe(data::Schema& s) {
  s.field("teacher", teacher,
          "Teacher whose weights the student starts from; self: its dense attention; none: blocks "
          "alone");
  s.field("model", model, "Student that learns on, a model or run; none: a new one");
  s.choice("stages", stages, kStageLists,
           "attention: each layer learns from the teacher, base frozen; joint: the whole student "
           "learns",
           {.alias = "stage", .unset = "attention for blocks, else joint"});
  text.describe(s);
  s.field("dump", dump, "Dump of the teacher; none: the teacher runs next to the student");
  s.field("trust_dump", trust_dump, "Do not compare a sample of the dump with the teacher first",
          {.transient = true});
  s.field("data", data, "Text files or token shards to train on, or the directory of the task");
  s.field("task", task.task, "Task of a fine-tuned encoder to distil (finetune --help: names)");
  s.fixed("top_logits", {"0"});  // of files of earlier versions
  task.describe(s);
  s.field("epochs", epochs,
          "Passes over a task's texts, which give the steps; recipe short: 300 steps",
          {.above = 0, .unset = "20.0"});
  s.field("valid", valid, "Text files or token shards to evaluate on");
  s.fixed("copies", {"1"});  // of files of earlier versions
  s.choice("recipe", recipe, kRecipes,
           "Defaults of stage joint alone: for runs of minutes, or of SEA's paper (configs/paper)",
           {.unset = "short"});
  training.describe(s);
  s.field("optimizer.feature_learning_rate", feature_rate,
          "Peak rate of the features of a learned prior in stage attention",
          {.min = 0, .unset = "0.02"});
  s.section("losses", losses);
  s.field("joint.steps", joint.training.steps, "Steps of stage joint after stage attention",
          {.min = 0, .alias = "joint_steps", .unset = "300; 24 for blocks"});
  s.field("joint.batch_size", joint.training.batch_size, "Windows of its micro-batch",
          {.min = 1, .unset = "2; 1 for blocks"});
  s.field("joint.warmup", joint.training.warmup_steps, "Steps of its linear warm-up",
          {.min = 0, .unset = "10"});
  s.field("joint.attention_rate", joint.training.attention_learning_rate,
          "Peak rate of the attention method's parameters in it", {.min = 0, .unset = "1e-3"});
  s.field("joint.base_rate", joint.training.learning_rate,
          "Peak rate of the base or its low-rank additions in it; 0 = frozen base",
          {.min = 0, .unset = "with lora_rank 1e-4 (blocks: 3e-4), else 0"});
  s.field("joint.lora_rank", lora_rank,
          "Rank of low-rank additions to linear maps in stage joint; 0 = none",
          {.min = 0, .unset = "0; 16 for blocks without a rate of the base"});
  s.field("joint.recompute", joint.training.recompute,
          "Keep only layer inputs in it, run layers again", {.unset = "false; true for blocks"});
  s.section("joint.losses", joint.losses);
  student.describe_attention(s);
  s.collect("attention", attention_keys);
}

bool Distillation::has(Stage stage) const {
  return follows() || (stages == Stages::attention) == (stage == Stage::attention);
}

void Distillation::keep(const data::Json& stored) {
  data::Schema keys;
  keys.choice("recipe", recipe, kRecipes, "");
  keys.field("losses.kd", losses["kd"], "");
  keys.fill(stored);
}

void Distillation::refuse_other_settings() {
  Distillation plain;
  const data::Schema ours = data::schema_of(*this), unset = data::schema_of(plain);
  auto refuse = [&](const std::string& owner, std::initializer_list<std::string> keys) {
    for (const data::Schema::Field& field : ours.fields()) {
      const bool named = std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
        return field.key == key || (key.back() == '.' && field.key.starts_with(key));
      });
      if (!named) continue;
      const std::string value = field.toml();
      const bool off = value.empty() || value == "0" || value == "0.0" || value == "false";
      check(off || value == unset.find(field.key)->initial, "distill: ", field.key,
            " is a setting of ", owner);
    }
  };
  if (!follows())
    refuse("stage joint after stage attention (--stages attention,joint)",
           {"joint.steps", "joint.batch_size", "joint.warmup", "joint.attention_rate",
            "joint.base_rate", "joint.recompute", "joint.losses."});
  if (!has(Stage::joint)) refuse("stage joint", {"joint.lora_rank"});
  if (has(Stage::attention)) {
    refuse("stage joint", {"recompute", "loss_from", "optimizer.learning_rate"});
    refuse("stage joint alone", {"recipe", "model"});
    for (const Loss& loss : distill::losses())
      if (loss.name != "approx" && loss.name != "context")
        refuse("stage joint", {"losses." + loss.name});
  } else {
    refuse("stage attention", {"optimizer.feature_learning_rate"});
  }
  if (text.lengths) parse_lengths(*text.lengths);  // throws if it is none
  if (on_task()) {
    if (dumped_texts)
      refuse("a run on a --task", {"data", "train_split", "valid_split", "fields", "labels"});
    refuse("a run on text", {"valid", "loss_from", "lengths", "retrieval_share"});
  } else {
    refuse("a run on a --task",
           {"train_split", "valid_split", "fields", "labels", "epochs", "warmup_ratio"});
  }
}

std::vector<Decision> Distillation::resolve(const TeacherFacts& facts) {
  std::vector<Decision> notes;
  if (self_taught()) {
    leave_out(losses["prob"]);  // for a student without another teacher it is 0, and costs T x T
    for (const char* loss : {"context", "kd", "kd_task"}) leave_out(losses[loss]);
  }
  if (dumped_texts && has(Stage::joint) && leave_out(losses["task"]))
    notes.push_back({"its texts have no labels, so losses.task is 0; --task reads them"});
  if (facts.pooled && leave_out(losses["prob"]))
    notes.push_back({"its attention is pooled into columns, so losses.prob is 0"});
  give_mask(student, attention_keys, mask);
  if (!stages) stages = defaults(facts).stages;
  Distillation by_default = defaults(facts);
  if (!recipe) recipe = by_default.recipe;
  if (recipe == Recipe::short_run && !facts.massive.empty() && leave_out(losses["kd"]))
    notes.push_back({"it has massive activations (" + facts.massive +
                     "), of which the loss kd would be almost all, so losses.kd is 0"});
  choose_attention(*this, facts.causal);
  if (const int64_t k = choose_task_k(*this, facts.text_tokens))
    notes.push_back(
        {join("attention.k is ", k, ", a quarter of the tokens of ",
              dumped_texts ? "its" : task.task + "'s", " longer texts (nine of ten have at most ",
              facts.text_tokens, "); --k gives another"),
         true});
  // What has no estimate learns from the output of the model, or of a layer in stage attention.
  const nn::AttentionTraits traits = traits_of(student, facts.causal);
  if (!traits.estimates && !self_taught()) {
    if (has(Stage::attention)) leave_out(losses["approx"]);
    bool open = false;
    for (const char* loss : {"approx", "prob", "context"}) {
      if (!has(Stage::joint)) break;
      LossWeights& weights = follows() ? joint.losses : losses;
      LossWeights& otherwise = follows() ? by_default.joint.losses : by_default.losses;
      if (leave_out(weights[loss])) open = open || *otherwise[loss] > 0;
    }
    if (open)
      notes.push_back(
          {"attention '" + student.attention + "' is trained without attention losses"});
  }
  data::schema_of(*this).fill(data::schema_of(by_default).to_json());
  check(!has(Stage::attention) || !traits.calibrates || *training.steps == 1,
        "distill: attention '", student.attention, "' is calibrated in one pass, not in ",
        *training.steps, " steps; those of stage joint are --joint-steps");
  // These have one value for both stages.
  joint.training.rest = training.rest;
  joint.training.sequence_length = training.sequence_length;
  joint.training.eval_every = training.eval_every;
  joint.training.schedule = training.schedule;
  if (facts.pooled && !attention_keys.count("columns")) {
    std::set<std::string> given;  // a default may still change it
    give_mask(student, given, {.columns = facts.pooled});
    notes.push_back({join("attention.columns is the dump's, ", facts.pooled)});
  }
  return notes;
}

}  // namespace brine::distill
