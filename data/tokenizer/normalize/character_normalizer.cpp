// The steps of normalization, on runs of characters.
#include "data/tokenizer/normalize/character_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "data/tokenizer/normalize/tokenizer_ranges.h"
#include "data/unicode/unicode.h"

namespace brine::data {
namespace {

constexpr unsigned char kNotAlone = 0xff;  // ASCII that belongs to the run of other characters
                                           // around it

constexpr auto kNfc = utf8proc_option_t(UTF8PROC_COMPOSE | UTF8PROC_STABLE);

// One byte for every character.
enum Property : uint8_t {
  kRemoved = 1,
  kChinese = 2,
  kAccent = 4,
  kCombining = 8,
  kPunctuation = 16,
  kInert = 32,
  kSpace = 64
};

const std::vector<uint8_t>& properties() {
  static const auto table = [] {
    std::vector<uint8_t> out(0x110000);
    auto mark = [&](const auto& ranges, Property property) {
      for (CharRange r : ranges)
        for (uint32_t c = r.first; c <= r.last; ++c) out[c] = uint8_t(out[c] | property);
    };
    mark(kRemovedRanges, kRemoved);
    mark(kCjkRanges, kChinese);
    mark(kAccentRanges, kAccent);
    mark(kMarkRanges, kCombining);
    mark(kPunctuationRanges, kPunctuation);
    mark(kInertRanges, kInert);
    mark(kSpaceRanges, kSpace);
    return out;
  }();
  return table;
}

bool has(uint32_t c, Property property) {
  static const uint8_t* table = properties().data();
  return (table[c] & property) != 0;
}

uint32_t lower(uint32_t c) {
  auto known = std::lower_bound(std::begin(kLowerPairs), std::end(kLowerPairs), c,
                                [](const CharPair& p, uint32_t value) { return p.from < value; });
  if (known != std::end(kLowerPairs) && known->from == c) return known->to;
  return uint32_t(utf8proc_tolower(utf8proc_int32_t(c)));
}

int combining_class(uint32_t c) {
  return c < 0x300 || has(c, kInert) ? 0
                                     : utf8proc_get_property(utf8proc_int32_t(c))->combining_class;
}

// The canonical composition of two characters; 0 if there is none.
uint32_t composed(uint32_t first, uint32_t second) {
  if (second < 0x300 || has(first, kInert) || has(second, kInert)) return 0;
  utf8proc_int32_t pair[3] = {utf8proc_int32_t(first), utf8proc_int32_t(second), 0};
  const bool one = utf8proc_normalize_utf32(pair, 2, kNfc) == 1;
  return one && !has(uint32_t(pair[0]), kInert) ? uint32_t(pair[0]) : 0;
}

// Whether NFC keeps the character wherever it is: it is not a mark or a part of a Hangul syllable,
// and it is equal to its composed decomposition.
bool is_stable(uint32_t c) {
  if (c < 0x300) return true;
  if (has(c, kInert)) return true;
  if (c >= 0x1100 && c < 0x1200) return false;
  const utf8proc_category_t category = utf8proc_category(utf8proc_int32_t(c));
  if (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC) return false;
  utf8proc_int32_t made[33];
  int boundary = 0;
  const auto count =
      utf8proc_decompose_char(utf8proc_int32_t(c), made, 32, UTF8PROC_DECOMPOSE, &boundary);
  if (count < 1 || count > 32) return false;
  return utf8proc_normalize_utf32(made, count, kNfc) == 1 && made[0] == utf8proc_int32_t(c);
}

// Whether the steps are NFC's and would not change the text: a quick look that may miss some.
bool is_nfc(const std::vector<CharacterNormalizer::Step>& steps, std::string_view text) {
  using Step = CharacterNormalizer::Step;
  if (steps.size() != 2 || steps[0] != Step::kDecompose || steps[1] != Step::kCompose) return false;
  static const std::vector<bool> stable = [] {
    std::vector<bool> out(0x10000);
    for (uint32_t c = 0; c < 0x10000; ++c) out[c] = is_stable(c);
    return out;
  }();
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_char(text, at);
    if (c < 0x10000 ? !stable[c] : !is_stable(c)) return false;
  }
  return true;
}

}  // namespace

struct CharacterNormalizer::Char {
  uint32_t c;
  TextSpan origin;
};

CharacterNormalizer::CharacterNormalizer(std::vector<Step> steps) : steps_(std::move(steps)) {
  composes_ = std::find(steps_.begin(), steps_.end(), Step::kCompose) != steps_.end();
  make_ascii_table();
}

void CharacterNormalizer::make_ascii_table() {
  for (uint32_t c = 0; c < 128; ++c) {
    uint32_t now = c;
    for (Step step : steps_) {
      if (step == Step::kClean && has(now, kRemoved)) now = kNotAlone;
      if (now == kNotAlone) break;
      if (step == Step::kClean && has(now, kSpace)) now = ' ';
      if (step == Step::kLower) now = lower(now);
    }
    ascii_[c] = uint8_t(now);
  }
}

// ASCII characters stay one character each and are never reordered, so they can be processed
// separately. Removing characters may join combining marks: removed characters therefore belong to
// the runs of others.
Normalized CharacterNormalizer::apply(std::string_view text, bool want_origin) const {
  Normalized out;
  auto alone = [&](size_t at) {
    const auto byte = uint8_t(text[at]);
    return byte < 128 && ascii_[byte] != kNotAlone;
  };
  out.text.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && alone(end)) ++end;
    // Marks may join the character before them.
    if (composes_ && end < text.size() && end > at) --end;
    const size_t first = out.text.size();
    out.text.resize(first + end - at);
    for (size_t i = at; i < end; ++i) out.text[first + i - at] = char(ascii_[uint8_t(text[i])]);
    if (want_origin)
      for (size_t i = at; i < end; ++i) out.origin.push_back({i, i + 1});
    at = end;
    if (composes_ && end < text.size()) ++end;
    while (end < text.size() && !alone(end)) ++end;
    if (end > at) apply_to_run(text, at, end, out, want_origin);
    at = end;
  }
  return out;
}

void CharacterNormalizer::apply_to_run(std::string_view text, size_t begin, size_t end,
                                       Normalized& out, bool want_origin) const {
  if (is_nfc(steps_, text.substr(begin, end - begin))) {
    for (size_t at = begin, next = begin; want_origin && at < end; at = next) {
      next_char(text, next);
      out.origin.insert(out.origin.end(), next - at, {at, next});
    }
    out.text += text.substr(begin, end - begin);
    return;
  }
  std::vector<Char> run;
  for (size_t at = begin; at < end;) {
    const size_t start = at;
    const uint32_t c = next_char(text, at);
    run.push_back({c, {start, at}});
  }
  for (Step step : steps_) apply_step(step, run);
  for (const Char& x : run) {
    append_utf8(out.text, x.c);
    if (want_origin) out.origin.resize(out.text.size(), x.origin);
  }
}

void CharacterNormalizer::apply_step(Step step, std::vector<Char>& run) const {
  std::vector<Char> other;
  switch (step) {
    case Step::kClean:
      std::erase_if(run, [](const Char& x) { return has(x.c, kRemoved); });
      for (Char& x : run)
        if (has(x.c, kSpace)) x.c = ' ';
      return;
    case Step::kSplitChinese:
      for (const Char& x : run) {
        const bool is_chinese = has(x.c, kChinese);
        if (is_chinese) other.push_back({' ', x.origin});
        other.push_back(x);
        if (is_chinese) other.push_back({' ', x.origin});
      }
      return run.swap(other);
    case Step::kDecompose:
      return decompose(run);
    case Step::kCompose:
      return compose(run);
    case Step::kDropAccents:
      std::erase_if(run, [](const Char& x) { return has(x.c, kAccent); });
      return;
    case Step::kDropMarks:
      std::erase_if(run, [](const Char& x) { return has(x.c, kCombining); });
      return;
    case Step::kLower:
      for (const Char& x : run) {
        const bool dotted = x.c == 0x130;  // becomes two characters
        other.push_back({dotted ? 'i' : lower(x.c), x.origin});
        if (dotted) other.push_back({0x307, x.origin});
      }
      return run.swap(other);
  }
}

// Canonical decomposition and order. A character that moved has the origin of its new position, as
// in `tokenizers`.
void CharacterNormalizer::decompose(std::vector<Char>& run) {
  struct Part {
    uint32_t c;
    int combining;
    bool follows;  // not the first of its character
  };
  std::vector<Part> parts;
  parts.reserve(run.size() + run.size() / 2);
  for (const Char& x : run) {
    utf8proc_int32_t made[32];
    int boundary = 0;
    const bool inert = x.c < 0xc0 || has(x.c, kInert);
    const auto count = inert ? 0
                             : utf8proc_decompose_char(utf8proc_int32_t(x.c), made, 32,
                                                       UTF8PROC_DECOMPOSE, &boundary);
    if (count <= 0 || count > 32) {
      parts.push_back({x.c, 0, false});
      continue;
    }
    for (long i = 0; i < count; ++i) {
      const auto c = uint32_t(made[i]);
      parts.push_back({c, combining_class(c), i > 0});
    }
  }
  for (size_t at = 0; at < parts.size();) {
    size_t end = at;
    while (end < parts.size() && parts[end].combining != 0) ++end;
    std::stable_sort(parts.begin() + long(at), parts.begin() + long(end),
                     [](const Part& a, const Part& b) { return a.combining < b.combining; });
    at = end + 1;
  }
  std::vector<Char> out;
  out.reserve(parts.size());
  size_t source = 0;
  for (const Part& part : parts) {
    const size_t from = part.follows ? source - (source > 0) : std::min(source++, run.size() - 1);
    out.push_back({part.c, run[from].origin});
  }
  run.swap(out);
}

// Canonical composition: a mark joins the last character that is not a mark, unless one between
// them has the same class or a higher one. A composed character has the origin of its first.
void CharacterNormalizer::compose(std::vector<Char>& run) {
  constexpr size_t kNone = SIZE_MAX;
  std::vector<Char> out;
  out.reserve(run.size());
  size_t starter = kNone;
  int last = 0;
  for (const Char& x : run) {
    const int combining = combining_class(x.c);
    const bool next_to = starter != kNone && starter + 1 == out.size();
    const uint32_t joined =
        starter != kNone && (next_to || last < combining) ? composed(out[starter].c, x.c) : 0;
    if (joined != 0) {
      out[starter].c = joined;
      continue;
    }
    last = combining;
    if (combining == 0) starter = out.size();
    out.push_back(x);
  }
  run.swap(out);
}

BertClass bert_class(uint32_t c) {
  if (has(c, kSpace)) return BertClass::kSpace;
  return has(c, kPunctuation) ? BertClass::kPunctuation : BertClass::kWord;
}

}  // namespace brine::data
