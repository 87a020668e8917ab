// The settings of a conversion and their defaults: those of a quarter of an hour on two cores for a
// model of 135 M parameters.
#include <algorithm>

#include "data/dump/dump.h"
#include "distill/losses/loss_table.h"
#include "distill/runs/run_windows.h"
#include "distill/runs/settings/recipe_defaults.h"
#include "distill/runs/stages/conversion.h"
#include "nn/io/shared_student.h"

namespace brine::distill {
namespace {

// The windows that are trained on unless lengths are given; of blocks, whose masks leave keys out
// in long ones alone, in stage joint.
struct Lengths {
  int64_t shortest, longest;
};
constexpr Lengths kUsual = {512, 2048}, kJoint = {8192, 8192};

TrainingSettings stage_defaults(const nn::ModelShape& teacher, bool calibrates) {
  TrainingSettings t;
  t.sequence_length =
      std::min<int64_t>(teacher.max_positions, calibrates ? nn::kCalibrationTokens : 1024);
  t.steps = calibrates ? 1 : 200;
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

// The estimator keeps learning and the logits follow the teacher's. Squared distances of hidden
// states are out of all proportion in decoders with massive activations (a few numbers of the first
// token in the thousands): SmolLM2's kd was 99 % of the loss.
double joint_weight(const std::string& loss, bool estimates) {
  return loss == "kd_task" || (loss == "approx" && estimates) ? 1 : 0;
}

// The weights of stage joint with separate defaults in help.
struct JointLosses {
  LossWeights& losses;
  void describe(data::Schema& s) {
    losses.describe(s, [](const std::string& loss) -> std::string {
      if (loss == "approx") return "1; 0 for a method that estimates no scores";
      return joint_weight(loss, false) > 0 ? "1" : "0";
    });
  }
};

// `calibrates`: of blocks, whose windows are long; docs/results/README.md has what they gain.
void decide_joint(JointSettings& joint, bool asked, const nn::AttentionTraits& traits) {
  const bool blocks = asked && traits.calibrates;
  decide(joint.steps, int64_t(!asked ? 0 : blocks ? 24 : 300));
  decide(joint.batch_size, int64_t(blocks ? 1 : 2));
  decide(joint.warmup_steps, int64_t(10));
  decide(joint.attention_rate, 1e-3);
  if (asked) {  // a rate without a rank is that of the whole base
    decide(joint.lora_rank, int64_t(blocks && !joint.base_rate ? 16 : 0));
    decide(joint.recompute, blocks);
  }
  decide(joint.base_rate, joint.lora_rank.value_or(0) == 0 ? 0.0 : blocks ? 3e-4 : 1e-4);
  for (const Loss& loss : losses())
    decide(joint.losses[loss.name], joint_weight(loss.name, traits.estimates));
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
  training.describe(s, shown, "200; blocks are calibrated in one pass");
  s.field("optimizer.feature_learning_rate", feature_rate,
          "Peak rate of the features of a learned prior", {.min = 0, .unset = "0.02"});
  s.field("losses.approx", approx, "Weight of L_approx in stage attention",
          {.min = 0, .unset = "10; 0 for a method that estimates no scores"});
  s.field("losses.context", context, "Weight of L_context in stage attention",
          {.min = 0, .unset = "1"});
  s.section("joint", joint);
  student.describe_attention(s);
  s.collect("attention", attention_keys);
}

bool Conversion::has(Stage stage) const {
  if (!stages) return stage == Stage::attention || joint.steps.value_or(0) > 0;
  return *stages == Stages::both || (*stages == Stages::joint) == (stage == Stage::joint);
}

void Conversion::resolve(const nn::ModelShape& teacher) {
  const bool by_default = student.attention == "blocks" && !attention_keys.count("method");
  if (by_default && (!teacher.causal || mask.preset)) student.attention = "sea";  // has presets
  give_mask(student, attention_keys, mask);
  choose_attention(student, attention_keys, {{"preset", "light"}});
  const nn::AttentionTraits traits = attention_traits(student, teacher.causal);
  if (dump.empty()) {
    if (!text.lengths)
      text.lengths =
          default_lengths(teacher, training.sequence_length, traits.calibrates ? kJoint : kUsual);
    decide(text.retrieval_share, 0.25);
  } else {
    check(!text.lengths && !text.retrieval_share,
          "convert: lengths and retrieval_share need a teacher that runs, not a dump");
    decide(training.sequence_length, data::read_manifest(dump).spec.tokens);
  }
  training.fill(stage_defaults(teacher, traits.calibrates));
  check(!traits.calibrates || *training.steps == 1, "convert: attention '", student.attention,
        "' is calibrated in one pass, not in ", *training.steps,
        " steps; those of stage joint are --joint-steps");
  decide(feature_rate, 2e-2);
  decide(context, traits.calibrates ? 0.0 : 1.0);
  decide(approx, traits.estimates ? 10.0 : 0.0);
  decide_joint(joint, has(Stage::joint), traits);
}

}  // namespace brine::distill
