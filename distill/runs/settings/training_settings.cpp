// The settings of a training run before all of them are decided.
#include "distill/runs/settings/training_settings.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/config/schema_text.h"
#include "distill/losses/loss_table.h"

namespace brine::distill {
namespace {

template <class T>
const T& decided(const std::optional<T>& value, const char* name) {
  check(value.has_value(), "training: ", name, " is not decided");
  return *value;
}

template <class T>
std::string shown(const std::optional<T>& value, const char* otherwise = "by stage and method") {
  return value ? data::toml_value(*value) : std::string(otherwise);
}

}  // namespace

void TrainingSettings::describe(data::Schema& s, const TrainingSettings& defaults) {
  s.field("sequence_length", sequence_length,
          "Tokens of a window or of a task's longest text; 0 = the model's positions",
          {.min = 0, .unset = shown(defaults.sequence_length, "0")});
  const char* otherwise = defaults.batch_size ? "from epochs" : "by stage and method";
  s.field("steps", steps, "Optimizer steps", {.min = 1, .unset = shown(defaults.steps, otherwise)});
  s.field("batch_size", batch_size, "Windows, or texts of a task, of a micro-batch",
          {.min = 1, .unset = shown(defaults.batch_size)});
  s.field("eval_every", eval_every,
          "Steps between evaluations; 0 = only at the end; unset, of a task: an epoch",
          {.min = 0, .unset = "0"});
  s.field("recompute", recompute, "Keep only layer inputs and run layers again in backward",
          {.unset = "false"});
  rest.describe(s);
  s.field("optimizer.learning_rate", learning_rate,
          "Peak rate of all parameters except the attention's own",
          {.min = 0, .unset = shown(defaults.learning_rate)});
  s.field("optimizer.attention_learning_rate", attention_learning_rate,
          "Peak rate of the attention method's own parameters",
          {.min = 0, .unset = shown(defaults.attention_learning_rate)});
  s.choice("schedule.schedule", schedule, nn::kDecayNames,
           "Shape of the learning rate after the warm-up",
           {.unset = defaults.schedule
                         ? join('"', data::name_of(*defaults.schedule, nn::kDecayNames), '"')
                         : "by stage and method"});
  s.field("schedule.warmup_steps", warmup_steps, "Steps of linear warm-up from 0",
          {.min = 0, .unset = shown(defaults.warmup_steps, "0")});
}

void TrainingSettings::fill(TrainingSettings defaults) {
  data::schema_of(*this).fill(data::schema_of(defaults).to_json());
}

void TrainingSettings::plan_epochs(double epochs, double warmup_ratio, int64_t texts) {
  const int64_t per_step = decided(batch_size, "batch_size") * rest.accumulate;
  if (!steps) {
    const double count = std::ceil(epochs * double(texts) / double(per_step));
    check(count < double(std::numeric_limits<int32_t>::max()), "training: ", epochs, " epochs are ",
          count, " steps");
    steps = std::max<int64_t>(int64_t(count), 1);
  }
  if (!warmup_steps) warmup_steps = int64_t(std::llround(warmup_ratio * double(*steps)));
  if (!eval_every) {
    eval_every = std::max<int64_t>(int64_t(std::ceil(double(texts) / double(per_step))), 1);
  }
}

TrainerConfig TrainingSettings::resolved() const {
  TrainerConfig c = rest;
  c.steps = decided(steps, "steps");
  c.batch_size = decided(batch_size, "batch_size");
  c.eval_every = decided(eval_every, "eval_every");
  c.recompute = decided(recompute, "recompute");
  c.optimizer.learning_rate = decided(learning_rate, "learning_rate");
  c.optimizer.attention_learning_rate = decided(attention_learning_rate, "attention_learning_rate");
  c.schedule.schedule = decided(schedule, "schedule");
  c.schedule.warmup_steps = decided(warmup_steps, "warmup_steps");
  return c;
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
  for (const Loss& loss : distill::losses())
    s.field(loss.name, weights_[loss.name], loss.help, {.min = 0, .unset = "by stage and method"});
  s.field("kl", kl, "Weight of the KL part inside approx and prob", {.min = 0});
  s.field("mse", mse, "Weight of the squared part inside approx and prob", {.min = 0});
}

LossConfig LossWeights::config() const {
  LossConfig config;
  config.kl = kl;
  config.mse = mse;
  for (const auto& [name, weight] : weights_) config[name] = weight.value_or(0);
  return config;
}

}  // namespace brine::distill
