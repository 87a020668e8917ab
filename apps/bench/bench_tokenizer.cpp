// The number of bytes of text that a tokenizer encodes per second, on one core.
#include <algorithm>
#include <functional>

#include "apps/bench/bench.h"
#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "data/tokenizer/tokenizer.h"
#include "tensor/base/error.h"

namespace brine::bench {
namespace {

// The lines of a text without empty ones.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

void bench_tokenizer(RowSink& rows, const std::string& directory, const std::string& data) {
  const std::string text = data::read_text(data);
  const std::vector<std::string_view> lines = lines_of(text);
  auto row = [&](const std::string& name, double ms, size_t tokens) {
    rows.add({.name = name,
              .shape = join(text.size(), " bytes"),
              .ms = ms,
              .rate = double(text.size()) / ms / 1e3,
              .unit = "MB/s",
              .notes = {{"tokens", double(tokens)}}});
  };
  // A new tokenizer has an empty word cache.
  double cold = 0;
  size_t tokens = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const auto fresh = data::load_tokenizer(directory);
    const double start = now_ms();
    tokens = fresh->encode(text).size();
    const double ms = now_ms() - start;
    cold = turn == 0 ? ms : std::min(cold, ms);
  }
  row("whole text, new tokenizer", cold, tokens);
  const auto tokenizer = data::load_tokenizer(directory);
  // Timed before the row is made: the order in which arguments are evaluated is not defined.
  auto timed_row = [&](const std::string& name, const std::function<void()>& encode) {
    const double ms = median_time(encode);
    row(name, ms, tokens);
  };
  timed_row("whole text", [&] { tokens = tokenizer->encode(text).size(); });
  timed_row("by lines", [&] {
    tokens = 0;
    for (std::string_view line : lines) tokens += tokenizer->encode(line).size();
  });
  timed_row("by lines, special tokens and offsets", [&] {
    tokens = 0;
    for (std::string_view line : lines) tokens += tokenizer->encode_pair(line).ids.size();
  });
}

}  // namespace brine::bench
