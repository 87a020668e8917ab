// The settings of a conversion and their defaults: those of a quarter of an hour on two cores for a
// model of 135 M parameters.
#include <algorithm>

#include "data/dump/dump.h"
#include "distill/losses/loss_table.h"
#include "distill/runs/run_windows.h"
#include "distill/runs/settings/recipe_defaults.h"
#include "distill/runs/stages/conversion.h"

namespace brine::distill {
namespace {

// The windows that are trained on unless lengths are given; of a method that compares a sample of
// rows those in which a mask of its size leaves keys out; of its stage joint alone the long ones.
struct Lengths {
  int64_t shortest, longest;
};
constexpr Lengths kUsual = {512, 2048}, kSampled = {2048, 8192}, kJoint = {8192, 8192};

TrainingSettings stage_defaults(const nn::ModelShape& teacher, bool samples) {
  TrainingSettings t;
  t.sequence_length = std::min<int64_t>(teacher.max_positions, 1024);
  t.steps = samples ? 16 : 200;  // blocks: their gates and gains start at what serves
  t.batch_size = 2;
  t.eval_every = 0;
  t.warmup_steps = 10;
  t.recompute = false;
  t.learning_rate = 0;  // the base is frozen
  t.attention_learning_rate = 1e-2;
  t.schedule = nn::Decay::linear;
  return t;
}

// "512,1024,2048" as far as the model has positions; a shorter model has windows of one length.
std::string default_lengths(const nn::ModelShape& teacher, const std::optional<int64_t>& window,
                            Lengths usual) {
  const int64_t asked = window.value_or(0);
  if (asked > 0) return std::to_string(asked);
  std::string out;
  for (int64_t n = usual.shortest; n <= std::min(usual.longest, teacher.max_positions); n *= 2) {
    out += (out.empty() ? "" : ",") + std::to_string(n);
  }
  return out.empty() ? std::to_string(teacher.max_positions) : out;
}

template <class T>
void decide(std::optional<T>& value, const T& otherwise) {
  if (!value) value = otherwise;
}

// Blocks for a causal model, unless a key is set that single columns alone have.
AttentionDefaults default_attention(nn::ModelConfig& student, const std::set<std::string>& set,
                                    bool causal) {
  data::Schema keys;
  student.method().describe(keys);
  const data::Schema::Field* mask = keys.find("mask");
  bool columns = !causal || (set.count("mask") && mask && mask->toml() == "\"columns\"");
  for (const char* key : {"oversample", "pooled", "prior_units"}) columns |= set.count(key) > 0;
  for (const auto& [key, value] :
       {std::pair("gates", "\"token\""), {"prior", "\"performer\""}, {"pooled_prior", "false"}}) {
    const data::Schema::Field* field = keys.find(key);
    columns |= set.count(key) && field && field->toml() == value;
  }
  if (columns) return {{"preset", "light"}, {"k", "64"}};
  return {{"preset", "blocks"}};
}

// The estimator keeps learning and the logits follow the teacher's. For blocks L_approx of all rows
// takes twenty times as long as the rest of a step on a GPU, and where it was tried it gained
// nothing (docs/paper/gpu). Squared distances of hidden states are out of all proportion in
// decoders with massive activations (a few numbers of the first token in the thousands): SmolLM2's
// kd was 99 % of the loss.
double joint_weight(const std::string& loss, bool samples) {
  return loss == "kd_task" || (loss == "approx" && !samples) ? 1 : 0;
}

// The weights of stage joint with separate defaults in help.
struct JointLosses {
  LossWeights& losses;
  void describe(data::Schema& s) {
    losses.describe(s, [](const std::string& loss) -> std::string {
      if (loss == "approx") return "1; 0 for blocks";
      return joint_weight(loss, false) > 0 ? "1" : "0";
    });
  }
};

// `samples`: of blocks, whose windows are long; docs/results/README.md has what they gain.
void decide_joint(JointSettings& joint, bool asked, bool samples) {
  decide(joint.steps, int64_t(!asked ? 0 : samples ? 24 : 300));
  decide(joint.batch_size, int64_t(samples ? 1 : 2));
  decide(joint.warmup_steps, int64_t(10));
  decide(joint.attention_rate, 1e-3);
  if (asked) {  // a rate without a rank is that of the whole base
    decide(joint.lora_rank, int64_t(samples && !joint.base_rate ? 16 : 0));
    decide(joint.recompute, samples);
  }
  decide(joint.base_rate, joint.lora_rank.value_or(0) == 0 ? 0.0 : samples ? 3e-4 : 1e-4);
  for (const Loss& loss : losses())
    decide(joint.losses[loss.name], joint_weight(loss.name, samples));
}

}  // namespace

void JointSettings::describe(data::Schema& s) {
  s.field("steps", steps, "Steps of stage joint; 0 = no such stage",
          {.min = 0,
           .alias = "joint_steps",
           .unset = "300 if the stage is asked for (blocks: 24), else 0"});
  s.field("batch_size", batch_size, "Windows of a micro-batch of stage joint",
          {.min = 1, .unset = "2; 1 for blocks"});
  s.field("warmup", warmup_steps, "Steps of linear warm-up of stage joint",
          {.min = 0, .unset = "10"});
  s.field("attention_rate", attention_rate,
          "Peak rate of the attention method's parameters in stage joint",
          {.min = 0, .unset = "1e-3"});
  s.field("base_rate", base_rate,
          "Peak rate of the base or its low-rank additions; 0 = frozen base",
          {.min = 0, .unset = "with lora_rank 1e-4 (blocks: 3e-4), else 0"});
  s.field("lora_rank", lora_rank,
          "Rank of low-rank additions to linear maps in stage joint; 0 = none",
          {.min = 0, .unset = "0; 16 for blocks without a base_rate"});
  s.field("recompute", recompute, "Keep only layer inputs in stage joint, run layers again",
          {.unset = "false; true for blocks"});
  JointLosses shown{losses};
  s.section("losses", shown);
}

void Conversion::describe(data::Schema& s) {
  s.field("teacher", teacher, "Directory of the model to convert", {.required = true});
  s.field("dump", dump, "Dump of the teacher with values to learn from; none: the teacher runs");
  s.field("trust_dump", trust_dump, kTrustDumpHelp, {.transient = true});
  s.field("data", data, "Text files or token shards to train on");
  s.field("valid", valid, "Text files or token shards to evaluate on");
  s.choice(
      "stages", stages, kStageLists,
      "attention: each layer learns from the teacher, base frozen; joint: the whole student learns",
      {.unset = "attention, and joint if joint.steps is not 0"});
  text.describe(s);
  TrainingSettings shown = stage_defaults({.max_positions = kUsual.longest}, false);
  training.describe(s, shown, "16 for blocks, else 200");
  s.field("optimizer.feature_learning_rate", feature_rate,
          "Peak rate of the features of a learned prior", {.min = 0, .unset = "0.02"});
  s.field("losses.approx", approx, "Weight of L_approx in stage attention",
          {.min = 0, .unset = "10; 0 for a method that estimates no scores"});
  s.field("losses.context", context, "Weight of L_context in stage attention",
          {.min = 0, .unset = "1"});
  s.field("steps_per_pass", turns,
          "Steps of stage attention on sampled rows for one pass of the teacher",
          {.min = 1, .unset = "4 for such a method, else 1"});
  s.section("joint", joint);
  student.describe_attention(s);
  s.collect("attention", attention_keys);
}

bool Conversion::has(Stage stage) const {
  if (!stages) return stage == Stage::attention || joint.steps.value_or(0) > 0;
  return *stages == Stages::both || (*stages == Stages::joint) == (stage == Stage::joint);
}

void Conversion::resolve(const nn::ModelShape& teacher) {
  give_mask(student, attention_keys, mask);
  choose_attention(student, attention_keys,
                   default_attention(student, attention_keys, teacher.causal));
  const nn::AttentionTraits traits = attention_traits(student, teacher.causal);
  if (dump.empty()) {
    if (!text.lengths)
      text.lengths = default_lengths(teacher, training.sequence_length,
                                     !traits.samples         ? kUsual
                                     : has(Stage::attention) ? kSampled
                                                             : kJoint);
    decide(text.retrieval_share, 0.25);
    decide(turns, int64_t(traits.samples ? 4 : 1));
  } else {
    check(!text.lengths && !text.retrieval_share && turns.value_or(1) == 1,
          "convert: lengths, retrieval_share and steps_per_pass need a teacher that runs, not a "
          "dump");
    decide(training.sequence_length, data::read_manifest(dump).spec.tokens);
    decide(turns, int64_t(1));
  }
  training.fill(stage_defaults(teacher, traits.samples));
  decide(feature_rate, 2e-2);
  decide(context, 1.0);
  check(*turns == 1 || traits.samples, "convert: steps_per_pass = ", *turns,
        " needs a method that compares a sample of rows, as sea with mask = blocks does");
  decide(approx, traits.estimates ? 10.0 : 0.0);
  if (!traits.estimates) decide(joint.losses["approx"], 0.0);
  decide_joint(joint, has(Stage::joint), has(Stage::joint) && traits.samples);
}

}  // namespace brine::distill
