// The stages of normalization, one after the other.
#include "data/tokenizer/normalize/normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr int kDeepest = 16;  // nesting depth of sequences

// A text that is put together from pieces of another one.
class Pieces {
 public:
  Pieces(std::string_view source, bool want_origin) : source_(source), want_origin_(want_origin) {
    out_.text.reserve(source.size() + source.size() / 2);
  }
  void keep(size_t begin, size_t end) {
    out_.text.append(source_, begin, end - begin);
    if (!want_origin_) return;
    for (size_t at = begin, next = begin; at < end; at = next) {
      next_char(source_, next);
      out_.origin.insert(out_.origin.end(), next - at, {at, next});
    }
  }
  void put(std::string_view text, TextSpan origin) {
    out_.text += text;
    if (want_origin_) out_.origin.resize(out_.text.size(), origin);
  }
  Normalized take() { return std::move(out_); }

 private:
  std::string_view source_;
  bool want_origin_;
  Normalized out_;
};

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
  const SortedJson& pattern = member(description, "pattern");
  const SortedJson& text = pattern.is_object() ? member(pattern, "String") : pattern;
  const SortedJson& regex = pattern.is_object() ? member(pattern, "Regex") : pattern;
  const SortedJson& content = member(description, "content");
  check_format(pattern.is_object() && text.is_string() != regex.is_string(), where,
               ": 'pattern' must be a String or a Regex");
  check_format(content.is_string(), where, ": 'content' must be a text");
  Stage stage{.to = content.get<std::string>()};
  if (text.is_string()) {
    stage.from = text.get<std::string>();
    check_format(!stage.from.empty(), where, ": 'pattern' is an empty String");
  } else {
    stage.pattern = std::make_shared<Regex>(regex.get<std::string>(), where);
  }
  stages_.push_back(std::move(stage));
}

Normalized Normalizer::Stage::apply(std::string_view text, bool want_origin) const {
  if (characters) return characters->apply(text, want_origin);
  Pieces out(text, want_origin);
  size_t done = 0;
  auto replace = [&](size_t begin, size_t end) {
    out.keep(done, begin);
    // As in `tokenizers`, the new text has the place of the last character that it replaces.
    size_t last = end - 1;
    while ((uint8_t(text[last]) & 0xc0) == 0x80) --last;
    out.put(to, {last, end});
    done = end;
  };
  if (pattern) {
    RegexMatches matches(*pattern, text);
    for (size_t begin = 0, end = 0; matches.next(begin, end);) replace(begin, end);
  } else if (!from.empty()) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string_view::npos; at = done)
      replace(at, at + from.size());
  } else if (!text.empty()) {
    size_t first = 0;
    next_char(text, first);
    out.put(to, {0, first});
  }
  out.keep(done, text.size());
  return out.take();
}

Normalized Normalizer::apply(std::string_view text, bool want_origin) const {
  if (stages_.empty()) {
    Pieces out(text, want_origin);
    out.keep(0, text.size());
    return out.take();
  }
  Normalized now = stages_[0].apply(text, want_origin);
  for (size_t i = 1; i < stages_.size(); ++i) {
    Normalized next = stages_[i].apply(now.text, want_origin);
    for (TextSpan& span : next.origin)
      span = {now.origin[span.begin].begin,
              std::max(now.origin[span.begin].begin, now.origin[span.end - 1].end)};
    now = std::move(next);
  }
  return now;
}

}  // namespace brine::data
