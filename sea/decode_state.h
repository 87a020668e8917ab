// The decoding state of a causal SEA block: keys and values, the last scores, the sum of the
// values, and what the settings need of: the Performer's sums, the rows that the decoder's
// convolutions still read, sums of features and keys at the borders of columns.
#pragma once

#include "nn/attention/attention.h"
#include "sea/estimator.h"

namespace brine::sea {

// The decoder's convolutions by rows: for each its last rows and its weights in reading order.
struct RowDecoder {
  std::vector<Tensor> windows;  // [B, rows that it reads, columns + margins, channels]
  std::vector<Tensor> weights;

  // The state of `count` sequences from `first` on, in the same memory.
  RowDecoder slots(int64_t first, int64_t count) const;
};

class SeaState : public nn::KeyValueState {
 public:
  SeaState(const Estimator& estimator, const nn::AttentionShape& shape,
           const nn::StateRequest& request);

  // Prompts k, v [B, G, T, d] and the estimator's tensors for them.
  void fill(int64_t first, const Tensor& k, const Tensor& v, const Visibility& visible,
            const Estimate& e, const Estimator& estimator);

  // Views of the current state of all sequences.
  RowDecoder rows() const;

  const int64_t query_skip;
  Tensor& value_sums;  // f64 [B, G, d]
  Tensor& scores;      // [B, H, 1, K] of the last query that was not skipped, including the priors
  // Null where the settings leave a stage out:
  Tensor* performer = nullptr;  // [B, G, m, 2d] sum of phi_k V_cat
  Tensor* key_sums = nullptr;   // f64 [B, G, m] sum of phi_k
  // Of the prior: psi_k of every token or its sums by units [B, G, rows, m], the sums at the
  // borders of columns f64 [B, G, K + 1, .] and the width that they belong to, i64 [B].
  Tensor *key_features = nullptr, *borders = nullptr, *border_width = nullptr;
  // Of mean keys: the sums of keys at the borders and their width, as above; the scores of the last
  // query that was not skipped [B, H, 1, K].
  Tensor *pooled_borders = nullptr, *pooled_width = nullptr, *pooled = nullptr;

 private:
  void make_windows(const Estimator& estimator, const nn::StateRequest& request);
  void fill_features(int64_t first, const Tensor& psi_k, const SeaConfig& config);
  void fill_windows(int64_t slot, const std::vector<Tensor>& images, int64_t b,
                    const MapDecoderShape& decoder);

  std::vector<Tensor*> windows_;
  std::vector<Tensor> weights_;
};

}  // namespace brine::sea
