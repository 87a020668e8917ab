// The frame around the trainer.
#include "apps/shared/training.h"

#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/stop_signals.h"
#include "apps/cli/terminal.h"
#include "apps/shared/device_memory.h"
#include "data/checkpoint/checkpoint.h"
#include "data/io/file_io.h"
#include "data/io/json.h"
#include "tensor/device/allocator.h"

namespace brine {
namespace fs = std::filesystem;

void TrainingKeys::describe(data::Schema& s) {
  s.field("valid", valid, "Text files or token shards to evaluate on");
  s.field("copies", copies,
          "A window repeats sequence_length / copies tokens of the text so often; 1 = plain text",
          {.min = 1});
  describe_run(s);
}

void TrainingKeys::describe_run(data::Schema& s) {
  s.field("out", out, "Directory of the run", {.required = true});
  s.field("sequence_length", sequence_length,
          "Tokens of a window, or of the longest text of a task; 0 = the model's positions",
          {.min = 0});
  s.field("log_steps", log_steps, "Also print a line every so many steps; 0 = by time only",
          {.min = 0});
  trainer.describe(s);
  s.field("resume", resume, "Continue the run in --out from its newest checkpoint",
          {.transient = true});
  s.field("dry_run", dry_run, "Print parameters, memory and time, train nothing",
          {.transient = true});
  s.field("anomaly", anomaly,
          "Stop at the first op that makes a NaN or infinity, and name it; slow",
          {.transient = true});
}

data::TokenCorpus load_texts(const std::vector<std::string>& files,
                             const data::Tokenizer& tokenizer, int64_t window, int64_t copies) {
  data::TokenCorpus corpus =
      data::load_corpus(files, tokenizer, std::max<int64_t>(window / copies, 2));
  std::string name = files.size() == 1 ? files[0] : join(files.size(), " files");
  log_info(name, ": ", corpus.tokens->size(), " tokens, ", corpus.windows(), " windows of ",
           corpus.window_tokens, copies > 1 ? join(", each ", copies, " times in a row") : "", ", ",
           corpus.dropped(), " tokens at the end dropped");
  return corpus;
}

data::TokenCorpus load_texts(TrainingRun& run, const std::string& role,
                             const std::vector<std::string>& files, int64_t window,
                             int64_t copies) {
  data::TokenCorpus corpus = load_texts(files, *run.tokenizer, window, copies);
  for (size_t i = 0; i < files.size(); ++i) {
    run.inputs[role + "." + files[i]] = corpus.text_hashes[i];
  }
  return corpus;
}

std::unique_ptr<distill::WindowSource> windows_of(data::TokenCorpus corpus, int64_t window,
                                                  uint64_t seed, int64_t copies) {
  return std::make_unique<distill::WindowSource>(std::move(corpus.tokens), window, seed,
                                                 std::vector<int64_t>{}, copies);
}

void claim_directory(TrainingRun& run, const TrainingKeys& keys) {
  if (keys.dry_run) return;
  bool there = fs::exists(keys.out);
  check(!there || fs::is_directory(keys.out), keys.out, ": not a directory");
  if (there && !run.lock) {
    run.lock = std::make_unique<data::DirectoryLock>(keys.out, "is working on this run");
  }
  bool holds = there && !data::list_checkpoints(keys.out).empty();
  check(keys.resume || !holds, keys.out,
        ": already holds a run; add --resume or give another directory");
  check(!keys.resume || holds, keys.out, ": holds no checkpoint to resume from");
}

namespace {

distill::TrainerParts parts_of(TrainingRun& run, const TrainingKeys& keys,
                               const RunContext& context, const std::string& configuration,
                               const StopSignals& signals) {
  return {.model = *run.model,
          .store = *run.store,
          .config = run.config,
          .teacher = run.teacher.get(),
          .losses = run.losses,
          .train = *run.train,
          .valid = run.valid.get(),
          .evaluation = run.evaluation,
          .tokenizer = run.tokenizer.get(),
          .run_dir = keys.out,
          .configuration = configuration,
          .keys = &context.keys,
          .seed = context.seed,
          .stop = [&signals] { return signals.name(); }};
}

}  // namespace

void print_dry_run(TrainingRun& run, const TrainingKeys& keys, uint64_t seed) {
  int64_t parameters = nn::parameter_count(*run.model);
  distill::Objective objective(*run.model, run.teacher.get(), run.losses);
  RandomStream random{.seed = seed, .stream = 2};
  double seconds = 0;
  reset_peak();
  for (int64_t i = 0; i < 2; ++i) {  // the first call fills caches
    auto start = std::chrono::steady_clock::now();
    distill::LossTerms terms;
    objective.run(run.train->batch(i, keys.trainer.batch_size),
                  {.random = &random, .recompute = keys.trainer.recompute}, terms);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  double step = seconds * double(keys.trainer.accumulate);
  double total = step * double(keys.trainer.steps);
  if (keys.trainer.max_seconds > 0) total = std::min(total, keys.trainer.max_seconds);
  double memory = double(allocator_stats().peak_live) + 8.0 * double(parameters);
  std::cout << run.subject << "\n"
            << "parameters        " << human_count(double(parameters)) << "\n"
            << "memory at peak    " << human_bytes(memory) << "\n"
            << "a checkpoint      " << human_bytes(12.0 * double(parameters)) << " on disk\n"
            << "tokens a step     "
            << keys.trainer.batch_size * keys.trainer.accumulate * run.train->window() << "\n"
            << "a step            " << human_seconds(step) << "\n"
            << "the run           " << human_seconds(total) << "\n";
}

void refuse_given(const data::Schema& keys, const std::string& section, const std::string& path) {
  for (const data::Schema::Field& f : keys.fields()) {
    bool fixed = f.given && f.active() && f.chosen && f.key.rfind(section, 0) == 0;
    check(!fixed, f.key, " cannot be set, ", path, " has its own");
  }
}

void train_on(TrainingRun& run, nn::LoadedModel loaded, const RunContext& context,
              const std::string& path) {
  refuse_given(context.keys, "attention.", path);
  run.inputs["model"] = loaded.hash();
  run.config.copy_sizes(loaded.config);
  // In place: context.keys points into run.config.
  data::Schema theirs, ours;
  loaded.config.describe_attention(theirs);
  run.config.describe_attention(ours);
  ours.set_all(theirs.to_json());
  run.model = loaded.model;
  run.store = std::move(loaded.store);
}

void compare_vocabularies(const nn::ModelConfig& config, const data::Tokenizer& tokenizer) {
  constexpr int64_t kPadding = 128;
  const int64_t model = config.shape().vocab_size, known = tokenizer.vocab_size();
  const std::string both = join("the model has ", model, " tokens, the tokenizer ", known);
  if (model > known + kPadding) {
    log_warning(both, "; is it the model's own?");
  } else if (model > known) {
    log_info(both, "; the others are padding");
  }
}

std::unique_ptr<data::Tokenizer> tokenizer_of(const nn::LoadedModel& loaded) {
  std::unique_ptr<data::Tokenizer> tokenizer = nn::tokenizer_of(loaded.directory);
  compare_vocabularies(loaded.config, *tokenizer);
  return tokenizer;
}

void warn_of(const nn::LoadedModel& loaded) {
  for (const std::string& why : loaded.notes) log_warning("checkpoint skipped: ", why);
}

int run_training(TrainingRun& run, const TrainingKeys& keys, const RunContext& context) {
  const bool scales = keys.trainer.loss_scale.active();
  if (!scales) {
    refuse_idle(context, {"loss_scale.initial", "loss_scale.growth_interval"},
                "without --compute f16 or --loss-scale.enabled on", Given::otherwise);
  }
  log_info(run.subject, ", ", human_count(double(nn::parameter_count(*run.model))), " parameters");
  if (keys.dry_run) {
    print_dry_run(run, keys, context.seed);
    return 0;
  }
  std::error_code error;
  fs::create_directories(keys.out, error);
  check(!error, keys.out, ": cannot be made: ", error.message());
  claim_directory(run, keys);
  set_anomaly_detection(keys.anomaly);
  data::Json configuration = context.keys.to_json();
  configuration.erase("out");  // a run may be moved
  if (configuration.at("compute") == "f32")
    configuration.erase("compute");  // as older runs have it
  if (!scales) configuration.erase("loss_scale");
  configuration["inputs"] = run.inputs;
  StopSignals signals;
  distill::Trainer trainer(parts_of(run, keys, context, json_text(configuration), signals),
                           keys.trainer);
  if (keys.resume) {
    for (const std::string& why : trainer.resume()) log_warning("checkpoint skipped: ", why);
    bool evaluated =
        (!run.valid && !run.evaluation) || distill::has_evaluation(keys.out, trainer.step());
    if (trainer.finished() && evaluated) {
      log_info(keys.out, ": the run is finished, ", trainer.step(), " steps; nothing left to do");
      return 0;
    }
    log_info("resuming at step ", trainer.step());
  } else {
    keep_configuration(context, keys.out);
    if (run.tokenizer) run.tokenizer->save(keys.out);
  }
  distill::LogConfig log_config;
  if (keys.resume) log_config.resume_step = trainer.step();
  log_config.progress = {.every_seconds = context.quiet ? 1e9 : 10,
                         .every_steps = keys.log_steps,
                         .columns = is_terminal() && !context.quiet ? terminal_columns() : 0};
  distill::RunLog log(keys.out, std::cerr, log_config);
  distill::TrainOutcome done = trainer.run(log);
  if (done.skipped) log_warning(done.skipped, " steps were skipped: their loss was not finite");
  if (done.overflows)
    log_info(done.overflows, " steps were skipped: their scaled gradient overflowed");
  log_info(done.interrupted ? "interrupted at step " : "done: ", done.steps, " steps, ",
           human_count(double(done.tokens)), " tokens in ", human_seconds(done.seconds), ", ",
           human_count(double(done.tokens) / std::max(done.seconds, 1e-9)), " tokens/s, ",
           peak_memory(), ", ", keys.out);
  return done.interrupted ? 130 : 0;
}

}  // namespace brine
