// Text files as the windows that a model reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "distill/batches/batch.h"
#include "distill/log/messages.h"
#include "nn/models/model_config.h"

namespace brine::distill {

// Text files as tokens for windows of `window` tokens; reports the numbers of windows and tokens
// and what is dropped.
data::TokenCorpus load_texts(const std::vector<std::string>& files,
                             const data::Tokenizer& tokenizer, int64_t window,
                             const Messages& messages);

// All windows of a corpus that load_texts() gave for the same `window`.
std::unique_ptr<WindowSource> windows_of(data::TokenCorpus corpus, int64_t window, uint64_t seed);

// The length of a run's windows: `asked`, or for 0 all positions. Throws when it is too long.
int64_t window_of(int64_t asked, const nn::ModelConfig& config, const std::string& what);

}  // namespace brine::distill
