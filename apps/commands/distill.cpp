// brine distill: a student with another attention method learns from a teacher, which runs beside
// it or was dumped before.
#include "apps/cli/terminal.h"
#include "apps/shared/task_run.h"
#include "apps/shared/training.h"
#include "data/io/sha256.h"
#include "distill/teachers/dump_teacher.h"
#include "distill/teachers/self_teacher.h"
#include "nn/io/model_io.h"

namespace brine {
namespace {

struct Distill {
  std::string teacher, model, dump;
  std::vector<std::string> data;
  int64_t top_logits = 0;
  TaskKeys task{.task = {}, .data = {}, .valid_split = {}, .epochs = 20};
  TrainingKeys keys;
  TrainingRun parts;

  Distill() { parts.config.attention = "sea"; }

  void describe(data::Schema& s) {
    s.field("teacher", teacher,
            "Directory of the teacher, whose weights the student starts from; self: the student's "
            "own dense attention (losses approx and task)",
            {.required = true});
    s.field("model", model, "With --teacher self: the student, a model or run, that learns on");
    s.field("dump", dump, "Dump of the teacher; none: the teacher runs beside the student");
    s.field("data", data, "Text files or token shards to train on, or the directory of the task");
    s.field("task", task.task,
            "Distil a fine-tuned encoder on its task (batch_size is then 32 unless it is given): " +
                known_tasks());
    s.field("top_logits", top_logits,
            "Logits of a teacher beside the student that count in kd_task; 0 = all", {.min = 0});
    task.describe_training(s);
    keys.describe(s);
    s.section("losses", parts.losses);
    parts.config.describe_attention(s);
  }

  int run(const RunContext& context);
  // Opens the dump; `source` and `window` as in DumpTeacher::Expected.
  std::unique_ptr<distill::DumpTeacher> open_dump(const data::DumpSource& source, int64_t window,
                                                  const RunContext& context);
  void run_task(const nn::LoadedModel& loaded, const RunContext& context);
  int run_self(const RunContext& context);
};

// The decoder that an encoder can have, unless the user asked for another.
void choose_decoder(nn::ModelConfig& config, const RunContext& context) {
  const data::Schema::Field* decoder = context.keys.find("attention.decoder");
  if (config.shape().causal || !decoder || decoder->given) return;
  data::Schema settings;
  config.method().describe(settings);
  settings.set_text("decoder", {"paper"});
}

// Of the student's estimate; 0 where the method has none.
int64_t columns_of(const RunContext& context) {
  const data::Schema::Field* columns = context.keys.find("attention.columns");
  return columns && columns->active() ? *std::get<int64_t*>(columns->target) : 0;
}

std::unique_ptr<distill::DumpTeacher> Distill::open_dump(const data::DumpSource& source,
                                                         int64_t window,
                                                         const RunContext& context) {
  auto from = std::make_unique<distill::DumpTeacher>(
      dump, distill::DumpTeacher::Expected{source, window, parts.config.shape().causal,
                                           columns_of(context)});
  double& prob = parts.losses["prob"];
  if (from->is_pooled() && prob != 0 && !context.keys.find("losses.prob")->given) {
    prob = 0;
    log_info(dump, ": its attention is pooled into columns, so losses.prob is 0");
  }
  from->require(parts.losses.needs());
  parts.inputs["dump"] = data::sha256_file(dump + "/manifest.json");
  return from;
}

void Distill::run_task(const nn::LoadedModel& loaded, const RunContext& context) {
  const data::Task& chosen = data::task_named(task.task);
  refuse_idle(context, {"top_logits"}, "on a task", Given::otherwise);
  check(data.size() <= 1, "distill: a task has one directory of data, not ", data.size());
  check(loaded.model->labels() > 0, "distill: ", loaded.directory,
        " has no classification head; brine finetune makes one");
  if (!data.empty()) task.data = data.front();
  std::vector<std::string> labels = data::labels_of(chosen, task.data);
  check(class_map(parts.config, labels).empty(), "distill: the labels of ", loaded.directory,
        " have another order than the task's");
  if (!context.keys.find("batch_size")->given) keys.trainer.batch_size = 32;
  prepare_task(parts, keys, task, context);
  if (dump.empty()) {
    parts.teacher = std::make_unique<distill::OnlineTeacher>(loaded.model);
    return;
  }
  data::DumpSource source{.teacher_hash = loaded.hash(),
                          .tokenizer_hash = parts.tokenizer->hash(),
                          .corpus_hash = parts.inputs.at(task.train_split)};
  parts.teacher = open_dump(source, 0, context);
}

int Distill::run_self(const RunContext& context) {
  TrainingRun& run = parts;
  check(!model.empty(), "distill: --teacher self needs --model, the student");
  check(dump.empty() && task.task.empty() && top_logits == 0,
        "distill: --teacher self takes text, without dump, task and top_logits");
  check(!data.empty(), "distill: --data is needed");
  auto unless_given = [&](const char* key, double& weight) {
    if (!context.keys.find(join("losses.", key))->given) weight = 0;
  };
  unless_given("prob", run.losses["prob"]);  // of a student against itself it is 0, and costs T x T
  unless_given("context", run.losses["context"]);
  unless_given("kd", run.losses["kd"]);
  unless_given("kd_task", run.losses["kd_task"]);
  nn::LoadedModel loaded = nn::load_model(model, {.gradients = true});
  warn_of(loaded);
  check(loaded.model->attention_traits().sparse, "distill: ", model, " has attention '",
        loaded.config.attention, "', which has nothing to learn from its own dense attention");
  run.tokenizer = tokenizer_of(loaded);
  train_on(run, std::move(loaded), context, model);
  const int64_t positions = run.config.shape().max_positions;
  const int64_t window = keys.sequence_length ? keys.sequence_length : positions;
  check(window <= positions, "distill: sequence_length ", window, " is longer than the model's ",
        positions, " positions");
  run.inputs["tokenizer"] = run.tokenizer->hash();
  run.teacher = std::make_unique<distill::SelfTeacher>();
  run.subject = join("student ", run.config.attention, " in ", model, ", its own teacher");
  run.train = windows_of(load_texts(run, "data", data, window, keys.copies), window, context.seed,
                         keys.copies);
  if (!keys.valid.empty()) {
    run.valid = windows_of(load_texts(run, "valid", keys.valid, window, keys.copies), window, 0,
                           keys.copies);
  }
  return run_training(run, keys, context);
}

int Distill::run(const RunContext& context) {
  TrainingRun& run = parts;
  claim_directory(run, keys);
  if (task.task.empty()) refuse_task_keys(context);
  if (teacher == "self") return run_self(context);
  check(model.empty(), "distill: --model is for --teacher self");
  nn::LoadedModel loaded = nn::load_model(teacher);
  warn_of(loaded);
  check(nn::is_full_attention(loaded.config.attention), "distill: the teacher ", teacher,
        " has attention '", loaded.config.attention, "'; its losses are defined for a dense one");
  check(dump.empty() || top_logits == 0, "distill: top_logits is for a teacher beside the student");
  run.tokenizer = tokenizer_of(loaded);
  run.config.copy_sizes(loaded.config);
  choose_decoder(run.config, context);
  int64_t positions = run.config.shape().max_positions;
  int64_t window = keys.sequence_length ? keys.sequence_length : positions;
  check(window <= positions, "distill: sequence_length ", window, " is longer than the teacher's ",
        positions, " positions");
  run.model = nn::make_student(run.config, *loaded.model, context.seed);
  run.store = std::make_unique<nn::ParameterStore>(*run.model);
  run.inputs = {{"teacher", loaded.hash()}, {"tokenizer", run.tokenizer->hash()}};
  run.subject = join("student ", run.config.attention, ", teacher ", teacher,
                     dump.empty() ? " beside it" : " from " + dump);
  if (!task.task.empty()) {
    run_task(loaded, context);
    return run_training(run, keys, context);
  }
  check(!data.empty(), "distill: --data is needed");
  if (dump.empty()) {
    run.train = windows_of(load_texts(run, "data", data, window, keys.copies), window, context.seed,
                           keys.copies);
    run.teacher = std::make_unique<distill::OnlineTeacher>(loaded.model, top_logits);
  } else {
    check(keys.copies == 1, "distill: copies need a teacher beside the student, not a dump");
    data::TokenCorpus corpus = load_texts(run, "data", data, window);
    std::unique_ptr<distill::DumpTeacher> source =
        open_dump({loaded.hash(), run.tokenizer->hash(), corpus.hash()}, window, context);
    run.train = std::make_unique<distill::WindowSource>(std::move(corpus.tokens), window,
                                                        context.seed, source->windows());
    log_info(dump, ": ", run.train->size(), " of these windows");
    run.teacher = std::move(source);
  }
  if (!keys.valid.empty()) {
    run.valid = windows_of(load_texts(run, "valid", keys.valid, window, keys.copies), window, 0,
                           keys.copies);
  }
  return run_training(run, keys, context);
}

const RegisterSubcommand<Distill> registration("distill",
                                               "Distil a teacher into a student with SEA");

}  // namespace
}  // namespace brine
