// Words, names and numbers of which prompts are made: draws without repetition.
#include "data/suites/words.h"

#include <set>

#include "data/io/utf8.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr const char* kAdjectives =
    "amber ancient bitter bold brave brief bright broad calm careful cheap clean clever cold "
    "common cool crisp curious dark deep dense distant dry eager early easy empty equal faint "
    "famous fancy fast fierce fine firm flat fresh gentle giant glad golden grand green happy "
    "harsh heavy hidden hollow honest huge humble icy idle jolly keen kind large late lazy light "
    "little lively lone loud loyal lucky mild modest narrow neat noble noisy odd old open pale "
    "plain polite proud pure quick quiet rapid rare ready rich rough round royal rusty sharp shy "
    "silent silver simple slow small smooth soft solid sour spare steady steep strange strong "
    "sudden sunny sweet swift tall tame thick thin tidy tiny tough vast warm weak wide wild wise "
    "young";
constexpr const char* kNouns =
    "acorn anchor apple arrow attic badge baker barn basin basket beach beacon bell bench bird "
    "blanket boat bottle branch bread bridge broom bucket butter button cabin camel candle canyon "
    "carpet castle cave chain chair cherry cliff clock cloud coat coin copper corner cotton "
    "cradle creek crown dancer desert donkey door dragon drawer eagle engine fabric farmer "
    "feather fence ferry field finger forest fountain fox garden gate glove goose grape hammer "
    "harbor hill honey horse island jacket jungle kettle kitchen ladder lake lamp lantern leaf "
    "lemon library lion market meadow mirror monkey mountain needle nest oak ocean orchard otter "
    "oven owl paddle palace paper parrot pebble pencil pepper piano pillow pine planet plum pocket "
    "pond potato quilt rabbit raven ribbon river road rocket roof rope saddle sailor salmon "
    "sandal school shadow shell shovel spoon stable statue stone stream sugar table teacher "
    "temple ticket tiger tower train tunnel turtle valley velvet village violin wagon walnut "
    "whale wheel willow window winter wolf wool yard zebra";

const std::vector<std::string>& adjectives() {
  static const std::vector<std::string> all = split(kAdjectives, ' ');
  return all;
}

const std::vector<std::string>& nouns() {
  static const std::vector<std::string> all = split(kNouns, ' ');
  return all;
}

// n different results of `draw`, of which there are `possible` ones.
template <class F>
std::vector<std::string> different(size_t n, double possible, F draw) {
  check(double(n) <= possible / 2, "suite: ", n, " different words of ", possible);
  std::vector<std::string> out;
  for (std::set<std::string> seen; out.size() < n;) {
    std::string item = draw();
    if (seen.insert(item).second) out.push_back(std::move(item));
  }
  return out;
}

std::string syllables(Draws& draws) {
  constexpr std::string_view consonants = "bdfgklmnprstvz", vowels = "aeiou";
  std::string out;
  for (uint64_t n = 2 + draws.below(2); n > 0; --n) {
    out += consonants[draws.below(consonants.size())];
    out += vowels[draws.below(vowels.size())];
  }
  return out + consonants[draws.below(consonants.size())];
}

}  // namespace

std::vector<std::string> draw_keys(Draws& draws, size_t n) {
  const auto &first = adjectives(), &second = nouns();
  return different(n, double(first.size() * second.size()), [&] {
    const std::string& adjective = first[draws.below(first.size())];
    return adjective + "-" + second[draws.below(second.size())];
  });
}

std::vector<std::string> draw_numbers(Draws& draws, size_t n, int digits) {
  uint64_t least = 1;
  for (int i = 1; i < digits; ++i) least *= 10;
  return different(n, 9 * double(least),
                   [&] { return std::to_string(least + draws.below(9 * least)); });
}

std::vector<std::string> draw_words(Draws& draws, size_t n) {
  std::vector<std::string> known = nouns();
  known.insert(known.end(), adjectives().begin(), adjectives().end());
  draws.shuffle(known);
  if (n <= known.size()) return {known.begin(), known.begin() + int64_t(n)};
  const std::set<std::string> used(known.begin(), known.end());
  const std::vector<std::string> made = different(n - known.size(), 70. * 70 * 70 * 14, [&] {
    std::string word = syllables(draws);
    while (used.count(word)) word = syllables(draws);
    return word;
  });
  known.insert(known.end(), made.begin(), made.end());
  return known;
}

std::vector<std::string> draw_codes(Draws& draws, size_t n, size_t size, char first) {
  double possible = 1;
  for (size_t i = 0; i < size; ++i) possible *= 26;
  return different(n, possible, [&] {
    std::string code;
    while (code.size() < size) code += char(first + char(draws.below(26)));
    return code;
  });
}

std::string enumerated(const std::vector<std::string>& items) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    const bool last = i > 0 && i + 1 == items.size();
    if (i > 0) out += items.size() > 2 ? ", " : " ";
    out += (last ? "and " : "") + items[i];
  }
  return out;
}

}  // namespace brine::data
