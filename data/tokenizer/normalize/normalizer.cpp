// The stages of normalization, one after the other.
#include "data/tokenizer/normalize/normalizer.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr int kDeepest = 16;  // nesting depth of sequences
// A text becomes at most this much longer: each of many stages may repeat it.
constexpr size_t kMostGrowth = 64, kAlwaysRoom = 1 << 20;

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

std::string Normalizer::Stage::apply(std::string_view text, size_t most) const {
  if (characters) return characters->apply(text);
  std::string out;
  size_t done = 0;
  auto replace = [&](size_t begin, size_t end) {
    out.append(text, done, begin - done) += to;
    done = end;
    return out.size() <= most;
  };
  if (pattern) {
    RegexMatches matches(*pattern, text);
    for (size_t begin = 0, end = 0; matches.next(begin, end);)
      if (!replace(begin, end)) break;
  } else if (!from.empty()) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string_view::npos; at = done)
      if (!replace(at, at + from.size())) break;
  } else if (!text.empty()) {
    out = to;
  }
  return out.append(text, done);
}

std::string Normalizer::apply(std::string_view text) const {
  std::string now(text);
  const size_t most = kMostGrowth * text.size() + kAlwaysRoom;
  for (const Stage& stage : stages_) {
    now = stage.apply(now, most);
    check_format(now.size() <= most, "tokenizer: a text of ", text.size(), " bytes has more than ",
                 most, " after its normalization");
  }
  return now;
}

}  // namespace brine::data
