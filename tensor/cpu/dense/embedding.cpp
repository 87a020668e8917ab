// Rows of a table by their indices.
#include "tensor/base/parallel.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kColumns = 64;  // whole cache lines of each row

}  // namespace

void embedding(Tensor y, Tensor table, Tensor ids) {
  const int64_t C = table.dim(-1), bytes = C * int64_t(item_size(table.dtype()));
  const int32_t* id = ids.data<int32_t>();
  unsigned char* py = y.raw();
  const unsigned char* pt = table.raw();
  parallel_for(ids.numel(), std::max<int64_t>(1, 65536 / std::max<int64_t>(bytes, 1)),
               [=](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   std::copy_n(pt + id[r] * bytes, bytes, py + r * bytes);
                 }
               });
}

// Each piece owns some columns and adds the rows in order: no two pieces write to the same address,
// and the sums do not depend on the threads.
void embedding_backward(Tensor dtable, Tensor dy, Tensor ids) {
  const int64_t C = dtable.dim(-1), rows = ids.numel();
  const int32_t* id = ids.data<int32_t>();
  dispatch_float(dtable.dtype(), [&]<class T>() {
    T* pdt = dtable.data<T>();
    const T* pdy = dy.data<T>();
    parallel_for(C, kColumns, [=](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < rows; ++r) {
        T* to = pdt + id[r] * C;
        const T* from = pdy + r * C;
#pragma omp simd
        for (int64_t c = begin; c < end; ++c) to[c] += from[c];
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
