// A text that arrives in pieces of bytes, token by token, and is returned in whole characters; a
// stop text ends it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brine::nn {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the bytes of a token. True when a stop text is complete: the whole text is then the part
  // before the earliest one, and further tokens are ignored.
  bool push(std::string_view bytes);
  // The text that can be shown now and was not yet: whole UTF-8 characters, and nothing that may
  // become the beginning of a stop text. `ended`: no more tokens follow, so all of it.
  std::string take(bool ended);

  const std::string& text() const { return text_; }

 private:
  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
  bool stopped_ = false;
};

// The number of bytes at the start of `text` that are whole characters: a character cut off at the
// end is excluded, invalid bytes count as characters.
size_t whole_characters(std::string_view text);

}  // namespace brine::nn
