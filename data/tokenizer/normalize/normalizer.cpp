// The stages of normalization, one after the other; those that look at single characters first.
#include "data/tokenizer/normalize/normalizer.h"

#include <utf8proc.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/tokenizer/normalize/tokenizer_ranges.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"

namespace brine::data {

namespace {

constexpr unsigned char kNotAlone = 0xff;  // ASCII that belongs to the run of other characters
                                           // around it

using Step = CharacterNormalizer::Step;
using Run = std::vector<uint32_t>;

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
    auto mark = [&](std::span<const uint32_t> runs, Property property) {
      each_char(runs, [&](uint32_t c) { out[c] = uint8_t(out[c] | property); });
    };
    mark(kRemovedRuns, kRemoved);
    mark(kCjkRuns, kChinese);
    mark(kAccentRuns, kAccent);
    mark(kAccentRuns, kCombining);
    mark(kNewMarkRuns, kCombining);
    mark(kPunctuationRuns, kPunctuation);
    mark(kInertRuns, kInert);
    mark(kSpaceRuns, kSpace);
    return out;
  }();
  return table;
}

bool has(uint32_t c, Property property) {
  static const uint8_t* table = properties().data();
  return (table[c] & property) != 0;
}

uint32_t lower(uint32_t c) {
  for (const LowerRun& run : kLowerRuns) {
    if (c < run.first) break;  // runs ascend
    if (c <= run.last) return run.lower + (c - run.first);
  }
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
bool is_nfc(const std::vector<Step>& steps, std::string_view text) {
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

// Canonical decomposition and order.
void decompose(Run& run) {
  Run out;
  for (uint32_t c : run) {
    utf8proc_int32_t made[32];
    int boundary = 0;
    const bool inert = c < 0xc0 || has(c, kInert);
    const auto count = inert ? 0
                             : utf8proc_decompose_char(utf8proc_int32_t(c), made, 32,
                                                       UTF8PROC_DECOMPOSE, &boundary);
    if (count <= 0 || count > 32)
      out.push_back(c);
    else
      out.insert(out.end(), made, made + count);
  }
  for (size_t at = 0; at < out.size();) {
    size_t end = at;
    while (end < out.size() && combining_class(out[end]) != 0) ++end;
    std::stable_sort(out.begin() + long(at), out.begin() + long(end), [](uint32_t a, uint32_t b) {
      return combining_class(a) < combining_class(b);
    });
    at = end + 1;
  }
  run.swap(out);
}

// Canonical composition: a mark joins the last character that is not a mark, unless one between
// them has the same class or a higher one.
void compose(Run& run) {
  constexpr size_t kNone = SIZE_MAX;
  Run out;
  size_t starter = kNone;
  int last = 0;
  for (uint32_t c : run) {
    const int combining = combining_class(c);
    const bool next_to = starter != kNone && starter + 1 == out.size();
    const uint32_t joined =
        starter != kNone && (next_to || last < combining) ? composed(out[starter], c) : 0;
    if (joined != 0) {
      out[starter] = joined;
      continue;
    }
    last = combining;
    if (combining == 0) starter = out.size();
    out.push_back(c);
  }
  run.swap(out);
}

void apply_step(Step step, Run& run) {
  Run other;
  switch (step) {
    case Step::kClean:
      std::erase_if(run, [](uint32_t c) { return has(c, kRemoved); });
      for (uint32_t& c : run)
        if (has(c, kSpace)) c = ' ';
      return;
    case Step::kSplitChinese:
      for (uint32_t c : run) {
        const bool is_chinese = has(c, kChinese);
        if (is_chinese) other.push_back(' ');
        other.push_back(c);
        if (is_chinese) other.push_back(' ');
      }
      return run.swap(other);
    case Step::kDecompose:
      return decompose(run);
    case Step::kCompose:
      return compose(run);
    case Step::kDropAccents:
      std::erase_if(run, [](uint32_t c) { return has(c, kAccent); });
      return;
    case Step::kDropMarks:
      std::erase_if(run, [](uint32_t c) { return has(c, kCombining); });
      return;
    case Step::kLower:
      for (uint32_t c : run) {
        const bool dotted = c == 0x130;  // becomes two characters
        other.push_back(dotted ? 'i' : lower(c));
        if (dotted) other.push_back(0x307);
      }
      return run.swap(other);
  }
}

}  // namespace

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
std::string CharacterNormalizer::apply(std::string_view text) const {
  std::string out;
  auto alone = [&](size_t at) {
    const auto byte = uint8_t(text[at]);
    return byte < 128 && ascii_[byte] != kNotAlone;
  };
  out.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && alone(end)) ++end;
    // Marks may join the character before them.
    if (composes_ && end < text.size() && end > at) --end;
    const size_t first = out.size();
    out.resize(first + end - at);
    for (size_t i = at; i < end; ++i) out[first + i - at] = char(ascii_[uint8_t(text[i])]);
    at = end;
    if (composes_ && end < text.size()) ++end;
    while (end < text.size() && !alone(end)) ++end;
    apply_to_run(text.substr(at, end - at), out);
    at = end;
  }
  return out;
}

void CharacterNormalizer::apply_to_run(std::string_view text, std::string& out) const {
  if (is_nfc(steps_, text)) {
    out += text;
    return;
  }
  Run run;
  for (size_t at = 0; at < text.size();) run.push_back(next_char(text, at));
  for (Step step : steps_) apply_step(step, run);
  for (uint32_t c : run) append_utf8(out, c);
}

BertClass bert_class(uint32_t c) {
  if (has(c, kSpace)) return BertClass::kSpace;
  return has(c, kPunctuation) ? BertClass::kPunctuation : BertClass::kWord;
}

namespace {

constexpr int kDeepest = 16;  // nesting depth of sequences
// A text becomes at most this much longer: each of many stages may repeat it.
constexpr size_t kMaxGrowth = 64, kAlwaysRoom = 1 << 20;

}  // namespace

Normalizer::Normalizer(const SortedJson& description, const std::string& where) {
  Steps steps;
  add(description, where, 0, steps);
  finish(steps);
}

void Normalizer::finish(Steps& steps) {
  if (!steps.empty()) stages_.push_back({.characters = CharacterNormalizer(steps)});
  steps.clear();
}

void Normalizer::add(const SortedJson& description, const std::string& where, int depth,
                     Steps& steps) {
  if (description.is_null()) return;
  using Step = CharacterNormalizer::Step;
  const SortedJson& type = description.is_object() ? member(description, "type") : description;
  check_format(type.is_string(), where, ": a normalizer must be an object with a 'type'");
  const auto name = type.get<std::string>();
  const std::string object = where + ": normalizer";
  if (name == "BertNormalizer") {
    const bool lowercase = flag(description, "lowercase", true, object);
    if (flag(description, "clean_text", true, object)) steps.push_back(Step::kClean);
    if (flag(description, "handle_chinese_chars", true, object))
      steps.push_back(Step::kSplitChinese);
    if (flag(description, "strip_accents", lowercase, object))
      steps.insert(steps.end(), {Step::kDecompose, Step::kDropAccents});
    if (lowercase) steps.push_back(Step::kLower);
  } else if (name == "Lowercase") {
    steps.push_back(Step::kLower);
  } else if (name == "NFD") {
    steps.push_back(Step::kDecompose);
  } else if (name == "NFC") {
    steps.insert(steps.end(), {Step::kDecompose, Step::kCompose});
  } else if (name == "StripAccents") {
    steps.push_back(Step::kDropMarks);
  } else if (name == "Prepend") {
    finish(steps);
    const SortedJson& text = member(description, "prepend");
    check_format(text.is_string(), object, " Prepend: 'prepend' must be a text");
    stages_.push_back({.to = text.get<std::string>()});
  } else if (name == "Replace") {
    finish(steps);
    add_replace(description, object + " Replace");
  } else if (name == "Sequence") {
    const SortedJson& list = member(description, "normalizers");
    check_format(list.is_array() && depth < kDeepest, where,
                 ": normalizer of type \"Sequence\" must have a list 'normalizers'");
    for (const SortedJson& part : list) add(part, where, depth + 1, steps);
  } else {
    throw Error(join(where, ": normalizer of type ", json_text(type),
                     " is not supported; supported are BertNormalizer, Lowercase, NFC, NFD, "
                     "Prepend, Replace, Sequence and StripAccents"),
                ErrorKind::format);
  }
}

void Normalizer::add_replace(const SortedJson& description, const std::string& where) {
  TextPattern from = read_pattern(description, where);
  const SortedJson& content = member(description, "content");
  check_format(content.is_string(), where, ": 'content' must be a text");
  stages_.push_back({.from = std::move(from), .to = content.get<std::string>()});
}

std::string Normalizer::Stage::apply(std::string_view text, size_t max_bytes) const {
  if (characters) return characters->apply(text);
  std::string out = from.empty() && !text.empty() ? to : "";
  size_t done = 0;
  from.each_match(text, [&](size_t begin, size_t end) {
    out.append(text, done, begin - done) += to;
    done = end;
    return out.size() <= max_bytes;
  });
  return out.append(text, done);
}

std::string Normalizer::apply(std::string_view text) const {
  std::string now(text);
  const size_t max_bytes = kMaxGrowth * text.size() + kAlwaysRoom;
  for (const Stage& stage : stages_) {
    now = stage.apply(now, max_bytes);
    check_format(now.size() <= max_bytes, "tokenizer: a text of ", text.size(),
                 " bytes has more than ", max_bytes, " after its normalization");
  }
  return now;
}

}  // namespace brine::data
