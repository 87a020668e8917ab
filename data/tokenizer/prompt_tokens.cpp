// The beginning of a prompt, by the tokenizer's template.
#include "data/tokenizer/prompt_tokens.h"

#include <algorithm>

#include "tensor/base/error.h"

namespace brine::data {

std::string repeated_front(const Tokenizer& tokenizer, std::span<const int32_t> front,
                           std::span<const int32_t> text) {
  if (text.empty() || std::find(front.begin(), front.end(), text[0]) == front.end()) return "";
  return join("the text begins with ", tokenizer.token_of(text[0]),
              ", which the tokenizer puts in front of every text: the model reads it twice; remove "
              "it from the text");
}

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text,
                                   const std::function<void(const std::string&)>& warn) {
  const TokensAround& around = tokenizer.around();
  const std::vector<int32_t> inside = tokenizer.encode(text);
  std::vector<int32_t> ids = around.front;
  for (const auto* more : {&inside, &around.back})
    ids.insert(ids.end(), more->begin(), more->end());
  if (ids.empty()) {
    const std::optional<int32_t> bos = tokenizer.special().bos;
    check(bos.has_value(), "the text is empty, and the tokenizer has no BOS to begin with");
    return {*bos};
  }
  const std::string warning = repeated_front(tokenizer, around.front, inside);
  if (warn && !warning.empty()) warn(warning);
  return ids;
}

std::vector<int32_t> continuation_tokens(const Tokenizer& tokenizer, const std::string& text) {
  const std::string before = "a";
  const std::vector<int32_t> first = tokenizer.encode(before);
  const std::vector<int32_t> all = tokenizer.encode(before + text);
  const bool is_prefix =
      first.size() <= all.size() && std::equal(first.begin(), first.end(), all.begin());
  if (!is_prefix) return tokenizer.encode(text);
  return {all.begin() + int64_t(first.size()), all.end()};
}

}  // namespace brine::data
