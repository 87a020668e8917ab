// A training run: its model, its batches and its directory, assembled before the trainer starts,
// and whether it fits into memory.
#pragma once

#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/io/temporary.h"
#include "distill/inputs/models.h"
#include "distill/log/messages.h"
#include "distill/trainer.h"
#include "nn/io/model_io.h"

namespace brine::distill {

// Where a run is stored and how it starts: keys of every command that trains.
struct RunOptions {
  std::string out = {};       // directory of the run
  int64_t log_steps = 0;      // also print a line every so many steps; 0 = by time only
  double rank_seconds = 600;  // how long a rank waits for others
  bool nccl = true;           // NCCL sums gradients between GPUs, if it is found
  bool resume = false, dry_run = false, anomaly = false;
  bool force = false;  // also where its memory does not suffice

  void describe(data::Schema& s);
};

// The environment of a run; every member may be empty.
struct RunHost {
  uint64_t seed = 1;
  Messages messages = {};
  std::function<std::string()> stop = {};  // as in TrainerHost
  // Settings of the run as JSON, compared when it is resumed; called when all of them are decided.
  // Empty: TrainingRun::settings.
  std::function<std::string()> configuration = {};
  // Called once with the directory of a new run.
  std::function<void(const std::string&)> save_configuration = {};
  ProgressConfig progress = {};
  std::ostream* terminal = nullptr;  // for the progress; none: nothing is shown
  // The processes that share the run, as in TrainerHost; only the first one has messages and a
  // terminal. `program` identifies what each of them runs: version and commit.
  Communicator* ranks = nullptr;
  std::string program = {};

  bool is_first() const { return !ranks || ranks->is_first(); }
};

// A run that is ready to start: what is trained, and what its directory and its messages need.
// Without a store nothing is trained: the student is only written.
struct TrainingRun : TrainerParts {
  std::vector<std::string> other_stage;  // keys that are not part of this stage's record
  std::function<void()> after;           // called when training has ended; may throw
  std::string settings;                  // of the run as JSON, when all of them are decided
  std::string subject;                   // "student sea, teacher runs/teacher"
  std::string windows;                   // lengths in words; empty: one length
  std::string no_gain;                   // why attention will not take less time; for a dry run
  // SHA-256 of the run's inputs, by role and file: "teacher", "train.bible.txt". Recorded with the
  // configuration; a resumed run with another hash is an error.
  std::map<std::string, std::string> inputs;
  std::unique_ptr<data::DirectoryLock> lock;  // lock of the run's directory
};

// The text of a run: files to train on and to evaluate on.
struct TextFiles {
  std::string role;  // role of the files to train on: "train", "data"
  std::vector<std::string> train, valid;
  int64_t window = 0;
};
// Sets the batches of both and records the hashes of the files; requires the tokenizer.
void use_text(TrainingRun& run, const TextFiles& text, const RunHost& host);
// Only those to evaluate on.
void use_valid_text(TrainingRun& run, const TextFiles& text, const RunHost& host);
// One file list of a run, with its hashes recorded.
data::TokenCorpus load_run_texts(TrainingRun& run, const std::string& role,
                                 const std::vector<std::string>& files, const TextFiles& text,
                                 const RunHost& host);

// Throws when a setting was set (`chosen`, keys of `section`) to another value than the model in
// `path` has. `given` and `theirs` are the section's values as JSON.
void refuse_other(const std::set<std::string>& chosen, const std::string& section,
                  const data::Json& given, const data::Json& theirs, const std::string& path);
// The same of the section "attention" of two configs.
void refuse_other_attention(const std::set<std::string>& chosen, nn::ModelConfig& given,
                            const nn::LoadedModel& theirs, const std::string& path);
// Makes `run` continue with a loaded model; `config`, the run's from now on, gets its sizes and its
// attention's settings.
void train_on(TrainingRun& run, nn::ModelConfig& config, nn::LoadedModel loaded);

// Clears what the files of `model` say about tokens, unless the run has that model's tokenizer.
void clear_other_tokens(TrainingRun& run, const std::string& model);

// Throws for a run directory that contains a run (without resume) or none (with resume), or
// something else (data::refuse_occupied), or that another process uses; locks an existing one. Call
// this before any slow work. The first rank does it for all. A dry run of a resumed run is checked
// without a lock, other dry runs are not.
void claim_directory(TrainingRun& run, const RunOptions& options, const RunHost& host);

// The settings of the run in a directory, from its newest readable checkpoint; null when there is
// none.
data::Json stored_configuration(const std::string& run_dir);

struct RunResult {
  bool interrupted = false;  // by RunHost::stop; the checkpoint is saved
  bool out_of_time = false;  // max_seconds ended it before its last step
  TrainOutcome outcome;
  std::string dry_run;  // what a dry run measured, as lines; nothing was trained
};
// Makes the directory, resumes if requested, trains, and reports how the run ended.
RunResult train(TrainingRun& run, const RunOptions& options, const RunHost& host);

// Whether a run fits into the machine's memory, before it starts.

// Numbers of micro-batches of a run; of a very long one only its beginning is looked at.
struct RunBatches {
  int64_t longest = 0;  // of those with the most tokens in a row, the first
  int64_t usual = 0;    // the nearest to the mean
  bool differ = false;  // in their lengths
};
RunBatches batches_of(const TrainingRun& run);

// Bytes that a step of the run needs beyond those that are allocated, with the optimizer's moments:
// measured with one and two samples of the longest micro-batch, continued to all of its samples.
double step_memory(TrainingRun& run, uint64_t seed);

// Throws when step_memory() is more than `available` bytes, else returns it. A run of small batches
// that is small by the sizes of its tensors is not measured.
std::optional<double> check_memory(TrainingRun& run, uint64_t seed, double available);

}  // namespace brine::distill
