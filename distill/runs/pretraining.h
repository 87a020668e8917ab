// Training a causal model by next-token prediction, from new weights or those of another model.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "distill/runs/settings/training_settings.h"
#include "distill/runs/training_run.h"

namespace brine::distill {

struct Pretraining {
  std::string model;      // model directory, or a config.json with the sizes; empty: `config`'s
  std::string tokenizer;  // tokenizer directory; empty: the one next to the model
  std::vector<std::string> train, valid;  // text files or token shards
  TrainingSettings training;
  nn::ModelConfig config;
  // Keys of `config` that were set: those of its section of sizes, and those of "attention".
  std::set<std::string> size_keys, attention_keys;

  void describe(data::Schema& s);
};

// Decides the empty settings of `what`, loads everything and checks it. The result refers to
// nothing of `what`.
std::unique_ptr<TrainingRun> prepare(Pretraining& what, const RunOptions& options,
                                     const RunHost& host);

}  // namespace brine::distill
