// Rows of a table by their indices. For the gradient the CPU, which made the ids, sorts the rows by
// id, those of one id in order: a thread sums a column of the rows of one id, so that bits repeat.
#include <numeric>
#include <vector>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

// Rows of C units.
template <class U>
__global__ void embedding_kernel(U* y, const U* table, const int32_t* ids, int64_t n, int64_t C) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t r = quotient(i, C);
  y[i] = table[ids[r] * C + (i - r * C)];
}

// Adds the rows order[starts[s]] .. order[starts[s + 1]] of dy [R, C] to row targets[s].
template <class T>
__global__ void add_rows_kernel(T* dtable, const T* dy, const int32_t* order, const int32_t* starts,
                                const int32_t* targets, int64_t C, int64_t n) {
  if (piece() >= n) return;
  const int64_t s = quotient(piece(), C), c = piece() - s * C;
  T& to = dtable[targets[s] * C + c];
  double sum = double(to);
  for (int64_t i = starts[s]; i < starts[s + 1]; ++i) sum += double(dy[order[i] * C + c]);
  to = T(sum);
}

}  // namespace

void embedding(Tensor y, Tensor table, Tensor ids) {
  const int64_t bytes = table.dim(-1) * int64_t(item_size(table.dtype()));
  const OnDevice id(ids, table.device());
  const uint64_t bits = uint64_t(bytes) | reinterpret_cast<uintptr_t>(y.raw()) |
                        reinterpret_cast<uintptr_t>(table.raw());
  dispatch_unit(bits, [&]<class U>() {
    const int64_t C = bytes / int64_t(sizeof(U)), n = ids.numel() * C;
    launch_each("embedding", n, embedding_kernel<U>, reinterpret_cast<U*>(y.raw()),
                reinterpret_cast<const U*>(table.raw()), id.data<int32_t>(), n, C);
  });
}

void embedding_backward(Tensor dtable, Tensor dy, Tensor ids) {
  const int64_t C = dtable.dim(-1), R = ids.numel();
  if (R == 0 || C == 0) return;
  check(R < (int64_t(1) << 31), "embedding_backward: ", R, " rows are too many");
  const Tensor host = ids.to(Device{});
  const int32_t* id = host.data<int32_t>();
  std::vector<int32_t> order(static_cast<size_t>(R)), starts, targets;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [=](int32_t a, int32_t b) { return id[a] < id[b]; });
  for (int32_t i = 0; i < int32_t(R); ++i) {
    if (!targets.empty() && targets.back() == id[order[size_t(i)]]) continue;
    starts.push_back(i);
    targets.push_back(id[order[size_t(i)]]);
  }
  starts.push_back(int32_t(R));
  auto moved = [&](const std::vector<int32_t>& x) {
    return Tensor::from(x, {int64_t(x.size())}).to(dtable.device());
  };
  const Tensor rows = moved(order), firsts = moved(starts), to = moved(targets);
  const int64_t n = to.numel() * C;
  dispatch_float(dtable.dtype(), [&]<class T>() {
    launch_each("embedding_backward", n, add_rows_kernel<T>, dtable.data<T>(), dy.data<T>(),
                rows.data<int32_t>(), firsts.data<int32_t>(), to.data<int32_t>(), C, n);
  });
}

}  // namespace brine::cuda
