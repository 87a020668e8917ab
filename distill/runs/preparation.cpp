// A distillation from its settings to a run that is ready: what is read, checked and decided before
// training starts.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/checkpoint/checkpoint.h"
#include "data/codec/checksums.h"
#include "data/io/human.h"
#include "data/io/json.h"
#include "data/safetensors/safetensors.h"
#include "distill/batches/task_source.h"
#include "distill/runs/distillation.h"
#include "distill/runs/stages/attention_stage.h"
#include "distill/teachers/dump_teacher.h"
#include "distill/teachers/teacher.h"
#include "distill/trainer.h"
#include "nn/io/shared_student.h"
#include "nn/layers/low_rank.h"
#include "nn/models/blocks/blocks.h"

namespace brine::distill {
namespace {

// The newest intact checkpoint of a run directory.
struct Found {
  data::Path path;
  int64_t step = 0, first_step = 0;
  Stage stage = Stage::joint;
};

std::optional<Found> newest(const std::string& run_dir) {
  if (!std::filesystem::is_directory(run_dir)) return std::nullopt;
  const data::LatestCheckpoint latest = data::latest_good_checkpoint(run_dir);
  check(latest.good || latest.skipped.empty(), run_dir, ": no intact checkpoint to resume from",
        latest.why());
  if (!latest.good) return std::nullopt;
  Found found{.path = latest.good->path, .step = latest.good->step};
  const std::string file = (found.path / "trainer.json").string();
  if (!std::filesystem::exists(file)) return found;
  const data::Json state = parse_ordered_json(data::read_file(file), file);
  found.first_step = state.value("first_step", int64_t(0));
  found.stage = data::value_of(state.value("stage", ""), kStages).value_or(Stage::joint);
  return found;
}

// The attention of a checkpoint must be what the settings describe.
void check_same_attention(const std::string& checkpoint, nn::ModelConfig config) {
  nn::ModelConfig theirs = nn::load_config(checkpoint);
  data::Schema before, now;
  theirs.describe_attention(before);
  config.describe_attention(now);
  for (const std::string& line : data::differences(before.to_json(), now.to_json()))
    throw Error(join(checkpoint, ": the attention of stage attention was another; ", line));
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

// The common state of a preparation's parts.
struct Preparation {
  Distillation& what;
  const StagePlan& plan;
  const RunHost& host;
  TrainingRun& run;
  nn::LoadedModel teacher = {};
  std::optional<Found> before = {};  // the checkpoint that stage joint starts from
  std::shared_ptr<DumpTeacher> dump = {};
  Tensor start = {};                  // i32 [1, T] of the text, for a method that calibrates
  std::optional<TaskSet> texts = {};  // of a task, to train on

  bool is_joint() const { return plan.stage == Stage::joint; }
  bool follows() const { return is_joint() && what.follows(); }
  TrainingSettings& training() const { return follows() ? what.joint.training : what.training; }
  bool calibrates() const { return run.model->attention_traits().calibrates; }
  TextFiles text() const;
  void number_steps();
  void resolve(const nn::ModelShape& shape);
  void set_trainer();
  void from_self();
  void from_teacher();
  void load_teacher();
  void make_student();
  void continue_student();
  void use_data();
  std::shared_ptr<DumpTeacher> open_dump(const data::DumpSource& source, int64_t window,
                                         bool uses_stored_tokens);
  void use_dump(const TextFiles& files);
  void mix_windows(const TextFiles& files);
  TaskSettings task() const;
  int64_t read_task_texts();
  void use_task_texts();
  void use_dumped_texts();
  void calibrate();
  void learn_layers();
  void save_blocks();
  void keep_base();
};

// Stage joint continues the numbers of the steps.
void Preparation::number_steps() {
  run.stage = data::name_of(plan.stage, kStages);
  if (!is_joint() || !(what.follows() || plan.options.resume)) return;
  const std::optional<Found> found = newest(plan.options.out);
  if (!found) return;
  if (plan.options.resume) {
    run.trainer.first_step = found->first_step;
  } else {
    run.trainer.first_step = found->step;
    before = found;
  }
}

void Preparation::resolve(const nn::ModelShape& shape) {
  if (plan.options.resume) what.keep(stored_configuration(plan.options.out));
  TeacherFacts facts{.causal = shape.causal, .positions = shape.max_positions};
  if (what.on_task()) facts.text_tokens = read_task_texts();
  if (!what.dump.empty()) {
    const data::DumpSpec spec = data::read_manifest(what.dump).spec;
    facts.pooled = spec.columns;
    if (!what.on_task()) facts.dump_tokens = spec.tokens;
  }
  if (teacher.model && !what.losses["kd"] && what.defaults(facts).losses["kd"].value_or(0) > 0) {
    if (const auto massive = massive_activation(*teacher.model)) facts.massive = massive->text();
  }
  const std::string& from = what.dump.empty() ? what.teacher : what.dump;
  for (const auto& [text, warns] : what.resolve(facts)) {
    if (warns)
      host.messages.warning(from, ": ", text);
    else
      host.messages.info(from, ": ", text);
  }
  run.no_gain = what.no_gain(facts);
  // What differs between the stages of one run, or is of another stage.
  run.other_stage = {"stages"};
  if (!is_joint() || (!what.follows() && *what.lora_rank == 0)) run.other_stage.push_back("joint");
  run.losses = (follows() ? what.joint.losses : what.losses).config();
}

void Preparation::set_trainer() {
  const int64_t first_step = run.trainer.first_step;
  run.trainer = training().resolved();
  run.trainer.first_step = first_step;
}

TextFiles Preparation::text() const {
  return {.role = "data",
          .train = what.data,
          .valid = what.valid,
          .window = window_of(*what.training.sequence_length, what.student, "distill")};
}

void Preparation::from_self() {
  check(!what.model.empty(), "distill: --teacher self needs --model, the student");
  check(what.dump.empty() && !what.on_task(),
        "distill: --teacher self takes text, without dump and task");
  check(!what.mixes(), "distill: lengths and retrieval_share are not for --teacher self");
  nn::LoadedModel loaded = load_model(what.model, host.messages, {.gradients = true});
  check(loaded.model->attention_traits().estimates, "distill: ", what.model, " has attention '",
        loaded.config.attention,
        "', which cannot learn from its own dense attention; brine train --model learns from text");
  run.tokenizer = tokenizer_of(loaded, host.messages);
  refuse_other_attention(what.attention_keys, what.student, loaded, what.model);
  resolve(loaded.config.shape());
  train_on(run, what.student, std::move(loaded));
  run.inputs["tokenizer"] = run.tokenizer->hash();
  run.teacher = std::make_unique<SelfTeacher>();
  run.subject = join("student ", run.config.attention, " in ", what.model, ", its own teacher");
  set_trainer();
  use_text(run, text(), host);
}

void Preparation::load_teacher() {
  if (!what.teacher.empty()) {
    teacher = load_model(what.teacher, host.messages, {.map = true});
    check(nn::is_full_attention(teacher.config.attention), "distill: the teacher ", what.teacher,
          " has attention '", teacher.config.attention,
          "', wanted 'flash' or 'dense': its losses are defined for a dense one");
    if (!what.on_task()) refuse_classifier(teacher, "distill");
    run.tokenizer = tokenizer_of(teacher, host.messages);
    what.student.copy_sizes(teacher.config);
    run.inputs = {{"teacher", teacher.hash()}, {"tokenizer", run.tokenizer->hash()}};
    return;
  }
  // The attention blocks of a model that is not here.
  check(
      plan.stage == Stage::attention && !what.follows() && !what.dump.empty() && what.valid.empty(),
      "distill: --teacher is needed; without --teacher there is stage attention from a --dump "
      "alone, "
      "without --valid");
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
}

void Preparation::from_teacher() {
  load_teacher();
  resolve(what.student.shape());
  text();  // throws for windows that are too long before any slow work
  run.subject = join("stage ", run.stage, ", student ", what.student.attention, ", ");
  if (what.model.empty()) {
    make_student();
  } else {
    continue_student();
  }
  const std::string from = what.dump.empty() ? what.teacher : "from " + what.dump;
  run.subject += join("teacher ", from);
  if (!what.on_task()) set_trainer();
  use_data();
  const bool begins = what.model.empty() && !before && !plan.options.resume;
  if (calibrates() && begins && !plan.options.dry_run) calibrate();
  if (!is_joint()) {
    if (!calibrates()) learn_layers();
  } else if (dump) {
    dump->require(run.losses.needs());
  } else {
    run.teacher = std::make_shared<OnlineTeacher>(teacher.model);
  }
  if (what.teacher.empty()) save_blocks();
}

void Preparation::make_student() {
  run.config = what.student;
  const int64_t rank = is_joint() ? *what.lora_rank : 0;
  const bool whole =
      is_joint() && rank == 0 && (what.recipe.has_value() || *training().learning_rate > 0);
  if (is_joint())
    run.subject += join("base ",
                        whole      ? "trained"
                        : rank > 0 ? join("with additions of rank ", rank)
                                   : std::string("frozen"),
                        ", ");
  if (whole && !follows()) {
    run.model = nn::make_student(run.config, *teacher.model, host.seed);
    run.store = std::make_unique<nn::ParameterStore>(*run.model);
    return;
  }
  run.model = teacher.model ? nn::make_shared_student(run.config, *teacher.model, host.seed)
                            : nn::make_model(run.config, host.seed);
  if (teacher.model) keep_base();
  if (!is_joint()) {
    check(calibrates() || !run.model->attention(0).named_parameters().empty(),
          "distill: attention '", run.config.attention,
          "' has no parameters, so stage attention has nothing to learn");
    return;
  }
  if (rank > 0) {
    nn::Init init{.random = {.seed = host.seed, .stream = 3}};
    nn::add_low_rank(*run.model, rank, init);
    run.config.lora_rank = rank;
  }
  run.store = std::make_unique<nn::ParameterStore>(
      *run.model, [whole](const nn::Module::NamedParameter& p) {
        return whole || p.group == nn::ParameterGroup::attention || nn::is_low_rank(p.path);
      });
  if (!before) return;
  check(before->stage == Stage::attention, before->path.string(),
        ": is not a checkpoint of stage attention");
  check_same_attention(before->path.string(), run.config);
  load_weights(data::Safetensors(before->path / "model.safetensors"), *run.model, *run.store,
               nn::is_low_rank);
}

// A student that learned before, in stage attention for example.
void Preparation::continue_student() {
  check(what.lora_rank == 0, "distill: a student that learns on gets no low-rank additions");
  nn::LoadedModel loaded = load_model(what.model, host.messages, {.gradients = true});
  const std::vector<std::string> others =
      data::differences(nn::sizes_to_json(teacher.config), nn::sizes_to_json(loaded.config));
  for (const std::string& line : others)
    throw Error(
        join("distill: the student ", what.model, " has other sizes than the teacher; ", line));
  refuse_other_attention(what.attention_keys, what.student, loaded, what.model);
  check(*training().learning_rate > 0 || !loaded.model->attention(0).named_parameters().empty(),
        "distill: nothing of ", what.model, " would be trained: it has no low-rank additions, and ",
        "the rate of its weights is 0 (--learning-rate)");
  train_on(run, what.student, std::move(loaded));
}

std::shared_ptr<DumpTeacher> Preparation::open_dump(const data::DumpSource& source, int64_t window,
                                                    bool uses_stored_tokens) {
  // The columns of the student's estimate; 0 when its attention method has none.
  data::Schema keys = data::schema_of(run.config.method());
  const int64_t columns = keys.find("columns") ? keys.to_json()["columns"].get<int64_t>() : 0;
  run.inputs["dump"] = data::sha256_file(what.dump + "/manifest.json");
  return std::make_shared<DumpTeacher>(
      what.dump, DumpTeacher::Expected{.source = source,
                                       .window = window,
                                       .shape = run.config.shape(),
                                       .columns = columns,
                                       .uses_stored_tokens = uses_stored_tokens});
}

void Preparation::use_data() {
  if (what.dumped_texts) return use_dumped_texts();
  if (what.on_task()) return use_task_texts();
  const TextFiles files = text();
  if (!what.dump.empty()) return use_dump(files);
  check(!what.data.empty(), "distill: --data or --dump is needed");
  if (!is_joint() && calibrates()) {
    const data::TokenCorpus corpus = load_run_texts(run, files.role, files.train, files, host);
    const int64_t tokens = std::min(files.window, nn::kCalibrationTokens);
    start = Tensor::empty({1, tokens}, Dtype::i32);
    corpus.tokens->read(0, {start.data<int32_t>(), size_t(tokens)});
    use_valid_text(run, files, host);
  } else if (what.mixes()) {
    mix_windows(files);
  } else {
    use_text(run, files, host);
  }
}

// Windows of mixed lengths with retrieval among them.
void Preparation::mix_windows(const TextFiles& files) {
  if (!what.text.lengths) what.text.lengths = std::to_string(files.window);
  // Stage joint of a shared base has another order and other retrieval with the same seed.
  const uint64_t variant = is_joint() && !what.recipe;
  MixedSource::Config config{.lengths = parse_lengths(*what.text.lengths),
                             .retrieval_share = *what.text.retrieval_share,
                             .step_windows = run.trainer.batch_size * run.trainer.accumulate,
                             .seed = host.seed + (variant << 32)};
  for (const int64_t n : config.lengths) window_of(n, run.config, "windows");
  data::TokenCorpus corpus = load_run_texts(run, files.role, files.train, files, host);
  Retrieval retrieval(corpus.tokens, nn::tokenizer_of(teacher.directory),
                      run.tokenizer->vocab_size());
  run.train = std::make_unique<MixedSource>(corpus.tokens, std::move(retrieval), config);
  run.windows = join("of ", *what.text.lengths, " tokens, a share of ", *what.text.retrieval_share,
                     " with retrieval");
  use_valid_text(run, files, host);
}

// The samples of a dump: windows of the text, or where there is none of their stored tokens.
void Preparation::use_dump(const TextFiles& files) {
  check(!what.mixes(), "distill: lengths and retrieval_share need a teacher that runs, not a dump");
  const data::DumpSpec spec = data::read_manifest(what.dump).spec;
  const bool from_dump =
      spec.stores_tokens && (!spec.has_windows() || files.train.empty() || !run.tokenizer);
  check(from_dump || !files.train.empty(), what.dump,
        ": has the numbers of its windows, not their tokens, so --data is needed");
  check(from_dump || run.tokenizer, what.dump,
        ": has no tokens, and there is no teacher whose tokenizer reads --data");
  data::TokenCorpus corpus;
  if (!from_dump) corpus = load_run_texts(run, files.role, files.train, files, host);
  dump = open_dump({.teacher_hash = teacher.model ? teacher.hash() : "",
                    .tokenizer_hash = run.tokenizer ? run.tokenizer->hash() : "",
                    .corpus_hash = from_dump ? "" : corpus.hash()},
                   files.window, from_dump);
  auto windows = dump->samples(corpus.tokens, host.seed);
  if (!what.trust_dump) dump->check_sample(teacher.model, windows->in_order(0, 1));
  run.train = std::move(windows);
  run.teacher = dump;
  host.messages.info(what.dump, ": ", run.train->size(),
                     from_dump ? " windows of its own tokens" : " of these windows",
                     from_dump && !files.train.empty() ? "; the text of --data is not read" : "");
  // Before stage attention: what stage joint will need of the dump.
  if (what.follows()) dump->require(what.joint.losses.config().needs());
  if (run.tokenizer) use_valid_text(run, files, host);
}

TaskSettings Preparation::task() const {
  check(what.data.size() <= 1, "distill: a task has one directory of data, not ", what.data.size());
  TaskSettings settings = what.task;
  if (!what.data.empty()) settings.data = what.data.front();
  return settings;
}

// Returns how many tokens nine of ten texts have at most.
int64_t Preparation::read_task_texts() {
  check(teacher.model->labels() > 0, "distill: ", teacher.directory,
        " has no classification head; brine finetune makes one");
  std::vector<int64_t> lengths;
  if (what.dumped_texts) {
    lengths = data::read_manifest(what.dump).spec.lengths;
  } else {
    const int64_t max_tokens = what.training.sequence_length.value_or(
        what.defaults({.positions = what.student.shape().max_positions})
            .training.sequence_length.value_or(0));
    texts = read_train_split(run, task(), what.student, max_tokens, host);
    for (const data::TextTokens& text : texts->source->tokens().texts)
      lengths.push_back(int64_t(text.ids.size()));
  }
  if (lengths.empty()) return 0;
  const auto at = lengths.begin() + int64_t(lengths.size() * 9 / 10);
  std::nth_element(lengths.begin(), at, lengths.end());
  return *at;
}

void Preparation::use_task_texts() {
  const TaskSettings settings = task();
  use_task(run, settings, std::move(*texts), *what.training.sequence_length, host);
  if (!what.dump.empty()) {
    dump = open_dump({.teacher_hash = teacher.hash(),
                      .tokenizer_hash = run.tokenizer->hash(),
                      .corpus_hash = run.inputs.at(settings.train_split)},
                     0, false);
    dump->require(run.losses.needs());
    const auto split = dynamic_cast<const TaskSource&>(*run.train).shared_tokens();
    const auto texts = dump->texts(split);
    if (texts != split) {
      host.messages.info(what.dump, ": ", texts->texts.size(), " of these texts");
      run.train = std::make_unique<TaskSource>(texts, host.seed);
    }
    if (!what.trust_dump)
      dump->check_sample(teacher.model, dynamic_cast<const TaskSource&>(*run.train).gather({0}));
    run.teacher = dump;
  }
  training().plan_epochs(what.epochs.value_or(0), settings.warmup_ratio, run.train->size());
  set_trainer();
}

// The texts of a classifier's dump, whose labels are not known.
void Preparation::use_dumped_texts() {
  check(what.losses["task"].value_or(0) == 0, "distill: losses.task needs labels, which ",
        what.dump, " does not have; --task reads them");
  dump = open_dump(
      {.teacher_hash = teacher.hash(), .tokenizer_hash = run.tokenizer->hash(), .corpus_hash = ""},
      0, true);
  dump->require(run.losses.needs());
  const nn::ClassHead head = teacher.config.family().class_head();
  const std::optional<int32_t> separator =
      takes_pairs(head) == false ? std::nullopt : run.tokenizer->id_of("[SEP]");
  const auto texts = dump->stored_texts(separator.value_or(-1));
  texts->regression = head.labels == 1 && head.problem == nn::Problem::regression;
  if (!texts->regression) texts->labels = names_of(head);
  auto source = std::make_unique<TaskSource>(texts, host.seed);
  host.messages.info(what.dump, ": ", source->size(), " texts of its own tokens");
  if (!what.trust_dump) dump->check_sample(teacher.model, source->gather({0}));
  run.teacher = dump;
  run.train = std::move(source);
  training().plan_epochs(what.epochs.value_or(0), what.task.warmup_ratio, run.train->size());
  set_trainer();
}

// Of a new student, by keys of the teacher.
void Preparation::calibrate() {
  const double begin = steady_seconds();
  nn::move_buffers(*run.model, default_device());
  std::string source;
  if (dump) {
    const auto& windows = dynamic_cast<const WindowSource&>(*run.train);
    const Batch batch =
        windows.in_order(0, std::max<int64_t>(1, nn::kCalibrationTokens / windows.window()));
    calibrate_from(*dump, batch, *run.model);
    source = join(batch.tokens, " tokens of ", what.dump);
  } else {
    const std::string where = start.defined() ? "the first " : "";  // or a window of the training
    if (!start.defined()) start = run.train->batch(0, 1).ids;
    const int64_t tokens = nn::calibrate_attention(*run.model, *teacher.model, start);
    source = join(where, tokens, " tokens of ", what.data.front());
  }
  host.messages.info("calibrated in ", human_seconds(steady_seconds() - begin));
  const std::string done = join("student ", run.config.attention, ", calibrated on ", source);
  if (is_joint()) {
    host.messages.info(done);
  } else {
    run.subject = done;
  }
}

// Stage attention of a method that has parameters.
void Preparation::learn_layers() {
  const auto shown =
      dump ? inputs_of(dump, *run.model, run.losses["context"] > 0) : inputs_of(teacher.model);
  auto stage = std::make_unique<AttentionStage>(shown, *run.model, run.losses);
  run.store = std::make_unique<nn::ParameterStore>(
      *run.model, [&](const nn::Module::NamedParameter& p) { return stage->trains(p); });
  run.plan = stage->plan(run.trainer.optimizer.attention_learning_rate, *what.feature_rate);
  if (run.valid) {  // through the model, as a dump does not have these windows
    auto of_valid =
        std::make_shared<AttentionStage>(inputs_of(teacher.model), *run.model, run.losses);
    run.evaluation = [of_valid, run = &run] { return evaluate_blocks(*of_valid, *run); };
  }
  run.objective = std::move(stage);
}

// The blocks in the run's directory, as brine_sea.attach() takes them.
void Preparation::save_blocks() {
  if (!host.is_first()) return;
  run.after = [run = &run, out = data::Path(plan.options.out)] {
    data::save_safetensors(out / "model.safetensors", nn::tensors_of(*run->model));
    data::write_file_atomic(out / "config.json", nn::config_text(run->config, nullptr));
  };
}

// The student shares the memory of the teacher's weights.
void Preparation::keep_base() {
  run.after = [model = teacher.model, hash = teacher.hash()] {
    check(nn::tensor_hash(nn::tensors_of(*model)) == hash,
          "distill: the teacher's weights changed while the student was trained");
  };
}

}  // namespace

std::vector<StagePlan> plan_stages(Distillation& what, const RunOptions& options) {
  std::optional<Stage> reached;
  if (options.resume) {
    const std::optional<Found> found = newest(options.out);
    check(found.has_value(), options.out,
          ": contains no checkpoint to resume from; start without --resume");
    reached = found->stage;
  }
  if (!what.model.empty()) {
    const nn::ModelConfig found = nn::load_config(what.model);
    if (!what.attention_keys.count("method")) what.student.attention = found.attention;
    what.model_rank = found.lora_rank;
  }
  if (what.joint.training.steps == 0) {
    what.joint = {};  // as a run without that stage records it
    if (what.follows()) what.stages = Stages::attention;
  }
  if (!what.stages && what.joint.training.steps) what.stages = Stages::both;
  if (!what.stages && reached)
    what.stages = reached == Stage::attention ? Stages::attention : Stages::joint;
  if (!what.stages) what.stages = what.defaults({}).stages;
  what.dumped_texts = what.task.task.empty() && !what.teacher.empty() && !what.dump.empty() &&
                      data::read_manifest(what.dump).spec.classes > 0;
  what.refuse_other_settings();
  std::vector<StagePlan> plans;
  if (what.has(Stage::attention) && reached != Stage::joint)
    plans.push_back({.stage = Stage::attention, .options = options});
  if (what.has(Stage::joint)) {
    check(what.follows() || reached != Stage::attention, options.out,
          ": is in stage attention; --stages attention,joint goes on with stage joint");
    plans.push_back({.stage = Stage::joint, .options = options});
    plans.back().options.resume = reached == Stage::joint;
  }
  check(!plans.empty(), options.out, ": is in stage joint already");
  return plans;
}

std::unique_ptr<TrainingRun> prepare(Distillation& what, const StagePlan& plan,
                                     const RunHost& host) {
  auto run = std::make_unique<TrainingRun>();
  Preparation preparation{.what = what, .plan = plan, .host = host, .run = *run};
  preparation.number_steps();
  claim_directory(*run, plan.options, host);
  check(!what.data.empty() || !what.dump.empty() || what.on_task(),
        "distill: --data or --dump is needed");
  if (what.self_taught()) {
    preparation.from_self();
  } else {
    preparation.from_teacher();
  }
  run->settings = json_text(data::schema_of(what).to_json());
  return run;
}

RunResult distil(Distillation& what, const RunOptions& options, const RunHost& host) {
  RunResult result;
  for (const StagePlan& plan : plan_stages(what, options)) {
    const std::unique_ptr<TrainingRun> run = prepare(what, plan, host);
    result = train(*run, plan.options, host);
    if (result.interrupted || result.out_of_time) break;  // in its stage; a resumed run goes on
  }
  return result;
}

}  // namespace brine::distill
