// The steps of normalization, on runs of characters.
#include "data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/tokenizer_ranges.h"
#include "data/unicode/unicode.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

constexpr unsigned char kNotAlone = 0xff;  // ASCII that belongs to the run of other characters
                                           // around it
constexpr int kDeepest = 16;               // nesting depth of sequences

// One byte for every character.
enum Property : uint8_t {
  kRemoved = 1,
  kChinese = 2,
  kAccent = 4,
  kMark = 8,
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
    mark(kMarkRanges, kMark);
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

}  // namespace

struct Normalizer::Char {
  uint32_t c;
  TextSpan origin;
};

Normalizer::Normalizer(const nlohmann::json& description, const std::string& where) {
  add(description, where, 0);
  make_ascii_table();
}

void Normalizer::add(const nlohmann::json& description, const std::string& where, int depth) {
  if (description.is_null()) return;
  auto type = description.is_object() ? description.find("type") : description.end();
  check_format(description.is_object() && type != description.end() && type->is_string(), where,
               ": a normalizer must be an object with a 'type'");
  const auto name = type->get<std::string>();
  if (name == "BertNormalizer") {
    const std::string object = where + ": normalizer";
    const bool lowercase = flag(description, "lowercase", true, object);
    if (flag(description, "clean_text", true, object)) steps_.push_back(Step::kClean);
    if (flag(description, "handle_chinese_chars", true, object))
      steps_.push_back(Step::kSplitChinese);
    if (flag(description, "strip_accents", lowercase, object))
      steps_.insert(steps_.end(), {Step::kDecompose, Step::kDropAccents});
    if (lowercase) steps_.push_back(Step::kLower);
  } else if (name == "Lowercase") {
    steps_.push_back(Step::kLower);
  } else if (name == "NFD") {
    steps_.push_back(Step::kDecompose);
  } else if (name == "StripAccents") {
    steps_.push_back(Step::kDropMarks);
  } else if (name == "Sequence") {
    auto list = description.find("normalizers");
    check_format(list != description.end() && list->is_array() && depth < kDeepest, where,
                 ": normalizer of type \"Sequence\" must have a list 'normalizers'");
    for (const auto& part : *list) add(part, where, depth + 1);
  } else {
    throw Error(join(where, ": normalizer of type \"", name,
                     "\" is not supported; supported are BertNormalizer, Lowercase, NFD, "
                     "StripAccents and Sequence"));
  }
}

void Normalizer::make_ascii_table() {
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
Normalized Normalizer::apply(std::string_view text, bool want_origin) const {
  Normalized out;
  if (steps_.empty()) {
    out.text = text;
    if (!want_origin) return out;
    out.origin.reserve(text.size());
    for (size_t at = 0, next = 0; at < text.size(); at = next) {
      next_char(text, next);
      out.origin.insert(out.origin.end(), next - at, {at, next});
    }
    return out;
  }
  auto alone = [&](size_t at) {
    const auto byte = uint8_t(text[at]);
    return byte < 128 && ascii_[byte] != kNotAlone;
  };
  out.text.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && alone(end)) ++end;
    const size_t first = out.text.size();
    out.text.resize(first + end - at);
    for (size_t i = at; i < end; ++i) out.text[first + i - at] = char(ascii_[uint8_t(text[i])]);
    if (want_origin)
      for (size_t i = at; i < end; ++i) out.origin.push_back({i, i + 1});
    at = end;
    while (end < text.size() && !alone(end)) ++end;
    if (end > at) apply_to_run(text, at, end, out, want_origin);
    at = end;
  }
  return out;
}

void Normalizer::apply_to_run(std::string_view text, size_t begin, size_t end, Normalized& out,
                              bool want_origin) const {
  std::vector<Char> run, other;
  for (size_t at = begin; at < end;) {
    const size_t start = at;
    const uint32_t c = next_char(text, at);
    run.push_back({c, {start, at}});
  }
  for (Step step : steps_) {
    switch (step) {
      case Step::kClean:
        std::erase_if(run, [](const Char& x) { return has(x.c, kRemoved); });
        for (Char& x : run)
          if (has(x.c, kSpace)) x.c = ' ';
        break;
      case Step::kSplitChinese:
        other.clear();
        for (const Char& x : run) {
          const bool apart = has(x.c, kChinese);
          if (apart) other.push_back({' ', x.origin});
          other.push_back(x);
          if (apart) other.push_back({' ', x.origin});
        }
        run.swap(other);
        break;
      case Step::kDecompose:
        decompose(run);
        break;
      case Step::kDropAccents:
        std::erase_if(run, [](const Char& x) { return has(x.c, kAccent); });
        break;
      case Step::kDropMarks:
        std::erase_if(run, [](const Char& x) { return has(x.c, kMark); });
        break;
      case Step::kLower:
        other.clear();
        for (const Char& x : run) {
          const bool dotted = x.c == 0x130;  // becomes two characters
          other.push_back({dotted ? 'i' : lower(x.c), x.origin});
          if (dotted) other.push_back({0x307, x.origin});
        }
        run.swap(other);
        break;
    }
  }
  for (const Char& x : run) {
    append_utf8(out.text, x.c);
    if (want_origin) out.origin.resize(out.text.size(), x.origin);
  }
}

// Canonical decomposition and order. A character that moved has the origin of its new position, as
// in `tokenizers`.
void Normalizer::decompose(std::vector<Char>& run) {
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
      const int combining = has(c, kInert) ? 0 : utf8proc_get_property(made[i])->combining_class;
      parts.push_back({c, combining, i > 0});
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

BertClass bert_class(uint32_t c) {
  if (has(c, kSpace)) return BertClass::kSpace;
  return has(c, kPunctuation) ? BertClass::kPunctuation : BertClass::kWord;
}

}  // namespace brine::data
