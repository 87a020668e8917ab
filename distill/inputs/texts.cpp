// The windows of text files, and how long they may be.
#include "distill/inputs/texts.h"

#include <algorithm>

#include "tensor/base/error.h"

namespace brine::distill {

data::TokenCorpus load_texts(const std::vector<std::string>& files,
                             const data::Tokenizer& tokenizer, int64_t window,
                             const Messages& messages) {
  data::TokenCorpus corpus = data::load_corpus(files, tokenizer, std::max<int64_t>(window, 2));
  std::string name = files.size() == 1 ? files[0] : join(files.size(), " files");
  messages.info(name, ": ", corpus.tokens->size(), " tokens, ", corpus.windows(), " windows of ",
                corpus.window_tokens, ", ", corpus.dropped(), " tokens at the end dropped");
  return corpus;
}

std::unique_ptr<WindowSource> windows_of(data::TokenCorpus corpus, int64_t window, uint64_t seed) {
  return std::make_unique<WindowSource>(std::move(corpus.tokens), window, seed);
}

int64_t window_of(int64_t asked, const nn::ModelConfig& config, const std::string& what) {
  const int64_t positions = config.shape().max_positions;
  const int64_t window = asked ? asked : positions;
  check(window <= positions, what, ": sequence_length ", window, " is longer than the model's ",
        positions, " positions");
  return window;
}

}  // namespace brine::distill
