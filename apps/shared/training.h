// What `train` and `distill` share: keys, text, the run's directory, the loop and the last lines.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/cli/idle.h"
#include "apps/cli/program.h"
#include "data/corpus/corpus.h"
#include "data/io/directory_lock.h"
#include "data/tokenizer/tokenizer.h"
#include "distill/trainer.h"
#include "nn/io/model_io.h"

namespace brine {

// Keys of every training run.
struct TrainingKeys {
  std::vector<std::string> valid;
  std::string out;
  int64_t sequence_length = 0;  // 0 = the model's positions
  int64_t copies = 1;           // see WindowSource
  bool resume = false, dry_run = false, anomaly = false;
  int64_t log_steps = 0;
  distill::TrainerConfig trainer;

  void describe(data::Schema& s);
  // The same without what only windows of plain text have.
  void describe_run(data::Schema& s);
};

// A run about to begin; everything the trainer needs stays alive in here.
struct TrainingRun {
  nn::ModelConfig config;
  std::shared_ptr<nn::Model> model;
  std::unique_ptr<nn::ParameterStore> store;
  std::unique_ptr<distill::Teacher> teacher;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<distill::BatchSource> train;
  std::unique_ptr<distill::WindowSource> valid;
  std::function<distill::Values()> evaluation;  // of a task
  distill::LossConfig losses;
  std::string subject;  // "student sea, teacher runs/teacher"
  // SHA-256 of what the run reads, by role and file: "teacher", "train.bible.txt". Recorded with
  // the configuration, so that a resumed run is refused when one of them has changed.
  std::map<std::string, std::string> inputs;
  std::unique_ptr<data::DirectoryLock> lock;  // on the run's directory
};

// Text files as tokens for windows of `window` tokens that hold `copies` copies of a text; prints
// windows, tokens and what is dropped.
data::TokenCorpus load_texts(const std::vector<std::string>& files,
                             const data::Tokenizer& tokenizer, int64_t window, int64_t copies = 1);
// The same of a run's texts (role: "train", "valid"), with its tokenizer; records their hashes.
data::TokenCorpus load_texts(TrainingRun& run, const std::string& role,
                             const std::vector<std::string>& files, int64_t window,
                             int64_t copies = 1);
// Throws at a key of that section that was given although the model in `path` fixes it.
void refuse_given(const data::Schema& keys, const std::string& section, const std::string& path);

// Makes `run` go on with a loaded model under its own settings, which may not be given.
void train_on(TrainingRun& run, nn::LoadedModel loaded, const RunContext& context,
              const std::string& path);

// All windows of a corpus that load_texts() gave for the same `window` and `copies`.
std::unique_ptr<distill::WindowSource> windows_of(data::TokenCorpus corpus, int64_t window,
                                                  uint64_t seed, int64_t copies = 1);

// Refuses a run directory that holds a run (without --resume), holds none (with it), or in which
// another process works; keeps others out of one that exists. To be called before anything slow.
void claim_directory(TrainingRun& run, const TrainingKeys& keys);

// Says how many more tokens the model has than its tokenizer: a few fill its vocabulary up to a
// round number, many are a reason to warn.
void compare_vocabularies(const nn::ModelConfig& config, const data::Tokenizer& tokenizer);
// The tokenizer beside a model, compared with it.
std::unique_ptr<data::Tokenizer> tokenizer_of(const nn::LoadedModel& loaded);

// Says which damaged checkpoints were passed over when the model was loaded.
void warn_of(const nn::LoadedModel& loaded);

// Makes the directory, resumes when asked, trains, prints the outcome. Returns the exit status: 0,
// or 130 when a signal ended the run early (its checkpoint is saved).
int run_training(TrainingRun& run, const TrainingKeys& keys, const RunContext& context);

// Prints parameters, memory and time of one step, measured with one step that is thrown away.
void print_dry_run(TrainingRun& run, const TrainingKeys& keys, uint64_t seed);

}  // namespace brine
