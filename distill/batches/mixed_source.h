// Windows of mixed lengths, a share of them with retrieval.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "distill/batches/batch.h"
#include "distill/batches/retrieval.h"

namespace brine::distill {

// Lengths of windows as text: "1024"; "512,1024,2048", drawn equally often; or a range, "512-2048",
// of its multiples of 64. Throws for other texts.
std::vector<int64_t> parse_lengths(const std::string& text);

// What the windows of a stage contain.
struct TextMixture {
  std::optional<std::string> lengths;     // as above; empty: sequence_length
  std::optional<double> retrieval_share;  // of the windows

  void describe(data::Schema& s);
};

// All windows of a step have one length. Window n is a function of the corpus, the seed and n, so
// that the position of a run is one number and a batch that is cut into micro-batches has the same
// windows.
class MixedSource : public BatchSource {
 public:
  struct Config {
    std::vector<int64_t> lengths;  // drawn equally often
    double retrieval_share = 0;
    int64_t step_windows = 1;  // windows of a step, over all micro-batches
    uint64_t seed = 1;
  };
  // Throws when the text is shorter than the longest window.
  MixedSource(std::shared_ptr<const data::TokenSource> tokens, Retrieval retrieval, Config config);

  int64_t size() const override;  // windows of the longest length in the text
  int64_t window() const override { return longest_; }
  Batch batch(int64_t n, int64_t B) override;
  std::vector<int64_t> windows_of(int64_t n, int64_t B) override;
  int64_t row_tokens(int64_t n, int64_t B) override { return length_of(n * B); }
  std::unique_ptr<BatchSource> clone() const override {
    return std::make_unique<MixedSource>(*this);
  }
  // The length of window n.
  int64_t length_of(int64_t n) const;

 private:
  void fill_window(int64_t n, std::span<int32_t> window) const;

  std::shared_ptr<const data::TokenSource> tokens_;
  Retrieval retrieval_;
  Config config_;
  int64_t longest_;
};

}  // namespace brine::distill
