// Perplexity over windows of a text, adjacent or overlapping by a stride, and what is counted
// beside it.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "distill/batches/batch.h"
#include "nn/models/model.h"
#include "nn/models/model_state.h"
#include "tensor/comm/communicator.h"

namespace brine::distill {

struct Perplexity {
  double nll = 0;        // mean negative log-likelihood of a predicted token, natural logarithm
  int64_t tokens = 0;    // predicted tokens
  double value() const;  // exp(nll)
};

// What an evaluation counts besides its result, batch by batch, in parts that are sent between
// ranks.
class BatchMeasure {
 public:
  virtual ~BatchMeasure() = default;
  // What was counted since the last call; resets the counts.
  virtual std::string take() = 0;
  // Adds what take() gave, on this rank or another one.
  virtual void add(const std::string& part) = 0;
};

struct EvaluateCall {
  int64_t batch_size = 8;
  int64_t max_windows = 0;  // 0 = all
  int64_t max_tokens = 0;   // only the first tokens of every window; 0 = all
  int64_t loss_from = 0;    // only targets from this position of a window on
  nn::RuntimeOptions options = {};
  std::optional<nn::CachedReading> reading = {};  // none: windows in one pass; excludes an observer
  nn::LayerObserver* observer = nullptr;          // of every layer of every batch
  std::function<void(const Batch&)> before_batch = {};
  // What the observers count. It is passed on batch by batch, in the order of the batches.
  std::vector<BatchMeasure*> measures = {};
  // The processes that divide the batches; null: this one alone. Each has the bits of one process
  // afterwards, in its result and its measures; an observer sees the batches of its rank only.
  Communicator* ranks = nullptr;
};

// Every window separately, without earlier tokens; its first token is not predicted.
Perplexity evaluate(nn::Model& model, const WindowSource& windows, const EvaluateCall& call);

// A window of at most `window` tokens starts every `stride` tokens, until one reaches the end of
// the text; a token is predicted once, by the first window that contains it; the tokens before it
// in that window are its context. Every predicted token weighs the same; the text's first token is
// not predicted, nor with stride = window the first one of any window. `loss_from` must be 0.
struct StridedWindows {
  int64_t window = 0, stride = 0;  // 2 <= window, 1 <= stride <= window
  int64_t count(int64_t tokens) const;
};
Perplexity evaluate_strided(nn::Model& model, std::span<const int32_t> tokens,
                            const StridedWindows& windows, const EvaluateCall& call);

// The keys that rows read, by which masks are compared: a mean over layers, heads and rows, of a
// mask of blocks the keys of the tile's list up to the row, of another mask those of the row.
class KeysRead : public nn::LayerObserver, public BatchMeasure {
 public:
  // A mask of blocks gives its counts alone: its keys would take more memory than the model.
  void prepare(nn::Tap& tap) const override { tap.request("kept_keys"); }
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override;
  std::string take() override;
  void add(const std::string& part) override;
  double mean() const { return sum_.rows > 0 ? sum_.keys / sum_.rows : 0; }

 private:
  struct Sum {
    double keys = 0, rows = 0;
  };
  Sum sum_;
};

// Of full attention over windows of T tokens.
double keys_of_all(const nn::ModelShape& shape, int64_t T);
// Of a window of k keys in blocks over T causal rows: a row reads those of the blocks that it sees
// a key of.
double keys_of_window(int64_t k, int64_t T, int64_t block = 1);
// The k in whole blocks of a window that reads `read` keys, as nearly as blocks allow, in the mean
// over texts of these lengths.
int64_t k_of_window(double read, std::span<const int64_t> lengths, int64_t block = 1);
// Of a pass over ids [1, T]; 0 for a method that is neither full nor a mask.
double keys_read(nn::Model& model, const Tensor& ids, const nn::RuntimeOptions& options = {});

}  // namespace brine::distill
