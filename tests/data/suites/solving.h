// Answers found by reading the text of a prompt, independently of how it was made.
#pragma once

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "data/suites/prompt.h"
#include "data/suites/words.h"
#include "data/tokenizer/bpe/bpe.h"

namespace brine::test {

// A byte-level tokenizer that knows the templates, the words of lists and small numbers.
inline const data::Tokenizer& suite_tokenizer() {
  static const std::unique_ptr<data::Tokenizer> made = [] {
    data::BpeTrainer trainer({.vocab_size = 3000});
    data::Draws draws(1, "words");
    const std::vector<std::string> words = data::draw_words(draws, 290);
    for (int times = 0; times < 2; ++times) {
      trainer.add(data::kNoise);
      trainer.add(
          " One of the special magic numbers for x is: mentioned in the provided text. What are "
          "all the special magic numbers? Make sure to memorize it. I will quiz you about the "
          "number afterwards.");
      for (size_t i = 0; i < 600; ++i)
        trainer.add(" " + std::to_string(i + 1) + ". " + words[i % words.size()]);
    }
    return trainer.train();
  }();
  return *made;
}

inline const data::Haystack& noise() {
  static const data::Haystack haystack;
  return haystack;
}

// The text between the last `before` and the next `after`.
inline std::string between(const std::string& text, const std::string& before,
                           const std::string& after) {
  const size_t begin = text.rfind(before);
  if (begin == text.npos) return "";
  const size_t at = begin + before.size();
  return text.substr(at, text.find(after, at) - at);
}

inline std::vector<std::string> words_in(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

// The n most frequent words, the most frequent first; empty where the next one is as frequent.
inline std::vector<std::string> most_frequent(const std::vector<std::string>& words, size_t n) {
  std::map<std::string, int> counts;
  for (const std::string& word : words) ++counts[word];
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [word, count] : counts) order.push_back({-count, word});
  std::sort(order.begin(), order.end());
  if (order.size() <= n || order[n - 1].first == order[n].first) return {};
  std::vector<std::string> out;
  for (size_t i = 0; i < n; ++i) out.push_back(order[i].second);
  return out;
}

// The values of a key among the needles.
inline std::vector<std::string> needle_values(const std::string& text, const std::string& key) {
  const std::string needle = "One of the special magic numbers for " + key + " is: ";
  std::vector<std::string> out;
  for (size_t at = text.find(needle); at != text.npos; at = text.find(needle, at + 1)) {
    out.push_back(text.substr(at + needle.size(), 7));
  }
  return out;
}

inline std::vector<std::string> solve_niah(const std::string& text) {
  std::string query = between(text, " for ", " mentioned");
  std::vector<std::string> out;
  for (std::string word : words_in(query)) {
    if (word.back() == ',') word.pop_back();
    if (word == "and") continue;
    for (const std::string& value : needle_values(text, word)) out.push_back(value);
  }
  return out;
}

inline std::vector<std::string> solve_tracking(const std::string& text) {
  const std::string value = between(text, "assigned the value ", ",");
  const std::string asked = text.substr(text.rfind("Memorize and track"));
  std::vector<std::string> out;
  std::istringstream in(asked);
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> w = words_in(line);
    if (w.size() < 4 || w[0] != "VAR" || w[2] != "=") continue;
    const std::string from = w[3] == "VAR" ? w[4] : w[3];
    if (from == value || std::find(out.begin(), out.end(), from) != out.end()) out.push_back(w[1]);
  }
  return out;
}

inline std::vector<std::string> solve_common(const std::string& text) {
  std::vector<std::string> words;
  for (const std::string& word : words_in(between(text, "appear most often.\n", "\nQuestion"))) {
    if (word.back() != '.') words.push_back(word);
  }
  return most_frequent(words, 10);
}

inline std::vector<std::string> solve_frequent(const std::string& text) {
  std::vector<std::string> words = words_in(between(text, "coded words.", "\nQuestion"));
  std::erase(words, "...");
  return most_frequent(words, 3);
}

// The answers that the text of a prompt implies.
inline std::vector<std::string> solve(const std::string& text) {
  if (text.find("magic number") != text.npos) return solve_niah(text);
  if (text.find("VAR ") != text.npos) return solve_tracking(text);
  if (text.find("numbered list") != text.npos) return solve_common(text);
  if (text.find("coded text") != text.npos) return solve_frequent(text);
  return {between(text, "Remember it. ", " is the pass key")};
}

}  // namespace brine::test
