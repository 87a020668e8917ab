// Matching by backtracking: a choice is stored for every alternative and every run of characters
// that may still be shortened.
#include <algorithm>

#include "data/tokenizer/regex/regex.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

using StepKind = RegexStep::Kind;

size_t before(std::string_view text, size_t at) {
  do --at;
  while ((uint8_t(text[at]) & 0xc0) == 0x80);
  return at;
}

}  // namespace

bool CharSet::found(uint32_t c) const {
  bool in = (classes_ >> int(char_class(c)) & 1) != 0;
  for (size_t i = 0; i < ranges_.size() && !in; ++i)
    in = c >= ranges_[i].first && c <= ranges_[i].last;
  return in != negated_;
}

bool CharSet::narrow() const {
  if (negated_ || classes_ != 0) return false;
  return std::all_of(ranges_.begin(), ranges_.end(), [](Range r) { return r.last < 128; });
}

void CharSet::ignore_case() {
  const std::vector<Range> all = ranges_;
  auto other_case = [&](uint32_t c, uint32_t other) {
    for (const Range& r : all)
      if (c >= r.first && c <= r.last) return add(other, other);
  };
  for (uint32_t c = 'a'; c <= 'z'; ++c) {
    other_case(c, c - 32);
    other_case(c - 32, c);
  }
  for (auto [letter, other] : {std::pair{'s', 0x17f}, {'k', 0x212a}}) {
    other_case(uint32_t(letter), uint32_t(other));
    other_case(uint32_t(letter) - 32, uint32_t(other));
  }
}

void CharSet::finish() {
  ascii_ = {};
  for (uint32_t c = 0; c < 128; ++c)
    if (found(c)) ascii_[c >> 6] |= uint64_t(1) << (c & 63);
}

RegexMatches::RegexMatches(const Regex& regex, std::string_view text)
    : regex_(regex), text_(text), left_(kMaxSteps * (text.size() + 64)) {}

void RegexMatches::spend(uint64_t steps) {
  check(steps <= left_, regex_.where(), ": the pattern '", regex_.name(), "' needs more than ",
        kMaxSteps, " steps for each byte of a text of ", text_.size(), " bytes");
  left_ -= steps;
}

bool RegexMatches::next(size_t& begin, size_t& end) {
  while (from_ < text_.size()) {
    const size_t stop = starts(regex_.start(), from_) ? run(0, from_) : kNone;
    if (stop != kNone && stop > from_) {
      begin = from_;
      end = from_ = stop;
      return true;
    }
    next_char(text_, from_);
  }
  return false;
}

bool RegexMatches::starts(const RegexStart& start, size_t at) const {
  if (start.always) return true;
  if (at == text_.size()) return false;
  const auto byte = uint8_t(text_[at]);
  return byte < 128 ? (start.ascii[byte >> 6] >> (byte & 63) & 1) != 0 : start.wide;
}

// The end of at most `max_count` characters of the set from `at` on, and their number.
size_t RegexMatches::after_run(const CharSet& set, uint32_t max_count, size_t at, uint32_t& count) {
  for (count = 0; count < max_count && at < text_.size(); ++count) {
    size_t next = at;
    if (!set.has(next_char(text_, next))) break;
    at = next;
  }
  spend(count);
  return at;
}

bool RegexMatches::repeat(const RegexStep& step, uint32_t index, size_t& at) {
  const CharSet& set = regex_.sets()[step.set];
  uint32_t count = 0;
  const size_t start = at;
  at = after_run(set, step.max_count, at, count);
  if (count < step.min_count) return false;
  if (step.possessive || count == step.min_count) return true;
  size_t low = start;
  for (uint32_t i = 0; i < step.min_count; ++i) next_char(text_, low);
  choices_.push_back({index + 1, at, low});
  return true;
}

size_t RegexMatches::run(uint32_t step, size_t at) {
  const size_t bottom = choices_.size();
  auto go_back = [&] {
    while (choices_.size() > bottom) {
      Choice& last = choices_.back();
      step = last.step;
      if (last.low == kNone) {
        at = last.at;
        choices_.pop_back();
        return true;
      }
      at = last.at = before(text_, last.at);
      if (at == last.low) choices_.pop_back();
      return true;
    }
    return false;
  };
  while (true) {
    spend(1);
    const RegexStep& now = regex_.steps()[step];
    bool ok = true;
    switch (now.kind) {
      case StepKind::set:
        ok = at < text_.size() && regex_.sets()[now.set].has(next_char(text_, at));
        ++step;
        break;
      case StepKind::repeat:
        ok = repeat(now, step, at);
        ++step;
        break;
      case StepKind::split:
        if (starts(now.start, at)) {
          choices_.push_back({now.other, at, kNone});
          step = now.next;
        } else {
          step = now.other;
        }
        break;
      case StepKind::jump:
        step = now.next;
        break;
      case StepKind::look:
        ok = (run(now.other, at) != kNone) != now.negative;
        step = now.next;
        break;
      case StepKind::accept:
        choices_.resize(bottom);
        return at;
    }
    if (!ok && !go_back()) return kNone;
  }
}

}  // namespace brine::data
