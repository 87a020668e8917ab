// A training run: its model, its batches and its directory, put together before the trainer starts.
#pragma once

#include <iosfwd>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/io/directory_lock.h"
#include "distill/log/messages.h"
#include "distill/trainer.h"
#include "nn/io/model_io.h"

namespace brine::distill {

// Where a run is kept and how it is started: keys of every command that trains.
struct RunOptions {
  std::string out = {};   // directory of the run
  int64_t log_steps = 0;  // also print a line every so many steps; 0 = by time only
  bool resume = false, dry_run = false, anomaly = false;

  void describe(data::Schema& s);
};

// What surrounds a run; every part may be left out.
struct RunHost {
  uint64_t seed = 1;
  Messages messages = {};
  std::function<std::string()> stop = {};  // as in TrainerParts
  // Settings of the run as JSON, compared when it is resumed; asked when all of them are decided.
  // Empty: TrainingRun::settings.
  std::function<std::string()> configuration = {};
  // Keys of these settings, as in TrainerParts; may be null.
  const data::Schema* keys = nullptr;
  // Called once with the directory of a new run.
  std::function<void(const std::string&)> keep_configuration = {};
  ProgressConfig progress = {};
  std::ostream* terminal = nullptr;  // for the progress; none: nothing is shown
};

// A run about to begin; everything the trainer needs stays alive in here.
struct TrainingRun {
  nn::ModelConfig config;
  std::shared_ptr<nn::Model> model;
  std::unique_ptr<nn::ParameterStore> store;
  std::unique_ptr<Teacher> teacher;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<BatchSource> train;
  std::unique_ptr<WindowSource> valid;
  std::function<Values()> evaluation;  // of a task
  LossConfig losses;
  TrainerConfig trainer;
  std::string settings;  // of the run as JSON, when all of them are decided
  std::string subject;   // "student sea, teacher runs/teacher"
  // SHA-256 of what the run reads, by role and file: "teacher", "train.bible.txt". Recorded with
  // the configuration, so that a resumed run is refused when one of them has changed.
  std::map<std::string, std::string> inputs;
  std::unique_ptr<data::DirectoryLock> lock;  // on the run's directory
};

// Text files as tokens for windows of `window` tokens that contain `copies` copies of a text; says
// how many windows and tokens there are and what is dropped.
data::TokenCorpus load_texts(const std::vector<std::string>& files,
                             const data::Tokenizer& tokenizer, int64_t window, int64_t copies,
                             const Messages& messages);

// The text of a run: files to train on and to evaluate on.
struct TextFiles {
  std::string role;  // of the files to train on: "train", "data"
  std::vector<std::string> train, valid;
  int64_t window = 0, copies = 1;
};
// Sets the batches of both and records the hashes of the files; the tokenizer must be there.
void use_text(TrainingRun& run, const TextFiles& text, const RunHost& host);
// Those to evaluate on alone.
void use_valid_text(TrainingRun& run, const TextFiles& text, const RunHost& host);
// One file list of a run, with its hashes recorded.
data::TokenCorpus load_run_texts(TrainingRun& run, const std::string& role,
                                 const std::vector<std::string>& files, const TextFiles& text,
                                 const RunHost& host);

// All windows of a corpus that load_texts() gave for the same `window` and `copies`.
std::unique_ptr<WindowSource> windows_of(data::TokenCorpus corpus, int64_t window, uint64_t seed,
                                         int64_t copies = 1);

// The length of a run's windows: `asked`, or all positions for 0. Throws when that is too long.
int64_t window_of(int64_t asked, const nn::ModelConfig& config, const std::string& what);

// Throws when the model in `path` fixes a setting that was chosen: "attention.k cannot be set".
// `free` are those that it does not fix.
void refuse_chosen(const std::set<std::string>& chosen, const std::string& section,
                   const std::string& path, const std::set<std::string>& free);
// Makes `run` go on with a loaded model; `config` gets its sizes and its attention's settings.
void train_on(TrainingRun& run, nn::ModelConfig& config, nn::LoadedModel loaded);

// Refuses a run directory that contains a run (without resume), contains none (with it), or in
// which another process works; locks one that exists. To be called before anything slow.
void claim_directory(TrainingRun& run, const RunOptions& options);

// Says how many more tokens the model has than its tokenizer: a few fill its vocabulary up to a
// round number, many are a reason to warn.
void compare_vocabularies(const nn::ModelConfig& config, const data::Tokenizer& tokenizer,
                          const Messages& messages);
// The tokenizer next to a model, compared with it.
std::unique_ptr<data::Tokenizer> tokenizer_of(const nn::LoadedModel& loaded,
                                              const Messages& messages);
// Loads a model and says which damaged checkpoints of its run were passed over.
nn::LoadedModel load_model(const std::string& path, const Messages& messages,
                           const nn::LoadOptions& options = {});

// The settings that the run in a directory was made with, from its newest checkpoint that can be
// read; null when there is none.
data::Json stored_configuration(const std::string& run_dir);

struct RunResult {
  bool interrupted = false;  // by RunHost::stop; its checkpoint is saved
  TrainOutcome outcome;
  std::string dry_run;  // what a dry run measured, as lines; nothing was trained
};
// Makes the directory, resumes when asked, trains, says how it ended.
RunResult train(TrainingRun& run, const RunOptions& options, const RunHost& host);

}  // namespace brine::distill
