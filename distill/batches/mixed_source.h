// Windows of mixed lengths, a share of them with retrieval.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "data/corpus/token_source.h"
#include "data/tokenizer/tokenizer.h"
#include "distill/batches/batch.h"
#include "tensor/base/random.h"

namespace brine::distill {

// Windows in which distant keys matter, made from seeds: copies, random tokens that return, and
// facts that are asked for at the end. A student that trains on plain text alone unlearns this.

enum class RetrievalKind : uint8_t {
  passage,        // a passage of the text returns later in the window
  random_tokens,  // so does a sequence of tokens drawn from the text or the vocabulary
  needles,        // facts in varied words at random depths, some of them asked for at the end
};

// Draws in order from one slice of random numbers.
class Draws {
 public:
  explicit Draws(RandomSlice slice) : slice_(slice) {}
  // Uniform in [low, high].
  int64_t between(int64_t low, int64_t high);
  bool chance(double share) { return slice_.uniform(next_++) < share; }

 private:
  RandomSlice slice_;
  uint64_t next_ = 0;
};

class Retrieval {
 public:
  // Without a tokenizer there are no needles.
  Retrieval(std::shared_ptr<const data::TokenSource> tokens,
            std::shared_ptr<const data::Tokenizer> tokenizer, int64_t vocabulary);

  // Changes a window of plain text into one with retrieval; what it contains is a function of the
  // window and of `draws`. A window of fewer than 64 tokens has no needles.
  void rewrite(std::span<int32_t> window, Draws& draws) const;
  void rewrite(std::span<int32_t> window, RetrievalKind kind, Draws& draws) const;

 private:
  void repeat_passage(std::span<int32_t> window, Draws& draws) const;
  void repeat_random(std::span<int32_t> window, Draws& draws) const;
  void insert_needles(std::span<int32_t> window, Draws& draws) const;

  std::shared_ptr<const data::TokenSource> tokens_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  int64_t vocabulary_;
};

// The text of a fact and of the question that it answers, whose answer follows it: number `wording`
// of needle_wordings() about `key`.
struct Needle {
  std::string fact, question;
};
int64_t needle_wordings();
Needle needle(int64_t wording, const std::string& key, const std::string& value);

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
