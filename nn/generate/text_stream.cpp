// Streaming of text: the positions at which it may be cut.
#include "nn/generate/text_stream.h"

#include <algorithm>

namespace brine::nn {
namespace {

// Bytes of the character that starts with `first`; 1 for an invalid start.
size_t length_of(unsigned char first) {
  return first >= 0xf0 && first < 0xf8 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;
}

// How many bytes at the end of `text` are a proper prefix of `stop`.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

size_t whole_characters(std::string_view text) {
  // The last byte that is not a continuation byte starts the last character.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t wanted = byte >= 0xf8 ? 1 : length_of(byte);
    return wanted > back ? text.size() - back : text.size();
  }
  return text.size();
}

bool TextStream::push(std::string_view bytes) {
  if (stopped_) return true;
  const size_t before = text_.size();
  text_ += bytes;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t from = before < stop.size() ? 0 : before - stop.size() + 1;
    end = std::min(end, text_.find(stop, from));
  }
  if (end == std::string::npos) return false;
  text_.resize(end);
  return stopped_ = true;
}

std::string TextStream::take(bool ended) {
  size_t end = text_.size();
  if (!ended && !stopped_) {
    end = whole_characters(text_);
    for (const std::string& stop : stops_) end = std::min(end, text_.size() - begun(text_, stop));
  }
  if (end <= shown_) return "";
  std::string out = text_.substr(shown_, end - shown_);
  shown_ = end;
  return out;
}

}  // namespace brine::nn
