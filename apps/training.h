// What `train` and `distill` share: keys, text, the run's directory, the loop and the last lines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/program.h"
#include "data/tokenizer.h"
#include "distill/model_io.h"
#include "distill/trainer.h"

namespace brine {

// Keys of every training run.
struct TrainingKeys {
  std::vector<std::string> valid;
  std::string out;
  int64_t sequence_length = 0;  // 0 = the model's positions
  int64_t copies = 1;           // see WindowSource
  bool resume = false, dry_run = false;
  int64_t log_steps = 0;
  distill::TrainerConfig trainer;

  void describe(nn::Schema& s);
};

// A run about to begin; everything the trainer needs stays alive in here.
struct TrainingRun {
  nn::ModelConfig config;
  std::shared_ptr<nn::OptModel> model;
  std::unique_ptr<nn::ParameterStore> store;
  std::unique_ptr<distill::Teacher> teacher;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<distill::WindowSource> train, valid;
  distill::LossConfig losses;
  std::string subject;  // "student sea, teacher runs/teacher"
};

// Text files as windows; prints windows, tokens and what is dropped.
std::unique_ptr<distill::WindowSource> load_windows(const std::vector<std::string>& files,
                                                    const data::Tokenizer& tokenizer,
                                                    int64_t window, uint64_t seed,
                                                    std::vector<int64_t> only = {},
                                                    int64_t copies = 1);

// Says which damaged checkpoints were passed over when the model was loaded.
void warn_of(const distill::LoadedModel& loaded);

// Prepares the directory, resumes when asked, trains, prints the outcome. Returns the exit status.
int run_training(TrainingRun& run, const TrainingKeys& keys, const RunContext& context);

// Prints parameters, memory and time of one step, measured with one step that is thrown away.
void print_dry_run(TrainingRun& run, const TrainingKeys& keys, uint64_t seed);

}  // namespace brine
