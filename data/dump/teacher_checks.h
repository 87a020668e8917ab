// The conditions on the values of a teacher's tensors. Internal to data/dump/.
#pragma once

#include <string>

#include "data/dump/dump.h"

namespace brine::data {

// Rows of probabilities [1, H, T, T]: not negative, 0 on hidden or padded keys, sum 1.
void check_maps(const Tensor& x, const TensorSet& layer, int64_t length, const DumpSpec& spec,
                const std::string& what);
// Masses of columns [1, H, T, K] with the layer's two sums of every row: a distribution over the
// columns that have keys, and sums that an attention of that mass can have.
void check_pooled(const Tensor& tau, const TensorSet& layer, int64_t length, const DumpSpec& spec,
                  const std::string& what);

// Attention outputs [1, T, H d] of a layer that has values, too: in some rows they are
// softmax(q k^T / sqrt(d)) v, or the map times v.
void check_context(const Tensor& x, const TensorSet& layer, int64_t length, const DumpSpec& spec,
                   const std::string& what);

// Logits [1, T, N] with their ids and log-sum-exps: if these are the N largest, in descending order
// with a different id each; the log-sum-exp is one that a row with these logits can have.
void check_logits(const Tensor& x, const TensorSet& all, int64_t length, const DumpSpec& spec,
                  const std::string& what);

}  // namespace brine::data
