// A conversion: which stages are left, and what each of them trains.
#include "distill/runs/stages/conversion.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/checkpoint/checkpoint.h"
#include "data/io/human.h"
#include "data/io/json.h"
#include "data/safetensors/safetensors.h"
#include "distill/ranks/exchange.h"
#include "distill/ranks/run_weights.h"
#include "distill/runs/run_windows.h"
#include "distill/runs/stages/block_report.h"
#include "nn/io/shared_student.h"
#include "nn/layers/low_rank.h"
#include "nn/models/blocks/blocks.h"

namespace brine::distill {
namespace {

// The newest intact checkpoint of a run directory.
struct Found {
  data::Path path;
  int64_t step = 0, first_step = 0;
  std::optional<Stage> stage = {};
};

std::optional<Found> newest(const std::string& run_dir) {
  if (!std::filesystem::is_directory(run_dir)) return std::nullopt;
  const data::LatestCheckpoint latest = data::latest_good_checkpoint(run_dir);
  if (!latest.good) return std::nullopt;
  Found found{.path = latest.good->path, .step = latest.good->step};
  const std::string file = (found.path / "trainer.json").string();
  if (!std::filesystem::exists(file)) return found;
  const data::Json state = parse_ordered_json(data::read_file(file), file);
  found.first_step = state.value("first_step", int64_t(0));
  found.stage = data::value_of(state.value("stage", std::string()), kStages);
  return found;
}

// The blocks of a checkpoint must be those that the settings describe.
void check_same_attention(const std::string& checkpoint, nn::ModelConfig config) {
  nn::ModelConfig theirs = nn::load_config(checkpoint);
  data::Schema before, now;
  theirs.describe_attention(before);
  config.describe_attention(now);
  const std::vector<std::string> changed = data::differences(before.to_json(), now.to_json());
  check(changed.empty(), checkpoint, ": the attention of stage attention was another; ",
        changed.empty() ? "" : changed.front());
}

struct Converter {
  Conversion& what;
  const StagePlan& plan;
  const RunHost& host;
  TrainingRun& run;
  nn::LoadedModel teacher = {};
  std::optional<Found> before = {};  // the checkpoint that stage joint starts from
  std::shared_ptr<DumpTeacher> dump = {};
  Tensor start = {};  // i32 [1, T] of the text, for a method that calibrates

  bool calibrates() const { return run.model->attention_traits().calibrates; }
  void number_steps();
  void load_teacher();
  void make_blocks();
  void start_student();
  void use_windows();
  void calibrate();
  void attention();
  void joint();
  void assert_base();
  void keep_blocks();
};

// Stage joint continues the numbers of the steps.
void Converter::number_steps() {
  run.stage = data::name_of(plan.stage, kStages);
  if (plan.stage == Stage::attention) {
    run.other_stage = {"stages", "joint"};
    return;
  }
  run.other_stage = {"stages"};
  const std::optional<Found> found = newest(plan.options.out);
  if (!found) return;
  if (plan.options.resume) {
    run.trainer.first_step = found->first_step;
  } else {
    run.trainer.first_step = found->step;
    before = found;
  }
}

void Converter::load_teacher() {
  if (what.teacher.empty()) return make_blocks();
  teacher = load_model(what.teacher, host.messages, {.map = true});
  check(nn::is_full_attention(teacher.config.attention), "convert: the teacher ", what.teacher,
        " has attention '", teacher.config.attention, "', wanted 'flash' or 'dense'");
  run.tokenizer = tokenizer_of(teacher, host.messages);
  what.student.copy_sizes(teacher.config);
  start_student();
  run.inputs = {{"teacher", teacher.hash()}, {"tokenizer", run.tokenizer->hash()}};
}

// The attention blocks of a model that is not here.
void Converter::make_blocks() {
  check(plan.stage == Stage::attention && what.valid.empty(),
        "distill: without --teacher there is stage attention alone, without --valid");
  const data::DumpSpec spec = data::read_manifest(what.dump).spec;
  what.student.model_type = nn::BlocksConfig::kName;
  what.student.as<nn::BlocksConfig>() = {.num_hidden_layers = spec.layers,
                                         .num_attention_heads = spec.heads,
                                         .num_key_value_heads = spec.key_heads,
                                         .head_dim = spec.head_size,
                                         .max_position_embeddings = spec.tokens,
                                         .causal = spec.causal,
                                         .layers = spec.model_layers,
                                         .teacher_hash = spec.teacher_hash};
  start_student();
}

void Converter::start_student() {
  what.resolve(what.student.shape());
  const int64_t first_step = run.trainer.first_step;
  run.trainer = what.training.resolved();
  run.trainer.first_step = first_step;
  run.config = what.student;
  run.model = teacher.model ? nn::make_shared_student(run.config, *teacher.model, host.seed)
                            : nn::make_model(run.config, host.seed);
  check(plan.stage == Stage::joint || calibrates() ||
            !run.model->attention(0).named_parameters().empty(),
        "convert: attention '", run.config.attention, "' has no parameters, so nothing to learn");
}

void Converter::use_windows() {
  const TextFiles files{.role = "data",
                        .train = what.data,
                        .valid = what.valid,
                        .window = window_of(*what.training.sequence_length, run.config, "convert")};
  if (!what.dump.empty()) {
    dump = use_dump(run, {what.dump, what.trust_dump}, teacher, files, host);
    run.teacher = dump;
    // Before stage attention: what stage joint will need of the dump.
    if (what.has(Stage::joint)) dump->require(what.joint.losses.resolved().needs());
    if (run.tokenizer) use_valid_text(run, files, host);
    return;
  }
  if (plan.stage == Stage::attention && calibrates()) {
    const data::TokenCorpus corpus = load_run_texts(run, files.role, files.train, files, host);
    const int64_t tokens = std::min(files.window, nn::kCalibrationTokens);
    start = Tensor::empty({1, tokens}, Dtype::i32);
    corpus.tokens->read(0, {start.data<int32_t>(), size_t(tokens)});
    use_valid_text(run, files, host);
    return;
  }
  use_mixed_text(run,
                 {.text = what.text,
                  .files = files,
                  .model_directory = teacher.directory,
                  .variant = plan.stage == Stage::joint ? uint64_t(1) : 0},
                 host);
}

// Of a new student, by keys of the teacher.
void Converter::calibrate() {
  const auto begin = std::chrono::steady_clock::now();
  nn::move_buffers(*run.model, default_device());
  std::string source;
  if (dump) {
    const auto& windows = dynamic_cast<const WindowSource&>(*run.train);
    const Batch batch =
        windows.in_order(0, std::max<int64_t>(1, nn::kCalibrationTokens / windows.window()));
    calibrate_from(*dump, batch, *run.model);
    source = join(batch.tokens, " tokens of ", what.dump);
  } else {
    if (!start.defined()) start = run.train->batch(0, 1).ids;
    const int64_t tokens = nn::calibrate_attention(*run.model, *teacher.model, start);
    source = join("the first ", tokens, " tokens of ", what.data.front());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  host.messages.info("calibrated in ", human_seconds(seconds.count()));
  run.subject = join("student ", run.config.attention, ", calibrated on ", source);
}

// Losses and recall of the blocks over the windows to evaluate on.
Values evaluate_blocks(const AttentionStage& stage, const TrainingRun& run) {
  const int64_t all = run.valid->size(), limit = run.trainer.eval_windows;
  const int64_t windows = limit > 0 ? std::min(all, limit) : all;
  BlockReport report(run.config);
  for (int64_t at = 0; at < windows; at += run.trainer.batch_size) {
    const int64_t count = std::min(run.trainer.batch_size, windows - at);
    const double share = double(count) / double(windows);
    stage.evaluate(run.valid->in_order(at, count),
                   [&](const BlockView& view) { report.add(view, share); });
  }
  return report.values();
}

void Converter::attention() {
  LossConfig losses = task_only();
  losses["task"] = 0;
  losses["approx"] = *what.approx;
  losses["context"] = *what.context;
  const auto shown =
      dump ? inputs_of(dump, *run.model, *what.context > 0) : inputs_of(teacher.model);
  auto stage = std::make_unique<AttentionStage>(shown, *run.model, losses);
  run.store = std::make_unique<nn::ParameterStore>(
      *run.model, [&](const nn::Module::NamedParameter& p) { return stage->trains(p); });
  run.plan = stage->plan(run.trainer.optimizer.attention_learning_rate, *what.feature_rate);
  if (run.valid) {  // through the model, as a dump does not have these windows
    auto of_valid = std::make_shared<AttentionStage>(inputs_of(teacher.model), *run.model, losses);
    run.evaluation = [of_valid, run = &run] { return evaluate_blocks(*of_valid, *run); };
  }
  run.objective = std::move(stage);
  run.subject = join("stage attention, student ", run.config.attention, ", teacher ",
                     what.dump.empty() ? what.teacher : "from " + what.dump);
}

void Converter::joint() {
  const JointSettings& joint = what.joint;
  TrainerConfig& c = run.trainer;
  c.steps = *joint.steps;
  c.batch_size = *joint.batch_size;
  c.recompute = *joint.recompute;
  c.schedule.warmup_steps = *joint.warmup_steps;
  c.optimizer.learning_rate = *joint.base_rate;
  c.optimizer.attention_learning_rate = *joint.attention_rate;
  const bool low_rank = *joint.lora_rank > 0, all = !low_rank && *joint.base_rate > 0;
  if (low_rank) {
    nn::Init init{.random = {.seed = host.seed, .stream = 3}};
    nn::add_low_rank(*run.model, *joint.lora_rank, init);
    run.config.lora_rank = *joint.lora_rank;
  }
  run.store =
      std::make_unique<nn::ParameterStore>(*run.model, [all](const nn::Module::NamedParameter& p) {
        return all || p.group == nn::ParameterGroup::attention || nn::is_low_rank(p.path);
      });
  if (before) {
    check(before->stage == Stage::attention, before->path.string(),
          ": is not a checkpoint of stage attention");
    check_same_attention(before->path.string(), run.config);
    load_weights(data::Safetensors(before->path / "model.safetensors"), *run.model, *run.store,
                 nn::is_low_rank);
  }
  run.losses = joint.losses.resolved();
  run.subject = join("stage joint, student ", run.config.attention, ", base ",
                     low_rank ? join("with additions of rank ", *joint.lora_rank)
                     : all    ? std::string("trained")
                              : std::string("frozen"),
                     ", teacher ", what.teacher);
}

// The blocks in the run's directory, as brine_sea.attach() takes them.
void Converter::keep_blocks() {
  if (!host.is_first()) return;
  run.after = [run = &run, out = data::Path(plan.options.out)] {
    data::save_safetensors(out / "model.safetensors", nn::tensors_of(*run->model));
    data::write_file_atomic(out / "config.json", nn::config_text(run->config, nullptr));
  };
}

void Converter::assert_base() {
  run.after = [model = teacher.model, hash = teacher.hash()] {
    check(nn::tensor_hash(nn::tensors_of(*model)) == hash,
          "convert: the teacher's weights changed while the student was trained");
  };
}

}  // namespace

std::vector<StagePlan> plan_stages(const Conversion& what, const RunOptions& options) {
  std::optional<Stage> reached;
  if (options.resume) {
    const std::optional<Found> found = newest(options.out);
    check(found.has_value(), options.out,
          ": contains no checkpoint to resume from; start without --resume");
    check(found->stage.has_value(), options.out, ": is not the run of a conversion");
    reached = found->stage;
  }
  std::vector<StagePlan> plans;
  if (what.has(Stage::attention) && reached != Stage::joint) {
    plans.push_back({.stage = Stage::attention, .options = options});
  }
  check(options.resume || !plans.empty() || !newest(options.out), options.out,
        ": already contains a run; add --resume or give another directory");
  if (what.has(Stage::joint) && !(options.dry_run && !plans.empty())) {
    plans.push_back({.stage = Stage::joint, .options = options});
    plans.back().options.resume = reached == Stage::joint;
  }
  check(!plans.empty(), options.out, ": is in stage joint already");
  return plans;
}

std::unique_ptr<TrainingRun> prepare(Conversion& what, const StagePlan& plan, const RunHost& host) {
  auto run = std::make_unique<TrainingRun>();
  Converter converter{.what = what, .plan = plan, .host = host, .run = *run};
  converter.number_steps();
  claim_directory(*run, plan.options, host);
  check(!what.data.empty() || !what.dump.empty(), "convert: --data or --dump is needed");
  converter.load_teacher();
  if (plan.stage == Stage::joint) converter.joint();
  converter.use_windows();
  if (converter.calibrates() && !converter.before && !plan.options.resume &&
      !plan.options.dry_run) {
    const std::string joint = run->subject;
    converter.calibrate();
    if (!joint.empty()) host.messages.info(std::exchange(run->subject, joint));
  }
  if (plan.stage == Stage::attention) {
    if (!converter.calibrates()) converter.attention();
  } else if (converter.dump) {
    converter.dump->require(run->losses.needs());
  } else {
    run->teacher = std::make_shared<OnlineTeacher>(converter.teacher.model);
  }
  if (what.teacher.empty()) {
    converter.keep_blocks();
  } else {
    converter.assert_base();
  }
  run->settings = json_text(data::schema_of(what).to_json());
  return run;
}

RunResult convert(Conversion& what, const RunOptions& options, const RunHost& host) {
  RunResult result;
  for (const StagePlan& plan : plan_stages(what, options)) {
    const std::unique_ptr<TrainingRun> run = prepare(what, plan, host);
    result = train(*run, plan.options, host);
    if (result.interrupted) break;
  }
  return result;
}

}  // namespace brine::distill
