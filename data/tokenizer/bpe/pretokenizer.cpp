// The steps of pre-tokenization.
#include "data/tokenizer/bpe/pretokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

// Numbers of Unicode 17.0: in `tokenizers` Digits has the tables of Rust, which are newer than
// those of regular expressions.
bool is_newer_digit(uint32_t c) {
  return (c >= 0x11de0 && c <= 0x11de9) || (c >= 0x16ff4 && c <= 0x16ff6);
}

// The end of the digits, or of what is between digits, from `at` on.
size_t digits_end(std::string_view text, size_t at, bool individual) {
  auto is_digit = [&](size_t& offset) {
    const uint32_t c = next_char(text, offset);
    return char_class(c) == CharClass::kNumber || is_newer_digit(c);
  };
  const bool digit = is_digit(at);
  while (at < text.size() && !(digit && individual)) {
    size_t next = at;
    if (is_digit(next) != digit) break;
    at = next;
  }
  return at;
}

}  // namespace

PreTokenizer::PreTokenizer() : steps_{{.kind = Step::Kind::gpt2}}, byte_level_(true) {}

PreTokenizer::PreTokenizer(const SortedJson& description, const std::string& where) {
  if (!description.is_null()) add(description, where, false);
}

bool PreTokenizer::is_gpt2() const {
  return byte_level_ && steps_.size() == 1 && steps_[0].kind == Step::Kind::gpt2;
}

void PreTokenizer::add(const SortedJson& description, const std::string& where, bool inside) {
  check_format(description.is_object() && member(description, "type").is_string(), where,
               ": a pre_tokenizer must be an object with a 'type'");
  const auto type = description["type"].get<std::string>();
  const std::string object = where + ": pre_tokenizer " + type;
  if (type == "Sequence" && !inside) {
    const SortedJson& list = member(description, "pretokenizers");
    check_format(list.is_array(), where,
                 ": pre_tokenizer of type \"Sequence\" must have a list 'pretokenizers'");
    for (const SortedJson& part : list) add(part, where, true);
    return;
  }
  check_format(!byte_level_, where, ": pre_tokenizer of type ", json_text(description["type"]),
               " after ByteLevel is not supported");
  if (type == "ByteLevel") {
    add_byte_level(description, object);
  } else if (type == "Digits") {
    const bool individual = flag(description, "individual_digits", false, object);
    steps_.push_back({.kind = Step::Kind::digits, .individual = individual});
  } else if (type == "Split") {
    add_split(description, object);
  } else if (type == "Metaspace") {
    add_metaspace(description, object);
  } else {
    throw Error(join(where, ": pre_tokenizer of type ", json_text(description["type"]),
                     " is not supported; supported are ByteLevel, Digits, Metaspace, Split and a "
                     "Sequence of those"),
                ErrorKind::format);
  }
  any_ = true;
}

void PreTokenizer::add_byte_level(const SortedJson& description, const std::string& where) {
  prefix_space_ = flag(description, "add_prefix_space", true, where);
  check_format(!prefix_space_ || !any_, where,
               ": add_prefix_space = true after another pre_tokenizer is not supported");
  check_format(space_.empty(), where, " after Metaspace is not supported");
  if (flag(description, "use_regex", true, where)) steps_.push_back({.kind = Step::Kind::gpt2});
  byte_level_ = true;
}

void PreTokenizer::add_split(const SortedJson& description, const std::string& where) {
  Step step{.kind = Step::Kind::split,
            .invert = flag(description, "invert", false, where),
            .pattern = read_pattern(description, where)};
  static const std::pair<const char*, Behavior> behaviors[] = {
      {"Isolated", Behavior::isolated},
      {"Removed", Behavior::removed},
      {"MergedWithPrevious", Behavior::with_previous},
      {"MergedWithNext", Behavior::with_next}};
  const SortedJson& given = member(description, "behavior");
  auto found = std::find_if(std::begin(behaviors), std::end(behaviors),
                            [&](const auto& name) { return given == name.first; });
  check_format(found != std::end(behaviors), where, ": behavior ", json_text(given),
               " is not supported");
  step.behavior = found->second;
  steps_.push_back(std::move(step));
}

void PreTokenizer::add_metaspace(const SortedJson& description, const std::string& where) {
  check_format(!any_, where, " after another pre_tokenizer is not supported");
  const SortedJson& replacement = member(description, "replacement");
  check_format(replacement.is_string(), where, ": 'replacement' must be a character");
  space_ = replacement.get<std::string>();
  size_t size = 0;
  if (!space_.empty()) next_char(space_, size);
  check_format(size > 0 && size == space_.size(), where, ": 'replacement' must be a character");
  const SortedJson& scheme = member(description, "prepend_scheme");
  const bool old = flag(description, "add_prefix_space", true, where);
  check_format(scheme.is_null() || scheme == "always" || scheme == "first" || scheme == "never",
               where, ": prepend_scheme ", json_text(scheme), " is not supported");
  scheme_ = scheme == "first"                                 ? Scheme::first
            : scheme == "never" || (scheme.is_null() && !old) ? Scheme::never
                                                              : Scheme::always;
  if (flag(description, "split", true, where))
    steps_.push_back({.kind = Step::Kind::split,
                      .behavior = Behavior::with_next,
                      .pattern = {.literal = space_}});
}

std::string PreTokenizer::prepare(std::string_view text, bool first) const {
  std::string out;
  out.reserve(text.size() + text.size() / 2 + 4);
  const std::string_view space = space_.empty() ? std::string_view(" ") : std::string_view(space_);
  const bool has_space = text.starts_with(' ') || text.starts_with(space);
  const bool wanted =
      prefix_space_ ||
      (!space_.empty() && (scheme_ == Scheme::always || (scheme_ == Scheme::first && first)));
  if (wanted && !has_space) out += space;
  for (size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find(' ', at), text.size());
    out += text.substr(at, end - at);
    if (end < text.size()) out += space;
  }
  return out;
}

void PreTokenizer::cut_from(size_t step, std::string_view text, const UseWord& use) const {
  if (text.empty()) return;
  if (step == steps_.size()) return use(text);
  switch (steps_[step].kind) {
    case Step::Kind::gpt2:
      for (size_t at = 0, end = 0; at < text.size(); at = end) {
        end = gpt2_word_end(text, at);
        use(text.substr(at, end - at));
      }
      break;
    case Step::Kind::digits:
      cut_digits(step, text, use);
      break;
    case Step::Kind::split:
      cut_split(step, text, use);
      break;
  }
}

void PreTokenizer::cut_digits(size_t step, std::string_view text, const UseWord& use) const {
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = digits_end(text, at, steps_[step].individual);
    cut_from(step + 1, text.substr(at, end - at), use);
  }
}

template <class Use>
void PreTokenizer::pieces_of(const Step& step, std::string_view text, const Use& use) {
  size_t done = 0;
  step.pattern.each_match(text, [&](size_t begin, size_t end) {
    if (begin > done) use(Piece{done, begin, step.invert});
    use(Piece{begin, end, !step.invert});
    done = end;
    return true;
  });
  if (done < text.size()) use(Piece{done, text.size(), step.invert});
}

void PreTokenizer::cut_split(size_t step, std::string_view text, const UseWord& use) const {
  const Step& how = steps_[step];
  auto pass_on = [&](const Piece& piece) {
    cut_from(step + 1, text.substr(piece.begin, piece.end - piece.begin), use);
  };
  if (how.behavior == Behavior::isolated) return pieces_of(how, text, pass_on);
  // The others join pieces. As in `tokenizers`, of several matches in a row only the one next to
  // what it is merged with is merged.
  std::vector<Piece> pieces;
  bool last = false;
  pieces_of(how, text, [&](const Piece& piece) {
    const bool joins = how.behavior == Behavior::with_previous && piece.match && !last;
    if (joins && !pieces.empty())
      pieces.back().end = piece.end;
    else if (how.behavior != Behavior::removed || !piece.match)
      pieces.push_back(piece);
    last = piece.match;
  });
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool joins = how.behavior == Behavior::with_next && pieces[i].match &&
                       i + 1 < pieces.size() && !pieces[i + 1].match;
    if (joins) pieces[i + 1].begin = pieces[i].begin;
    if (!joins) pass_on(pieces[i]);
  }
}

}  // namespace brine::data
