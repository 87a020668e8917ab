// The largest logits of every row.
#include <cmath>

#include "data/dump/dump.h"
#include "tensor/kernels/kernels_logits.h"

namespace brine::data {

void keep_top_logits(DumpBatch& batch, const Tensor& logits, int64_t n) {
  check(logits.defined() && logits.rank() == 3 && logits.dtype() == Dtype::f32,
        "keep_top_logits: the logits must be f32 [B, T, V]");
  int64_t vocab = logits.dim(2);
  check(n >= 1 && n <= vocab, "keep_top_logits: ", n, " of ", vocab, " logits");
  Tensor x = logits.detach().contiguous();
  const Tensor values = Tensor::empty({x.dim(0), x.dim(1), n});
  const Tensor ids = Tensor::empty({x.dim(0), x.dim(1), n}, Dtype::i32);
  const Tensor sums = Tensor::empty({x.dim(0), x.dim(1)});
  BRINE_CALL(x, top_logits, values, ids, sums, x);
  batch.tensors["logits"] = values;
  batch.tensors["logit_ids"] = ids;
  batch.tensors["lse"] = sums;
  const float* lse = sums.data<float>();
  for (int64_t r = 0; r < x.rows(); ++r)
    check(std::isfinite(lse[r]), "keep_top_logits: row ", r, " of the logits is not finite");
}

}  // namespace brine::data
