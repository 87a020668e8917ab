// From the text of a regular expression to its steps, by way of a tree.
#include <algorithm>
#include <optional>

#include "data/io/utf8.h"
#include "data/tokenizer/regex/regex.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr uint32_t kUnlimited = UINT32_MAX;
constexpr uint32_t kMaxRepeats = 1000;
constexpr size_t kMaxCompiled = 10000;  // steps
constexpr size_t kMaxParts = 100000;    // of which some, like "()", are no step
constexpr size_t kLongestPattern = 10000;
constexpr int kDeepestGroup = 32;

struct Part {
  enum class Kind : uint8_t { set, sequence, either, repeat, look };
  Kind kind = Kind::sequence;
  bool negative = false, possessive = false;
  CharSet set = {};
  uint32_t min_count = 1, max_count = 1;
  std::vector<Part> parts = {};
};

class Parser {
 public:
  Parser(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  Part whole() {
    Part out = either(0, false);
    if (at_ < pattern_.size()) refuse("a ')' without '('");
    return out;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(join(where_, ": the pattern '", shown(pattern_), "': ", what, " is not supported"),
                ErrorKind::format);
  }

 private:
  bool done() const { return at_ == pattern_.size(); }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t next() { return next_char(pattern_, at_); }

  Part either(int depth, bool ignore_case) {
    if (depth > kDeepestGroup) refuse("a nesting of more than 32 groups");
    Part out{.kind = Part::Kind::either};
    do out.parts.push_back(sequence(depth, ignore_case));
    while (take("|"));
    return out.parts.size() == 1 ? std::move(out.parts[0]) : out;
  }

  Part sequence(int depth, bool ignore_case) {
    Part out;
    while (!done() && pattern_[at_] != '|' && pattern_[at_] != ')')
      out.parts.push_back(quantified(atom(depth, ignore_case)));
    return out;
  }

  Part group(int depth, bool ignore_case) {
    struct Opening {
      std::string_view text;
      Part::Kind kind;
      bool negative, ignore_case;
    };
    static const Opening openings[] = {{"?:", Part::Kind::sequence, false, false},
                                       {"?i:", Part::Kind::sequence, false, true},
                                       {"?=", Part::Kind::look, false, false},
                                       {"?!", Part::Kind::look, true, false}};
    const Opening plain = {"", Part::Kind::sequence, false, false};
    const Opening* found = &plain;
    for (const Opening& opening : openings)
      if (take(opening.text)) {
        found = &opening;
        break;
      }
    if (found == &plain && !done() && (pattern_[at_] == '?' || pattern_[at_] == '*'))
      refuse("the group '(" + shown(pattern_.substr(at_, 3)) + "'");
    Part out{.kind = found->kind, .negative = found->negative};
    out.parts.push_back(either(depth + 1, ignore_case || found->ignore_case));
    if (!take(")")) refuse("a '(' without ')'");
    return out;
  }

  Part atom(int depth, bool ignore_case) {
    if (take("(")) return group(depth, ignore_case);
    Part out{.kind = Part::Kind::set};
    if (take("[")) {
      out.set = brackets(ignore_case);
      return out;
    }
    if (take(".")) {
      out.set.add('\n', '\n');
      out.set.negate();
    } else if (auto c = item(out.set, "?*+{^$")) {
      out.set.add(*c, *c);
      fold(out.set, *c, ignore_case);
    }
    out.set.finish();
    return out;
  }

  void fold(CharSet& set, uint32_t last, bool ignore_case) const {
    if (!ignore_case) return;
    if (last >= 128) refuse("a character above ASCII in (?i:)");
    set.ignore_case();
  }

  // A character, or a class, which is added to the set.
  std::optional<uint32_t> item(CharSet& set, std::string_view reserved) {
    const uint32_t c = next();
    if (c < 128 && reserved.find(char(c)) != std::string_view::npos)
      refuse(std::string("'") + char(c) + "' here");
    if (c != '\\') return c;
    if (done()) refuse("a '\\' at the end");
    const uint32_t escaped = next();
    constexpr std::string_view kNames = "nrtfv", kControls = "\n\r\t\f\v";
    const size_t control = escaped < 128 ? kNames.find(char(escaped)) : std::string_view::npos;
    if (control != std::string_view::npos) return uint32_t(kControls[control]);
    if (escaped == 's') return set.add(CharClass::kSpace), std::nullopt;
    if (escaped == 'S') return set.add_others(CharClass::kSpace), std::nullopt;
    if (escaped == 'p' || escaped == 'P') return add_property(set, escaped == 'P'), std::nullopt;
    const bool word = escaped >= 128 || (escaped >= '0' && escaped <= '9') ||
                      (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z');
    if (word) {
      refuse(escaped < 128 ? std::string("'\\") + char(escaped) + "'" : "'\\' before a letter");
    }
    return escaped;
  }

  void add_property(CharSet& set, bool others) {
    const size_t end = pattern_.find('}', at_);
    const bool braces = take("{") && end != std::string_view::npos;
    const std::string_view name = braces ? pattern_.substr(at_, end - at_) : std::string_view();
    const bool letter = name == "L" || name == "Letter";
    if (!letter && name != "N" && name != "Number")
      refuse(join("'\\", others ? "P" : "p", braces ? "{" : "", shown(name), braces ? "}'" : "'"));
    at_ = end + 1;
    const CharClass kind = letter ? CharClass::kLetter : CharClass::kNumber;
    if (others)
      set.add_others(kind);
    else
      set.add(kind);
  }

  CharSet brackets(bool ignore_case) {
    CharSet set;
    const bool negated = take("^");
    bool classes = false;
    uint32_t largest = 0;
    for (bool first = true; !take("]"); first = false) {
      if (done()) refuse("a '[' without ']'");
      if (pattern_.substr(at_).starts_with("&&")) refuse("'&&' in a set");
      if (pattern_[at_] == '-' && !first && !pattern_.substr(at_).starts_with("-]"))
        refuse("'-' here");
      const std::optional<uint32_t> from = item(set, "[");
      classes = classes || !from;
      if (!from) continue;
      uint32_t to = *from;
      if (!pattern_.substr(at_).starts_with("-]") && take("-")) {
        if (done()) refuse("a '[' without ']'");
        const std::optional<uint32_t> end = item(set, "[");
        if (!end || *end < *from) refuse("a range that does not ascend");
        to = *end;
      }
      set.add(*from, to);
      largest = std::max(largest, to);
    }
    if (!classes && set.empty()) refuse("an empty set");
    if (classes && ignore_case) refuse("a class in (?i:)");
    fold(set, largest, ignore_case);
    if (negated) set.negate();
    set.finish();
    return set;
  }

  // {n}, {n,}, {n,m}, {,m}
  void braces(Part& part) {
    auto number = [&](uint32_t otherwise) {
      if (done() || pattern_[at_] < '0' || pattern_[at_] > '9') return otherwise;
      uint32_t value = 0;
      while (!done() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
        value = 10 * value + uint32_t(pattern_[at_++] - '0');
        if (value > kMaxRepeats) refuse("a quantifier above 1000");
      }
      return value;
    };
    part.min_count = number(kUnlimited);
    if (take(",")) {
      const bool none = part.min_count == kUnlimited;
      part.max_count = number(kUnlimited);
      if (none && part.max_count == kUnlimited) refuse("'{,}'");
      if (none) part.min_count = 0;
    } else {
      part.max_count = part.min_count;
    }
    const bool good =
        part.min_count != kUnlimited && part.min_count <= part.max_count && part.max_count > 0;
    if (!take("}") || !good) refuse("a '{' that is not a quantifier {n,m}");
  }

  Part quantified(Part atom) {
    Part out{.kind = Part::Kind::repeat};
    const bool counted = !done() && pattern_[at_] == '{';
    if (take("?")) {
      out.min_count = 0;
    } else if (take("*")) {
      out.min_count = 0;
      out.max_count = kUnlimited;
    } else if (take("+")) {
      out.max_count = kUnlimited;
    } else if (take("{")) {
      braces(out);
    } else {
      return atom;
    }
    if (atom.kind == Part::Kind::look) refuse("a quantifier after a lookahead");
    out.parts.push_back(std::move(atom));
    // After {n} it has another meaning in Oniguruma.
    out.possessive = !counted && take("+");
    if (out.possessive && out.parts[0].kind != Part::Kind::set)
      refuse("a possessive quantifier after a group");
    if (!done() && std::string_view("?*+{").find(pattern_[at_]) != std::string_view::npos)
      refuse("a quantifier after a quantifier");
    return out;
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
};

bool may_be_empty(const Part& part) {
  auto empty = [](const Part& p) { return may_be_empty(p); };
  switch (part.kind) {
    case Part::Kind::set:
      return false;
    case Part::Kind::look:
      return true;
    case Part::Kind::repeat:
      return part.min_count == 0 || empty(part.parts[0]);
    case Part::Kind::either:
      return std::any_of(part.parts.begin(), part.parts.end(), empty);
    default:
      return std::all_of(part.parts.begin(), part.parts.end(), empty);
  }
}

RegexStart start_of(const Part& part) {
  RegexStart out;
  auto add = [&](const RegexStart& more) {
    for (size_t i = 0; i < 2; ++i) out.ascii[i] |= more.ascii[i];
    out.wide = out.wide || more.wide;
  };
  if (part.kind == Part::Kind::set) {
    out.ascii = part.set.ascii();
    out.wide = !part.set.narrow();
  } else if (part.kind != Part::Kind::look) {
    for (const Part& p : part.parts) {
      add(start_of(p));
      if (part.kind != Part::Kind::either && !may_be_empty(p)) break;
    }
  }
  out.always = may_be_empty(part);
  return out;
}

class Compiler {
 public:
  Compiler(const Parser& parser, std::vector<RegexStep>& steps, std::vector<CharSet>& sets)
      : parser_(parser), steps_(steps), sets_(sets) {}

  void add(const Part& part) {
    if (++parts_ > kMaxParts) refuse_size();
    switch (part.kind) {
      case Part::Kind::set:
        step({.kind = Kind::set, .set = keep(part.set)});
        break;
      case Part::Kind::sequence:
        for (const Part& p : part.parts) add(p);
        break;
      case Part::Kind::either:
        return either(part);
      case Part::Kind::repeat:
        return repeat(part);
      case Part::Kind::look:
        return look(part);
    }
  }

  size_t step(RegexStep s) {
    if (steps_.size() == kMaxCompiled) refuse_size();
    steps_.push_back(s);
    return steps_.size() - 1;
  }

 private:
  using Kind = RegexStep::Kind;

  [[noreturn]] void refuse_size() const { parser_.refuse("a size of more than 10000 steps"); }
  uint32_t here() const { return uint32_t(steps_.size()); }
  uint32_t keep(const CharSet& set) {
    sets_.push_back(set);
    return uint32_t(sets_.size() - 1);
  }

  void either(const Part& part) {
    std::vector<size_t> ends;
    for (size_t i = 0; i + 1 < part.parts.size(); ++i) {
      const size_t split = maybe(part.parts[i]);
      add(part.parts[i]);
      ends.push_back(step({.kind = Kind::jump}));
      steps_[split].other = here();
    }
    add(part.parts.back());
    for (size_t end : ends) steps_[end].next = here();
  }

  void repeat(const Part& part) {
    const Part& body = part.parts[0];
    if (body.kind == Part::Kind::set) {
      step({.kind = Kind::repeat,
            .possessive = part.possessive,
            .set = keep(body.set),
            .min_count = part.min_count,
            .max_count = part.max_count});
      return;
    }
    if (part.max_count == kUnlimited && may_be_empty(body))
      parser_.refuse("an unlimited repetition of what may be empty");
    for (uint32_t i = 0; i < part.min_count; ++i) add(body);
    if (part.max_count == kUnlimited) {
      const size_t split = maybe(body);
      add(body);
      step({.kind = Kind::jump, .next = uint32_t(split)});
      steps_[split].other = here();
      return;
    }
    std::vector<size_t> splits;
    for (uint32_t i = part.min_count; i < part.max_count; ++i) {
      splits.push_back(maybe(body));
      add(body);
    }
    for (size_t split : splits) steps_[split].other = here();
  }

  // A choice between the steps that follow, which is tried first, and those that are set later.
  size_t maybe(const Part& body) {
    const size_t split = step({.kind = Kind::split, .start = start_of(body)});
    steps_[split].next = here();
    return split;
  }

  void look(const Part& part) {
    const size_t outer = step({.kind = Kind::look, .negative = part.negative});
    steps_[outer].other = here();
    for (const Part& p : part.parts) add(p);
    step({.kind = Kind::accept});
    steps_[outer].next = here();
  }

  const Parser& parser_;
  std::vector<RegexStep>& steps_;
  std::vector<CharSet>& sets_;
  size_t parts_ = 0;
};

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where)
    : name_(shown(pattern)), where_(where) {
  check_format(pattern.size() <= kLongestPattern, where, ": a pattern of ", pattern.size(),
               " bytes, wanted at most ", kLongestPattern);
  check_format(is_utf8(pattern), where, ": a pattern is not UTF-8");
  Parser parser(pattern, where);
  const Part whole = parser.whole();
  if (may_be_empty(whole)) parser.refuse("a match of the empty text");
  start_ = start_of(whole);
  Compiler compiler(parser, steps_, sets_);
  compiler.add(whole);
  compiler.step({.kind = RegexStep::Kind::accept});
}

}  // namespace brine::data
