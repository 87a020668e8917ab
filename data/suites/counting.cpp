// Variable tracking and the counts of words, with RULER's templates.
#include <algorithm>

#include "data/suites/draft.h"

namespace brine::data {
namespace {

// ---- vt: a chain of five variables that have the same value

constexpr size_t kHops = 4;

std::string tracking(const std::vector<std::string>& names, const std::string& value, size_t size,
                     Draws& draws) {
  std::vector<size_t> positions;
  positions.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) positions.push_back(draws.below(size + 1));
  std::sort(positions.begin(), positions.end());
  std::vector<Needle> lines;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string from = i == 0 ? value : "VAR " + names[i - 1];
    lines.push_back({positions[i], "VAR " + names[i] + " = " + from});
  }
  return "Memorize and track the chain(s) of variable assignment hidden in the following "
         "text.\n\n" +
         Haystack().with(std::move(lines), size, draws) +
         "\nQuestion: Find all variables that are assigned the value " + value +
         " in the text above. Answer: According to the chain(s) of variable assignment in the text "
         "above, " +
         std::to_string(names.size()) + " variables are assigned the value " + value +
         ", they are:";
}

std::string spaced(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += " " + item;
  return out;
}

// ---- cwe: numbered words, ten of which are frequent

constexpr size_t kCommon = 10;

struct WordCounts {
  size_t words = 0;              // different ones
  size_t common = 0, other = 0;  // occurrences of one of the ten, and of each other word
};

struct WordList {
  std::string text;
  std::vector<std::string> common;
};

WordList word_list(const WordCounts& counts, Draws& draws) {
  const std::vector<std::string> words = draw_words(draws, counts.words);
  std::vector<std::string> all;
  for (size_t i = 0; i < words.size(); ++i) {
    all.insert(all.end(), i < kCommon ? counts.common : counts.other, words[i]);
  }
  draws.shuffle(all);
  std::string text =
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n";
  for (size_t i = 0; i < all.size(); ++i) {
    text += (i ? " " : "") + std::to_string(i + 1) + ". " + all[i];
  }
  text +=
      "\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words "
      "that appear most often in the list are:";
  return {text, {words.begin(), words.begin() + kCommon}};
}

std::vector<AnswerPart> numbered(const std::vector<std::string>& words) {
  std::vector<AnswerPart> out;
  for (size_t i = 0; i < words.size(); ++i) {
    out.push_back({" " + std::to_string(i + 1) + ".", false});
    out.push_back({" " + words[i]});
  }
  return out;
}

std::string text_of(const std::vector<AnswerPart>& parts) {
  std::string out;
  for (const AnswerPart& part : parts) out += part.text;
  return out;
}

// ---- fwe: coded words whose counts fall with the square of their rank

constexpr size_t kAsked = 3;
constexpr double kZeta2 = 1.6449340668482264;  // sum of 1 / n^2

size_t count_of_rank(size_t rank, size_t words) {
  return size_t(double(words) / (double(rank * rank) * kZeta2));
}

}  // namespace

Prompt variable_tracking(const PromptTask& task, const PromptSource& source,
                         const PromptRequest& r) {
  return fitted(task, source, r, [&](size_t size) {
    Draws draws = draws_of(task, r);
    const std::vector<std::string> example = draw_codes(draws, kHops + 1, 3, 'A');
    const std::vector<std::string> names = draw_codes(draws, kHops + 1, 5, 'A');
    const std::vector<std::string> values = draw_numbers(draws, 2, 5);
    const std::string solved = tracking(example, values[1], 5, draws) + spaced(example);
    std::vector<AnswerPart> answer;
    answer.reserve(names.size());
    for (const std::string& name : names) answer.push_back({" " + name});
    return Draft{solved + "\n" + tracking(names, values[0], size, draws), answer, names};
  });
}

Prompt common_words(const PromptTask& task, const PromptSource& source, const PromptRequest& r) {
  const bool large = r.length >= 4096;
  auto make = [&](size_t words) {
    Draws draws = draws_of(task, r);
    const WordList example = word_list(large ? WordCounts{40, 10, 3} : WordCounts{20, 3, 1}, draws);
    const WordList asked =
        word_list(large ? WordCounts{words, 30, 3} : WordCounts{words, 6, 1}, draws);
    return Draft{example.text + text_of(numbered(example.common)) + "\n" + asked.text,
                 numbered(asked.common), asked.common};
  };
  return fitted(task, source, r, make, kCommon);
}

Prompt frequent_words(const PromptTask& task, const PromptSource& source, const PromptRequest& r) {
  const size_t vocabulary = std::max<size_t>(size_t(r.length) / 50, kAsked + 2);
  // The last word that is asked for must be more frequent than the next: from 74 words on the
  // difference before rounding is above 1; below that, down to the first tie.
  size_t least = 74;
  while (count_of_rank(kAsked + 1, least - 1) > count_of_rank(kAsked + 2, least - 1)) --least;
  auto make = [&](size_t words) {
    Draws draws = draws_of(task, r);
    std::vector<std::string> codes = draw_codes(draws, vocabulary, 6, 'a');
    codes[0] = "...";  // the most frequent one is noise
    std::vector<std::string> all;
    for (size_t i = 0; i < codes.size(); ++i) {
      all.insert(all.end(), count_of_rank(i + 1, words), codes[i]);
    }
    draws.shuffle(all);
    const std::vector<std::string> asked(codes.begin() + 1, codes.begin() + 1 + kAsked);
    return Draft{
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words." +
            spaced(all) +
            "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are "
            "the three most frequently appeared words in the above coded text? Answer: According "
            "to the coded text above, the three most frequently appeared words are:",
        listed_answer(asked), asked};
  };
  return fitted(task, source, r, make, least);
}

}  // namespace brine::data
