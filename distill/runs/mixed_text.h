// The text of a run as windows of mixed lengths with retrieval among them.
#pragma once

#include <string>

#include "distill/batches/mixed_source.h"
#include "distill/runs/training_run.h"

namespace brine::distill {

// Sets the batches of a run whose model, tokenizer and trainer settings are decided. `text` is
// decided; `model_directory` is the place of the tokenizer. `variant`: another order and other
// retrieval with the same seed.
struct MixedText {
  const TextMixture& text;
  const TextFiles& files;  // `window` is that of the text to evaluate on
  std::string model_directory;
  uint64_t variant = 0;
  int64_t turns = 1;  // consecutive steps that have the same windows
};
void use_mixed_text(TrainingRun& run, const MixedText& mixed, const RunHost& host);

}  // namespace brine::distill
