// Rows of a table by their indices. For the gradient the rows are sorted by id, those of one id in
// order; the sums over pieces of the sorted rows and then over the pieces of an id are in a fixed
// order, so that bits repeat.
#include <algorithm>
#include <numeric>
#include <vector>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int64_t kRun = 32;  // sorted rows that a block sums
constexpr int kColumns = 128;

// Rows of C units.
template <class U>
__global__ void embedding_kernel(U* y, const U* table, const int32_t* ids, int64_t n, int64_t C) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t r = quotient(i, C);
  y[i] = table[ids[r] * C + (i - r * C)];
}

// The numbers of the rows, by id and then by row: on the CPU, where ids are made.
Tensor rows_by_id(const Tensor& ids) {
  const Tensor on_cpu = ids.to(Device{});
  const int32_t* id = on_cpu.data<int32_t>();
  std::vector<int32_t> rows(size_t(ids.numel()));
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [id](int32_t a, int32_t b) { return id[a] < id[b]; });
  return Tensor::from(rows, {ids.numel()});
}

// Sums of runs of sorted rows. The sum of an id that has all its rows in the run is added to the
// table; that of an id that continues beyond the run is stored in the run's part: 0 when it started
// before the run (it may also continue after it), 1 when it starts here.
template <class T>
__global__ void run_sums_kernel(T* dtable, T* parts, const T* __restrict__ dy, const int32_t* ids,
                                const int32_t* sorted, int64_t R, int64_t C) {
  __shared__ int32_t rows[kRun], run_ids[kRun + 2];  // run_ids: with those of the rows on
                                                     // both sides
  const int64_t c = int64_t(blockIdx.y) * blockDim.x + threadIdx.x, run = blockIdx.x;
  const int64_t begin = run * kRun, end = begin + kRun < R ? begin + kRun : R;
  for (int64_t i = threadIdx.x; i < kRun + 2; i += blockDim.x) {
    const int64_t at = begin + i - 1;
    const int32_t row = at >= 0 && at < R ? sorted[at] : -1;
    run_ids[i] = row < 0 ? -1 : ids[row];
    if (i > 0 && i <= kRun) rows[i - 1] = row;
  }
  __syncthreads();
  if (c >= C) return;
  const int n = int(end - begin);
  bool from_before = run_ids[0] == run_ids[1];
  T sum = 0;
  for (int i = 0; i < n; ++i) {
    const int32_t id = run_ids[i + 1], next = run_ids[i + 2];
    sum += dy[rows[i] * C + c];
    if (i + 1 < n && next == id) continue;
    if (from_before) {
      parts[run * 2 * C + c] = sum;
    } else if (next == id) {
      parts[(run * 2 + 1) * C + c] = sum;
    } else {
      dtable[id * C + c] += sum;
    }
    from_before = false;
    sum = 0;
  }
}

// Adds the parts of an id that continues beyond the run where it starts.
template <class T>
__global__ void join_runs_kernel(T* dtable, const T* __restrict__ parts, const int32_t* ids,
                                 const int32_t* sorted, int64_t R, int64_t C) {
  const int64_t c = int64_t(blockIdx.y) * blockDim.x + threadIdx.x, run = blockIdx.x;
  const int64_t begin = run * kRun, end = begin + kRun;
  if (c >= C || end >= R) return;
  const int32_t id = ids[sorted[end - 1]];
  if (ids[sorted[end]] != id) return;
  if (begin > 0 && ids[sorted[begin - 1]] == id) return;  // it started before
  int64_t last = end, high = R - 1;                       // the last of its rows
  while (last < high) {
    const int64_t middle = (last + high + 1) / 2;
    if (ids[sorted[middle]] == id) {
      last = middle;
    } else {
      high = middle - 1;
    }
  }
  double sum = double(parts[(run * 2 + 1) * C + c]);
  for (int64_t next = run + 1; next <= last / kRun; ++next) sum += double(parts[next * 2 * C + c]);
  dtable[id * C + c] = T(double(dtable[id * C + c]) + sum);
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
  const OnDevice id(ids, dtable.device());
  const OnDevice sorted(rows_by_id(ids), dtable.device());
  const unsigned runs = blocks_for(R, kRun);
  const dim3 grid(runs, blocks_for(C, kColumns)), block(kColumns);
  Tensor parts = Tensor::empty({int64_t(runs), 2, C}, dtable.dtype(), dtable.device());
  dispatch_float(dtable.dtype(), [&]<class T>() {
    launch("embedding_backward", run_sums_kernel<T>, grid, block, 0, dtable.data<T>(),
           parts.data<T>(), dy.data<T>(), id.data<int32_t>(), sorted.data<int32_t>(), R, C);
    if (runs == 1) return;
    launch("embedding_backward", join_runs_kernel<T>, grid, block, 0, dtable.data<T>(),
           parts.data<T>(), id.data<int32_t>(), sorted.data<int32_t>(), R, C);
  });
}

}  // namespace brine::cuda
