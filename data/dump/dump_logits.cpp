// The largest logits of every row.
#include <cmath>

#include "data/dump/dump.h"
#include "tensor/functions/top_logits.h"

namespace brine::data {

void keep_top_logits(DumpBatch& batch, const Tensor& logits, int64_t n) {
  check(logits.defined() && logits.rank() == 3 && logits.dtype() == Dtype::f32,
        "keep_top_logits: the logits must be f32 [B, T, V]");
  int64_t vocab = logits.dim(2);
  check(n >= 1 && n <= vocab, "keep_top_logits: ", n, " of ", vocab, " logits");
  const int64_t B = logits.dim(0), T = logits.dim(1);
  const TopLogits top = largest_logits(logits, n);
  batch.tensors["logits"] = top.values.view({B, T, n});
  batch.tensors["logit_ids"] = top.ids.view({B, T, n});
  batch.tensors["lse"] = top.lse.view({B, T});
  const float* lse = top.lse.data<float>();
  for (int64_t r = 0; r < B * T; ++r)
    check(std::isfinite(lse[r]), "keep_top_logits: row ", r, " of the logits is not finite");
}

}  // namespace brine::data
