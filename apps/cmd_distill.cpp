// brine distill: a student with another attention method learns from a teacher, which runs beside
// it or was dumped before.
#include "apps/terminal.h"
#include "apps/training.h"
#include "data/sha256.h"
#include "distill/dump_teacher.h"
#include "distill/model_io.h"

namespace brine {
namespace {

struct Distill {
  std::string teacher, dump;
  std::vector<std::string> data;
  int64_t top_logits = 0;
  TrainingKeys keys;
  TrainingRun parts;

  Distill() { parts.config.attention = "sea"; }

  void describe(nn::Schema& s) {
    s.field("teacher", teacher, "Directory of the teacher, whose weights the student starts from",
            {.required = true});
    s.field("dump", dump, "Dump of the teacher; none: the teacher runs beside the student");
    s.field("data", data, "Text files to train on", {.required = true});
    s.field("top_logits", top_logits,
            "Logits of a teacher beside the student that count in kd_task; 0 = all", {.min = 0});
    keys.describe(s);
    s.section("losses", parts.losses);
    parts.config.describe_attention(s);
  }

  int run(const RunContext& context);
};

int Distill::run(const RunContext& context) {
  TrainingRun& run = parts;
  claim_directory(run, keys);
  distill::LoadedModel loaded = distill::load_model(teacher);
  warn_of(loaded);
  check(loaded.config.attention == "dense", "distill: the teacher ", teacher, " has attention '",
        loaded.config.attention, "'; its losses are defined for a dense one");
  check(dump.empty() || top_logits == 0, "distill: top_logits is for a teacher beside the student");
  run.tokenizer = distill::tokenizer_of(loaded.directory);
  run.config.copy_sizes(loaded.config);
  int64_t positions = run.config.shape().max_positions;
  int64_t window = keys.sequence_length ? keys.sequence_length : positions;
  check(window <= positions, "distill: sequence_length ", window, " is longer than the teacher's ",
        positions, " positions");
  run.model = distill::make_student(run.config, *loaded.model, context.seed);
  run.store = std::make_unique<nn::ParameterStore>(*run.model);
  run.inputs = {{"teacher", loaded.hash()}, {"tokenizer", run.tokenizer->hash()}};
  if (dump.empty()) {
    run.train = windows_of(load_texts(run, "data", data, window, keys.copies), window, context.seed,
                           keys.copies);
    run.teacher = std::make_unique<distill::OnlineTeacher>(loaded.model, top_logits);
  } else {
    check(keys.copies == 1, "distill: copies need a teacher beside the student, not a dump");
    data::TokenCorpus corpus = load_texts(run, "data", data, window);
    auto source = std::make_unique<distill::DumpTeacher>(
        dump, distill::DumpTeacher::Expected{{loaded.hash(), run.tokenizer->hash(), corpus.hash()},
                                             window,
                                             run.config.shape().causal});
    run.inputs["dump"] = data::sha256_file(dump + "/manifest.json");
    run.train = std::make_unique<distill::WindowSource>(std::move(corpus.tokens), window,
                                                        context.seed, source->windows());
    log_info(dump, ": ", run.train->size(), " of these windows");
    run.teacher = std::move(source);
  }
  if (!keys.valid.empty()) {
    run.valid = windows_of(load_texts(run, "valid", keys.valid, window, keys.copies), window, 0,
                           keys.copies);
  }
  run.subject = join("student ", run.config.attention, ", teacher ", teacher,
                     dump.empty() ? " beside it" : " from " + dump);
  return run_training(run, keys, context);
}

const RegisterSubcommand<Distill> registration("distill",
                                               "Distil a teacher into a student with SEA");

}  // namespace
}  // namespace brine
