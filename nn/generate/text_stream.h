// Text that comes in pieces of bytes, token by token: whole characters go out, a stop text ends it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brine::nn {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the bytes of a token. True when a stop text is complete: what comes before the earliest
  // one is the whole text, and nothing more is taken.
  bool push(std::string_view bytes);
  // What can be shown by now and was not yet: whole UTF-8 characters, and nothing that may turn out
  // to be the beginning of a stop text. `ended`: nothing more comes, so all of it.
  std::string take(bool ended);

  const std::string& text() const { return text_; }

 private:
  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
  bool stopped_ = false;
};

// Bytes of the front of `text` that are whole characters: a character cut off at the end is left
// out, bytes that are no UTF-8 count as characters.
size_t whole_characters(std::string_view text);

}  // namespace brine::nn
