// Mixed windows: lengths by step, positions in the text by a permutation for each length, and
// windows that train retrieval.
#include "distill/batches/mixed_source.h"

#include <algorithm>
#include <numeric>

#include "data/corpus/permutation.h"
#include "data/io/utf8.h"

namespace brine::distill {

namespace {

// Each wording has a slot for the key and one for the value. None is a sentence of the tasks that
// models are evaluated on.
struct Wording {
  const char *fact_before, *fact_between, *fact_after;
  const char *question_before, *question_after;
};
constexpr Wording kWordings[] = {
    {"The locker of ", " opens with ", ".", "Which code opens the locker of ", "? It is "},
    {"The parcel for ", " was left in box ", ".", "The box with the parcel for ", " is number "},
    {"In the ledger ", " is entered under ", ".", "Look up ", " in the ledger: the entry is "},
    {"Call ", " on extension ", " after lunch.", "The extension of ", " is "},
    {"The train to ", " leaves at ", " today.", "When does the train to ", " leave? At "},
    {"Remember that ", " lives at house ", ".", "The house where ", " lives has the number "},
    {"They gave ", " the badge ", " at the gate.", "The badge that was given to ", " reads "},
    {"Sample ", " weighed ", " grams.", "The weight in grams of sample ", " was "},
    {"According to the map, ", " is ", " paces away.", "On the map the distance to ", " is "},
    {"The account of ", " ends in ", ".", "The last digits of the account of ", " are "},
};

constexpr const char* kFirst[] = {"Alder", "Brook",   "Cedar", "Dover",   "Ember",   "Falcon",
                                  "Grove", "Harbor",  "Ivory", "Juniper", "Kestrel", "Linden",
                                  "Maple", "Norton",  "Opal",  "Pebble",  "Quarry",  "Raven",
                                  "Stone", "Thistle", "Umber", "Velvet",  "Walnut",  "Yarrow"};
constexpr const char* kSecond[] = {"Adams",  "Baker",  "Carver",  "Dunne",  "Ellis",  "Foster",
                                   "Garner", "Hayes",  "Irwin",   "Jarvis", "Keller", "Lowell",
                                   "Mercer", "Nolan",  "Osborne", "Porter", "Quinn",  "Ramsey",
                                   "Sawyer", "Turner", "Upton",   "Vance",  "Weaver", "Young"};

template <size_t N>
std::string pick(const char* const (&words)[N], Draws& draws) {
  return words[draws.between(0, int64_t(N) - 1)];
}

// Three to seven digits, or a word.
std::string draw_value(Draws& draws) {
  if (draws.chance(0.25)) return pick(kFirst, draws);
  std::string digits;
  const int64_t count = draws.between(3, 7);
  for (int64_t i = 0; i < count; ++i) digits += char('0' + draws.between(i ? 0 : 1, 9));
  return digits;
}

// Distinct names: of two facts with one key either could be meant.
std::vector<std::string> draw_keys(int64_t count, Draws& draws) {
  std::vector<std::string> keys;
  while (int64_t(keys.size()) < count) {
    std::string key = pick(kFirst, draws) + " " + pick(kSecond, draws);
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
  }
  return keys;
}

// Tokens [from, from + count) once more at `to`.
void copy_tokens(std::span<int32_t> window, int64_t from, int64_t count, int64_t to) {
  std::copy_n(window.begin() + from, count, window.begin() + to);
}

}  // namespace

int64_t Draws::between(int64_t low, int64_t high) {
  return low + int64_t(slice_.word(next_++) % uint64_t(high - low + 1));
}

int64_t needle_wordings() { return int64_t(std::size(kWordings)); }

Needle needle(int64_t wording, const std::string& key, const std::string& value) {
  const Wording& w = kWordings[wording];
  return {w.fact_before + key + w.fact_between + value + w.fact_after,
          w.question_before + key + w.question_after};
}

Retrieval::Retrieval(std::shared_ptr<const data::TokenSource> tokens,
                     std::shared_ptr<const data::Tokenizer> tokenizer, int64_t vocabulary)
    : tokens_(std::move(tokens)), tokenizer_(std::move(tokenizer)), vocabulary_(vocabulary) {}

void Retrieval::rewrite(std::span<int32_t> window, Draws& draws) const {
  constexpr int64_t kFewest = 64;  // tokens of a window with needles
  const bool needles = tokenizer_ && int64_t(window.size()) >= kFewest;
  rewrite(window, RetrievalKind(draws.between(0, needles ? 2 : 1)), draws);
}

void Retrieval::rewrite(std::span<int32_t> window, RetrievalKind kind, Draws& draws) const {
  switch (kind) {
    case RetrievalKind::passage:
      return repeat_passage(window, draws);
    case RetrievalKind::random_tokens:
      return repeat_random(window, draws);
    case RetrievalKind::needles:
      return insert_needles(window, draws);
  }
}

// In a quarter of these windows the second half is the first one, else up to three passages return.
void Retrieval::repeat_passage(std::span<int32_t> window, Draws& draws) const {
  const int64_t T = int64_t(window.size());
  if (draws.chance(0.25)) return copy_tokens(window, 0, T / 2, T - T / 2);
  const int64_t passages = draws.between(1, 3);
  for (int64_t i = 0; i < passages; ++i) {
    const int64_t count = draws.between(std::max<int64_t>(T / 32, 1), std::max<int64_t>(T / 6, 1));
    const int64_t from = draws.between(0, T - 2 * count);
    copy_tokens(window, from, count, draws.between(from + count, T - count));
  }
}

// A stretch of tokens without meaning at two positions, the second one at the end of the window in
// half of the cases.
void Retrieval::repeat_random(std::span<int32_t> window, Draws& draws) const {
  const int64_t T = int64_t(window.size());
  const int64_t count = draws.between(std::max<int64_t>(T / 16, 1), T / 2);
  const int64_t from = draws.between(0, T - 2 * count);
  const bool of_text = draws.chance(0.5);
  for (int64_t i = 0; i < count; ++i) {
    int32_t& token = window[size_t(from + i)];
    if (of_text) {
      tokens_->read(draws.between(0, tokens_->size() - 1), {&token, 1});
    } else {
      token = int32_t(draws.between(0, vocabulary_ - 1));
    }
  }
  const bool at_end = draws.chance(0.5);
  copy_tokens(window, from, count, at_end ? T - count : draws.between(from + count, T - count));
}

// Facts over the window, in the order of their depths, and at its end questions with their answers;
// the text makes room for them.
void Retrieval::insert_needles(std::span<int32_t> window, Draws& draws) const {
  const int64_t T = int64_t(window.size());
  const int64_t max_count = std::clamp<int64_t>(T / 96, 1, 16);
  const int64_t count = draws.between(1, max_count),
                asked = draws.between(1, std::min<int64_t>(count, 4));
  const int64_t wording = draws.between(0, needle_wordings() - 1);
  const bool one_wording = draws.chance(0.5);  // facts that differ in their keys alone
  std::vector<std::vector<int32_t>> facts;
  std::vector<int32_t> end;
  for (const std::string& key : draw_keys(count, draws)) {
    const std::string value = draw_value(draws);
    const Needle n =
        needle(one_wording ? wording : draws.between(0, needle_wordings() - 1), key, value);
    facts.push_back(tokenizer_->encode(" " + n.fact));
    if (int64_t(facts.size()) > asked) continue;
    const std::vector<int32_t> question = tokenizer_->encode("\n" + n.question + value + ".");
    end.insert(end.end(), question.begin(), question.end());
  }
  // Those that are asked for are anywhere among the others.
  for (size_t i = facts.size(); i > 1; --i) {
    std::swap(facts[i - 1], facts[size_t(draws.between(0, int64_t(i) - 1))]);
  }
  std::vector<int32_t> out;
  int64_t room = T - int64_t(end.size());
  for (const auto& fact : facts) room -= int64_t(fact.size());
  if (room < 0) return;  // a tokenizer with long spellings, and a short window: plain text
  std::vector<int64_t> depths;
  depths.reserve(facts.size());
  for (size_t i = 0; i < facts.size(); ++i) depths.push_back(draws.between(0, room));
  std::sort(depths.begin(), depths.end());
  int64_t at = 0;
  for (size_t i = 0; i < facts.size(); ++i) {
    out.insert(out.end(), window.begin() + at, window.begin() + depths[i]);
    at = depths[i];
    out.insert(out.end(), facts[i].begin(), facts[i].end());
  }
  out.insert(out.end(), window.begin() + at, window.begin() + room);
  out.insert(out.end(), end.begin(), end.end());
  std::copy(out.begin(), out.end(), window.begin());
}

namespace {

// Streams of random numbers of a window; training itself draws from streams 1 and 2.
constexpr uint64_t kLengthStream = uint64_t(0x4c454e) << 40, kContentStream = uint64_t(0x524554)
                                                                              << 40;

int64_t parse_length(std::string_view word, const std::string& text) {
  int64_t value = 0;
  check(data::parse_number(word, value) && value >= 2, "lengths: '", text,
        "' is not a length of at least 2, a list of them (512,1024) or a range (512-2048)");
  return value;
}

}  // namespace

std::vector<int64_t> parse_lengths(const std::string& text) {
  std::vector<int64_t> out;
  if (const size_t dash = text.find('-'); dash != std::string::npos) {
    constexpr int64_t kStep = 64;
    const int64_t low = parse_length(std::string_view(text).substr(0, dash), text);
    const int64_t high = parse_length(std::string_view(text).substr(dash + 1), text);
    for (int64_t n = (low + kStep - 1) / kStep * kStep; n <= high; n += kStep) out.push_back(n);
    check(!out.empty(), "lengths: the range '", text, "' contains no multiple of ", kStep);
    return out;
  }
  for (const std::string& part : data::split(text, ',')) out.push_back(parse_length(part, text));
  return out;
}

void TextMixture::describe(data::Schema& s) {
  s.field("lengths", lengths,
          "Tokens of the windows: one length, a list like 512,1024 or a range like 512-2048",
          {.unset = "sequence_length; stage attention: 512 to 2048 by doubling; blocks: 8192"});
  s.field("retrieval_share", retrieval_share,
          "Share of the windows that are made for retrieval: copies and facts asked for later",
          {.min = 0, .max = 1, .unset = "by stage"});
}

MixedSource::MixedSource(std::shared_ptr<const data::TokenSource> tokens, Retrieval retrieval,
                         Config config)
    : tokens_(std::move(tokens)),
      retrieval_(std::move(retrieval)),
      config_(std::move(config)),
      longest_(*std::max_element(config_.lengths.begin(), config_.lengths.end())) {
  check(tokens_->size() >= longest_, "windows: the text has ", tokens_->size(),
        " tokens, a window takes ", longest_);
}

int64_t MixedSource::size() const { return tokens_->size() / longest_; }

int64_t MixedSource::length_of(int64_t n) const {
  const uint64_t step = uint64_t(n / config_.step_windows);
  const RandomSlice slice{config_.seed, kLengthStream + step, 0};
  return config_.lengths[slice.word(0) % config_.lengths.size()];
}

void MixedSource::fill_window(int64_t n, std::span<int32_t> window) const {
  const int64_t T = int64_t(window.size()), count = tokens_->size() / T;
  const uint64_t seed = config_.seed + uint64_t(T) * 0x9e3779b97f4a7c15;  // one for each length
  tokens_->read(data::permuted(n % count, count, seed, uint64_t(n / count)) * T, window);
  Draws draws(RandomSlice{config_.seed, kContentStream + uint64_t(n), 0});
  if (draws.chance(config_.retrieval_share)) retrieval_.rewrite(window, draws);
}

std::vector<int64_t> MixedSource::windows_of(int64_t n, int64_t B) {
  std::vector<int64_t> out(static_cast<size_t>(B));
  std::iota(out.begin(), out.end(), n * B);
  return out;
}

Batch MixedSource::batch(int64_t n, int64_t B) {
  check(config_.step_windows % B == 0, "windows: a micro-batch of ", B, " does not divide the ",
        config_.step_windows, " windows of a step");
  Batch b;
  b.windows = windows_of(n, B);
  const int64_t T = length_of(b.windows.front());
  b.ids = Tensor::empty({B, T}, Dtype::i32);
  for (int64_t i = 0; i < B; ++i) {
    fill_window(b.windows[size_t(i)], {b.ids.data<int32_t>() + i * T, size_t(T)});
  }
  b.tokens = B * T;
  return b;
}

}  // namespace brine::distill
