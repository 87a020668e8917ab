// Windows in which distant keys matter, made from seeds: copies, random tokens that return, and
// facts that are asked for at the end. A student that trains on plain text alone unlearns this.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/corpus/token_source.h"
#include "data/tokenizer/tokenizer.h"
#include "tensor/base/random.h"

namespace brine::distill {

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

}  // namespace brine::distill
