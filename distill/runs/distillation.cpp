// A distillation from start to end: what is read, checked and decided before training starts.
#include "distill/runs/distillation.h"

#include <nlohmann/json.hpp>

#include "data/codec/sha256.h"
#include "data/io/json.h"
#include "distill/batches/task_source.h"
#include "distill/losses/loss_table.h"
#include "distill/runs/run_windows.h"
#include "distill/teachers/dump_teacher.h"
#include "distill/teachers/massive_activation.h"
#include "distill/teachers/self_teacher.h"
#include "nn/io/shared_student.h"

namespace brine::distill {
namespace {

// The common state of a preparation's parts.
struct Preparation {
  Distillation& what;
  const RunOptions& options;
  const RunHost& host;
  TrainingRun& run;

  // teacher: null if the student is the teacher, too.
  void resolve(bool causal, nn::Model* teacher = nullptr);
  int64_t window() const {
    return window_of(*what.recipe.training.sequence_length, what.recipe.student, "distill");
  }
  TextFiles text() const {
    return {.role = "data",
            .train = what.data,
            .valid = what.valid,
            .window = window(),
            .copies = what.copies};
  }
  void from_self();
  void from_teacher();
  void continue_student(const nn::LoadedModel& teacher);
  void on_text(const nn::LoadedModel& teacher);
  void mix(const nn::LoadedModel& teacher, const TextFiles& files);
  void on_task(const nn::LoadedModel& teacher);
};

void Preparation::resolve(bool causal, nn::Model* teacher) {
  RunFacts facts{.causal = causal, .task = what.task.task, .self_taught = what.self_taught()};
  if (!what.dump.empty()) {
    const data::DumpSpec spec = data::read_manifest(what.dump).spec;
    facts.pooled = spec.columns;
    std::optional<int64_t>& length = what.recipe.training.sequence_length;
    if (!what.on_task() && !length) length = spec.tokens;
  }
  if (options.resume) what.recipe.keep(stored_configuration(options.out));
  if (teacher && !what.recipe.losses["kd"]) {
    const std::optional<MassiveActivation> massive = massive_activation(*teacher);
    if (massive) facts.massive = massive->text();
  }
  for (const std::string& note : what.recipe.resolve(facts)) {
    host.messages.info(what.dump.empty() ? what.teacher : what.dump, ": ", note);
  }
  run.losses = what.recipe.losses.resolved();
}

void Preparation::from_self() {
  Recipe& recipe = what.recipe;
  check(!what.model.empty(), "distill: --teacher self needs --model, the student");
  check(what.dump.empty() && !what.on_task() && what.top_logits == 0,
        "distill: --teacher self takes text, without dump, task and top_logits");
  check(!what.mixes(), "distill: lengths and retrieval_share are not for --teacher self");
  check(!what.data.empty(), "distill: --data is needed");
  nn::LoadedModel loaded = load_model(what.model, host.messages, {.gradients = true});
  check(loaded.model->attention_traits().sparse, "distill: ", what.model, " has attention '",
        loaded.config.attention, "', which cannot learn from its own dense attention");
  run.tokenizer = tokenizer_of(loaded, host.messages);
  refuse_other_attention(recipe.attention_keys, recipe.student, loaded, what.model);
  resolve(loaded.config.shape().causal);
  train_on(run, recipe.student, std::move(loaded));
  run.config = recipe.student;
  run.inputs["tokenizer"] = run.tokenizer->hash();
  run.teacher = std::make_unique<SelfTeacher>();
  run.subject = join("student ", run.config.attention, " in ", what.model, ", its own teacher");
  use_text(run, text(), host);
}

void Preparation::from_teacher() {
  Recipe& recipe = what.recipe;
  bool calibrate = false;
  nn::LoadedModel teacher = load_model(what.teacher, host.messages);
  check(nn::is_full_attention(teacher.config.attention), "distill: the teacher ", what.teacher,
        " has attention '", teacher.config.attention, "'; its losses are defined for a dense one");
  check(what.dump.empty() || what.top_logits == 0,
        "distill: top_logits needs a teacher that runs next to the student");
  run.tokenizer = tokenizer_of(teacher, host.messages);
  recipe.student.copy_sizes(teacher.config);
  resolve(teacher.config.shape().causal, teacher.model.get());
  window();  // throws for one that is too long before any slow work
  run.inputs = {{"teacher", teacher.hash()}, {"tokenizer", run.tokenizer->hash()}};
  if (what.model.empty()) {
    run.config = recipe.student;
    run.model = nn::make_student(run.config, *teacher.model, host.seed);
    run.store = std::make_unique<nn::ParameterStore>(*run.model);
    calibrate = run.model->attention_traits().calibrates && !options.resume;
  } else {
    continue_student(teacher);
  }
  run.subject = join("student ", run.config.attention, ", teacher ", what.teacher,
                     what.dump.empty() ? " next to it" : " from " + what.dump);
  if (what.on_task()) {
    on_task(teacher);
  } else {
    on_text(teacher);
  }
  if (!calibrate) return;
  const int64_t tokens =
      nn::calibrate_attention(*run.model, *teacher.model, run.train->batch(0, 1).ids);
  host.messages.info(run.config.attention, ": calibrated on a window of ", tokens, " tokens");
}

// A student that learned before, from stage attention for example.
void Preparation::continue_student(const nn::LoadedModel& teacher) {
  Recipe& recipe = what.recipe;
  nn::LoadedModel loaded = load_model(what.model, host.messages, {.gradients = true});
  const std::vector<std::string> others =
      data::differences(nn::sizes_to_json(teacher.config), nn::sizes_to_json(loaded.config));
  check(others.empty(), "distill: the student ", what.model, " has other sizes than the teacher; ",
        others.empty() ? "" : others.front());
  refuse_other_attention(recipe.attention_keys, recipe.student, loaded, what.model);
  train_on(run, recipe.student, std::move(loaded));
  run.config = recipe.student;
}

void Preparation::on_text(const nn::LoadedModel& teacher) {
  const TextFiles files = text();
  if (what.dump.empty()) {
    check(!what.data.empty(), "distill: --data is needed");
    run.teacher = std::make_unique<OnlineTeacher>(teacher.model, what.top_logits);
    if (what.mixes()) {
      mix(teacher, files);
    } else {
      use_text(run, files, host);
    }
    return;
  }
  check(!what.mixes(), "distill: lengths and retrieval_share need a teacher that runs next to the ",
        "student, not a dump");
  check(what.copies == 1,
        "distill: copies need a teacher that runs next to the student, not a dump");
  std::shared_ptr<DumpTeacher> dump =
      use_dump(run, {what.dump, what.trust_dump}, teacher, files, host);
  dump->require(run.losses.needs());
  run.teacher = std::move(dump);
  use_valid_text(run, files, host);
}

void Preparation::mix(const nn::LoadedModel& teacher, const TextFiles& files) {
  check(what.copies == 1, "distill: copies are for windows of one length without retrieval");
  if (!what.text.lengths) what.text.lengths = std::to_string(files.window);
  if (!what.text.retrieval_share) what.text.retrieval_share = 0;
  run.trainer = what.recipe.training.resolved();
  use_mixed_text(run, {.text = what.text, .files = files, .model_directory = teacher.directory},
                 host);
}

void Preparation::on_task(const nn::LoadedModel& teacher) {
  Recipe& recipe = what.recipe;
  check(what.data.size() <= 1, "distill: a task has one directory of data, not ", what.data.size());
  check(teacher.model->labels() > 0, "distill: ", teacher.directory,
        " has no classification head; brine finetune makes one");
  TaskSettings settings = what.task;
  if (!what.data.empty()) settings.data = what.data.front();
  use_task(run, settings, *recipe.training.sequence_length, host);
  auto plan = [&] {
    recipe.training.plan_epochs(*recipe.epochs, settings.warmup_ratio, run.train->size());
  };
  if (what.dump.empty()) {
    plan();
    run.teacher = std::make_unique<OnlineTeacher>(teacher.model);
    return;
  }
  auto dump = std::make_shared<DumpTeacher>(
      what.dump,
      DumpTeacher::Expected{.source = {.teacher_hash = teacher.hash(),
                                       .tokenizer_hash = run.tokenizer->hash(),
                                       .corpus_hash = run.inputs.at(settings.train_split)},
                            .window = 0,
                            .shape = run.config.shape(),
                            .columns = columns_of(run.config)});
  dump->require(run.losses.needs());
  run.inputs["dump"] = data::sha256_file(what.dump + "/manifest.json");
  const auto split = dynamic_cast<const TaskSource&>(*run.train).shared_tokens();
  const auto texts = dump->texts(split);
  if (texts != split) {
    host.messages.info(what.dump, ": ", texts->texts.size(), " of these texts");
    run.train = std::make_unique<TaskSource>(texts, host.seed);
  }
  plan();
  if (!what.trust_dump)
    dump->check_sample(teacher.model, dynamic_cast<const TaskSource&>(*run.train).gather({0}));
  run.teacher = std::move(dump);
}

// Stage attention alone; the decided settings are those of the distillation.
std::unique_ptr<TrainingRun> prepare_blocks(Distillation& what, const RunOptions& options,
                                            const RunHost& host) {
  check(!what.self_taught() && what.model.empty() && !what.on_task() && what.copies == 1 &&
            what.top_logits == 0,
        "distill: stage attention takes a teacher and text, or a dump, without model, task, copies "
        "and top_logits");
  Recipe& recipe = what.recipe;
  check(!recipe.name && !recipe.epochs, "distill: recipe and epochs are for stage joint");
  for (const Loss& loss : losses()) {
    const bool learned = loss.name == "approx" || loss.name == "context";
    check(learned || recipe.losses[loss.name].value_or(0) == 0, "distill: losses.", loss.name,
          " is for stage joint; stage attention has approx and context");
  }
  // Without a method or one of its keys, as a conversion decides.
  if (recipe.attention_keys.empty() && recipe.student.attention == Recipe().student.attention)
    recipe.student.attention = Conversion().student.attention;
  Conversion c;
  c.teacher = what.teacher;
  c.dump = what.dump;
  c.trust_dump = what.trust_dump;
  c.data = what.data;
  c.valid = what.valid;
  c.stages = Stages::attention;
  c.text = what.text;
  c.training = recipe.training;
  c.approx = recipe.losses["approx"];
  c.context = recipe.losses["context"];
  c.student = recipe.student;
  c.attention_keys = recipe.attention_keys;
  std::unique_ptr<TrainingRun> run =
      prepare(c, {.stage = Stage::attention, .options = options}, host);
  what.text = c.text;
  recipe.student.attention = c.student.attention;
  recipe.training = c.training;
  recipe.losses["approx"] = c.approx;
  recipe.losses["context"] = c.context;
  run->settings = json_text(data::schema_of(what).to_json());
  return run;
}

}  // namespace

void Distillation::describe(data::Schema& s) {
  s.field("teacher", teacher,
          "Teacher whose weights the student starts from; self: its dense attention; none: blocks "
          "alone");
  s.field("model", model, "Student that learns on, a model or run; none: a new one");
  s.choice("stage", stage, kStages,
           "attention: each layer learns from the teacher, base frozen; joint: the whole student "
           "learns");
  text.describe(s);
  s.field("dump", dump, "Dump of the teacher; none: the teacher runs next to the student");
  s.field("trust_dump", trust_dump, kTrustDumpHelp, {.transient = true});
  s.field("data", data, "Text files or token shards to train on, or the directory of the task");
  s.field("task", task.task, "Task of a fine-tuned encoder to distil (finetune --help: names)");
  s.field("top_logits", top_logits,
          "Logits per row of a teacher without a dump that kd_task uses; 0 = all", {.min = 0});
  task.describe(s);
  s.field("epochs", recipe.epochs,
          "Passes over a task's texts, which give the steps; recipe short: 300 steps",
          {.above = 0, .unset = "20.0"});
  s.field("valid", valid, "Text files or token shards to evaluate on");
  s.field("copies", copies, "How often a window repeats its first tokens; 1 = plain text",
          {.min = 1});
  recipe.describe(s);
}

std::unique_ptr<TrainingRun> prepare(Distillation& what, const RunOptions& options,
                                     const RunHost& host) {
  check(!what.teacher.empty() || (what.stage == Stage::attention && !what.dump.empty()),
        "distill: --teacher is needed; only --stage attention with --dump learns without one");
  if (what.stage == Stage::attention) return prepare_blocks(what, options, host);
  auto run = std::make_unique<TrainingRun>();
  Preparation preparation{what, options, host, *run};
  claim_directory(*run, options, host);
  if (what.self_taught()) {
    preparation.from_self();
  } else {
    preparation.from_teacher();
  }
  run->trainer = what.recipe.training.resolved();
  run->settings = json_text(data::schema_of(what).to_json());
  return run;
}

}  // namespace brine::distill
