// Mixed windows: lengths by step, places in the text by a permutation for each length.
#include "distill/batches/mixed_source.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "data/corpus/permutation.h"

namespace brine::distill {
namespace {

// Streams of random numbers of a window; training itself draws from streams 1 and 2.
constexpr uint64_t kLengthStream = uint64_t(0x4c454e) << 40, kContentStream = uint64_t(0x524554)
                                                                              << 40;

int64_t parse_length(std::string_view word, const std::string& text) {
  int64_t value = 0;
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, value);
  check(error == std::errc() && at == end && value >= 2, "lengths: '", text,
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
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    out.push_back(parse_length(std::string_view(text).substr(at, end - at), text));
    at = end + 1;
  }
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
