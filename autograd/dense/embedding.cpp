// Rows of a table by their indices.
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

Tensor embedding(const Tensor& table, const Tensor& ids) {
  check(table.rank() == 2, "embedding: table ", table.shape(), " is not [V, C]");
  check(ids.dtype() == Dtype::i32, "embedding: ids are ", ids.dtype(), ", wanted i32");
  Tensor rows = ids.detach().contiguous();
  if (rows.device().is_cpu()) {
    const int32_t* id = rows.data<int32_t>();
    for (int64_t i = 0; i < rows.numel(); ++i) {
      check(id[i] >= 0 && id[i] < table.dim(0), "embedding: id ", id[i], " at index ", i,
            " is outside a table of ", table.dim(0), " rows");
    }
  }
  Shape shape = ids.shape();
  shape.push_back(table.dim(1));
  Tensor y = Tensor::empty(shape, table.dtype(), table.device());
  BRINE_CALL(y, embedding, y, table.detach().contiguous(), rows);
  if (item_size(table.dtype()) == 2) {
    check(!wants_grad(table), "embedding: no gradients of a table stored in ", table.dtype());
    return y.to(Dtype::f32);
  }
  return record("embedding", y, {table},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dtable = grads.accumulate(0);
                  BRINE_CALL(dtable, embedding_backward, dtable, dy, rows);
                },
                {rows});
}

}  // namespace brine
