// Rows of a table by their indices. For the gradient the rows are sorted by id, those of one id in
// order; the sums over pieces of the sorted rows and then over the pieces of an id are in a fixed
// order, so that bits repeat.
#include <bit>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int kSorters = 1024;  // threads of the one block that sorts
constexpr int kSortWarps = kSorters / kWarp;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kCounters = kDigits * kSortWarps;
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

// Lanes of the warp with the same digit as this one, itself among them; 0 where it is not `valid`.
__device__ inline unsigned lanes_of_digit(int digit, bool valid) {
  unsigned same = __ballot_sync(kAllLanes, valid);
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool set = digit >> bit & 1;
    const unsigned with = __ballot_sync(kAllLanes, set);
    same &= set ? with : ~with;
  }
  return valid ? same : 0;
}

// counts [digit, warp] become the numbers of rows before those of each. All threads call.
__device__ inline void counts_before(int* counts) {
  __shared__ int sums[kSortWarps];
  constexpr int kPerThread = kCounters / kSorters;
  const int first = int(threadIdx.x) * kPerThread, lane = int(threadIdx.x) % kWarp;
  int total = 0;
  for (int i = 0; i < kPerThread; ++i) total += counts[first + i];
  int upto = total;
  for (int by = 1; by < kWarp; by *= 2) {
    const int below = __shfl_up_sync(kAllLanes, upto, unsigned(by));
    if (lane >= by) upto += below;
  }
  if (lane == kWarp - 1) sums[int(threadIdx.x) / kWarp] = upto;
  __syncthreads();
  int before = upto - total;
  for (int w = 0; w < int(threadIdx.x) / kWarp; ++w) before += sums[w];
  for (int i = 0; i < kPerThread; ++i) {
    const int count = counts[first + i];
    counts[first + i] = before;
    before += count;
  }
  __syncthreads();
}

// `sorted` becomes the numbers of the R rows, by id and then by row: a stable sort by one digit of
// the ids after the other. A warp has R / kSortWarps consecutive rows. `spare` has space for R
// rows, too.
__global__ void __launch_bounds__(kSorters)
    sort_rows_kernel(int32_t* sorted, int32_t* spare, const int32_t* ids, int64_t R, int passes) {
  __shared__ int counts[kCounters];
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t share = (R + kSortWarps - 1) / kSortWarps, begin = warp * share;
  const int64_t end = begin + share < R ? begin + share : R;
  const unsigned below = (1u << lane) - 1;
  for (int pass = 0; pass < passes; ++pass) {
    // The last pass writes to `sorted`.
    int32_t* to = (passes - pass) % 2 ? sorted : spare;
    const int32_t* from = (passes - pass) % 2 ? spare : sorted;
    for (int i = int(threadIdx.x); i < kCounters; i += kSorters) counts[i] = 0;
    __syncthreads();
    for (int step = 0; step < 2; ++step) {  // counts, then moves
      for (int64_t first = begin; first < end; first += kWarp) {
        const int64_t i = first + lane;
        const bool valid = i < end;
        const int32_t row = !valid ? 0 : pass == 0 ? int32_t(i) : from[i];
        const int digit = valid ? ids[row] >> (pass * kDigitBits) & (kDigits - 1) : 0;
        const unsigned same = lanes_of_digit(digit, valid);
        int* counter = counts + digit * kSortWarps + warp;
        const int place = *counter + __popc(same & below);
        __syncwarp();
        if (valid && (same & below) == 0) *counter += __popc(same);
        __syncwarp();
        if (step == 1 && valid) to[place] = row;
      }
      __syncthreads();
      if (step == 0) counts_before(counts);
    }
  }
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
  const int id_bits = std::bit_width(uint64_t(dtable.rows() - 1));
  const int passes = std::max(1, (id_bits + kDigitBits - 1) / kDigitBits);
  Tensor sorted = Tensor::empty({2, R}, Dtype::i32, dtable.device());
  int32_t* order = sorted.data<int32_t>();
  launch("embedding_backward", sort_rows_kernel, dim3(1), dim3(kSorters), 0, order, order + R,
         id.data<int32_t>(), R, passes);
  const unsigned runs = blocks_for(R, kRun);
  const dim3 grid(runs, blocks_for(C, kColumns)), block(kColumns);
  Tensor parts = Tensor::empty({int64_t(runs), 2, C}, dtable.dtype(), dtable.device());
  dispatch_float(dtable.dtype(), [&]<class T>() {
    launch("embedding_backward", run_sums_kernel<T>, grid, block, 0, dtable.data<T>(),
           parts.data<T>(), dy.data<T>(), id.data<int32_t>(), order, R, C);
    if (runs == 1) return;
    launch("embedding_backward", join_runs_kernel<T>, grid, block, 0, dtable.data<T>(),
           parts.data<T>(), id.data<int32_t>(), order, R, C);
  });
}

}  // namespace brine::cuda
