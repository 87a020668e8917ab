// The settings of a training run before all of them are decided.
#include "distill/runs/settings/training_settings.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/config/schema_text.h"

namespace brine::distill {
namespace {

template <class T>
const T& decided(const std::optional<T>& value, const char* name) {
  check(value.has_value(), "training: ", name, " is not decided; resolve the recipe first");
  return *value;
}

template <class T>
std::string shown(const std::optional<T>& value, const char* otherwise = "by recipe") {
  return value ? data::toml_value(*value) : std::string(otherwise);
}

}  // namespace

void TrainingSettings::describe(data::Schema& s, const TrainingSettings& defaults,
                                const std::string& default_steps) {
  s.field("sequence_length", sequence_length,
          "Tokens of a window or of a task's longest text; 0 = the model's positions",
          {.min = 0, .unset = shown(defaults.sequence_length, "0")});
  s.field(
      "steps", steps, "Optimizer steps",
      {.min = 1,
       .unset = !default_steps.empty()
                    ? default_steps
                    : shown(defaults.steps, defaults.batch_size ? "from epochs" : "by recipe")});
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
                         : "by recipe"});
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

}  // namespace brine::distill
