// The text in which a needle is hidden: repeated sentences without meaning, or a book.
#include "data/suites/haystack.h"

#include <algorithm>

#include "tensor/base/error.h"

namespace brine::data {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// A sentence ends at white space after one of . ? ! and quotation marks.
bool ends_sentence(const std::string& sentence) {
  const size_t end = sentence.find_last_not_of("\"')");
  return end != std::string::npos && std::string_view(".?!").find(sentence[end]) < 3;
}

std::vector<std::string> sentences_of(std::string_view text) {
  std::vector<std::string> out;
  std::string sentence;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_space(text[i])) {
      sentence += text[i];
    } else if (ends_sentence(sentence)) {
      out.push_back(std::move(sentence));
      sentence.clear();
    } else if (!sentence.empty() && !is_space(sentence.back())) {
      sentence += ' ';
    }
  }
  if (ends_sentence(sentence)) out.push_back(sentence);
  return out;
}

}  // namespace

const char* const kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

Haystack::Haystack() : units_{kNoise}, between_('\n') {}

Haystack::Haystack(std::string_view text, const std::string& name)
    : units_(sentences_of(text)), between_(' ') {
  check(!units_.empty(), name, ": no sentence for the haystack");
}

std::string Haystack::with(std::vector<Needle> needles, size_t n, Draws& draws) const {
  std::stable_sort(needles.begin(), needles.end(),
                   [](const Needle& a, const Needle& b) { return a.place < b.place; });
  const size_t start = draws.below(units_.size());
  std::string out;
  auto add = [&](const std::string& text) {
    if (!out.empty()) out += between_;
    out += text;
  };
  size_t next = 0;
  for (size_t i = 0; i <= n; ++i) {
    while (next < needles.size() && needles[next].place == i) add(needles[next++].text);
    if (i < n) add(units_[(start + i) % units_.size()]);
  }
  check(next == needles.size(), "haystack: a needle at ", needles.back().place, " of ", n);
  return out;
}

}  // namespace brine::data
