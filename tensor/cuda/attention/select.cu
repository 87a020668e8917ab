// The kept columns of the estimate. The selection algorithm is in tensor/kernels/select.h: a warp
// processes the short list of a row, a block a longer one. The list of a head or sequence that a
// block could not keep in shared memory is processed by the whole grid, which counts digits.
#include "tensor/kernels/select.h"

#include "tensor/cuda/core/block_group.cuh"
#include "tensor/cuda/core/packs.cuh"
#include "tensor/cuda/core/prefix_sum.cuh"
#include "tensor/kernels/attention.h"

namespace brine::cuda {
namespace {

constexpr int64_t kWarpBytes = 16 * 1024;     // keys that a warp takes
constexpr int64_t kSharedBytes = 192 * 1024;  // keys that a block has in shared memory, at most
constexpr int64_t kStaticBytes = 4 * 1024;    // static shared memory of the kernel

struct Job {
  uint8_t* selected;
  int64_t* n_sel;
  unsigned long long* nan_count;
  RowWidths widths;
  int64_t H, K, k;
  SelectMode mode;
};

// The heads x rows of one sequence that share a budget.
struct Members {
  int64_t b, head, heads, row, rows;
};

__device__ Members members_of(int64_t g, const Job& job) {
  const int64_t H = job.H, T = job.widths.rows;
  switch (job.mode) {
    case SelectMode::per_query:
      return {g / (H * T), g / T % H, 1, g % T, 1};
    case SelectMode::causal_per_batch:
      return {g / T, 0, H, g % T, 1};
    case SelectMode::per_head:
      return {g / H, g % H, 1, 0, job.widths.valid(g / H)};
    case SelectMode::per_batch:
      break;
  }
  return {g, 0, H, 0, job.widths.valid(g)};
}

// The list of group g, in flat order: (head, row, column).
template <class T>
struct List {
  const T* estimate;
  Members at;
  int64_t w, take, n, first, stride;
  uint32_t K, span;

  __device__ List(const Job& job, const T* estimate, int64_t g)
      : estimate(estimate), at(members_of(g, job)), w(0), take(0) {
    // Flat indices are below 2^32 by the checks of select_columns.
    K = uint32_t(job.K);
    span = uint32_t(at.rows * job.K);
    n = at.heads * int64_t(span);
    stride = job.widths.rows * job.K;
    first = ((at.b * job.H + at.head) * job.widths.rows + at.row) * job.K;
    if (at.rows > 0) w = job.widths(at.b, at.row);
    if (w > 0) take = columns_to_select(at.heads * at.rows, job.k, job.K, w);
  }
  __device__ int64_t index(int64_t i) const {
    const uint32_t head = uint32_t(i) / span;
    return first + head * stride + (uint32_t(i) - head * span);
  }
  // 0 for a column that owns no key; *nan: whether one that does is NaN.
  __device__ OrderKey<T> key(int64_t i, bool* nan) const {
    const int64_t c = uint32_t(i) % K;
    const bool real = w >= K || math::column_begin(c + 1, w, K) > math::column_begin(c, w, K);
    const T x = estimate[index(i)];
    *nan = real && x != x;
    return real ? order_key(x) : 0;
  }
};

// Group g: its keys are written to `keys`; then the selected columns are marked. A group with a NaN
// in a column that owns a key stays unmarked.
template <class Group, class T>
__device__ void select_group(const Group& group, const Job& job, const T* estimate,
                             OrderKey<T>* keys, int64_t g) {
  const List<T> list(job, estimate, g);
  if (group.lane() == 0) job.n_sel[g] = list.take;
  if (list.w == 0) return;
  const uint32_t nans = group.reduce(
      list.n, uint32_t(0),
      [=](int64_t i) {
        bool nan;
        keys[i] = list.key(i, &nan);
        return uint32_t(nan);
      },
      Plus{});
  group.sync();
  if (nans > 0) {
    if (group.lane() == 0) atomicAdd(job.nan_count, nans);
    return;
  }
  uint8_t* selected = job.selected;
  select_largest(group, keys, list.n, list.take,
                 [=](int64_t i, bool chosen) { selected[list.index(i)] = chosen; });
}

// One warp per group; shared memory has `capacity` keys for each.
template <class T>
__global__ void select_short_kernel(Job job, const T* estimate, int64_t groups, int64_t capacity) {
  const int warp = int(threadIdx.x) / kWarp;
  const int64_t g = int64_t(blockIdx.x) * (blockDim.x / kWarp) + warp;
  if (g >= groups) return;
  select_group(WarpGroup{}, job, estimate, dynamic_shared<OrderKey<T>>() + warp * capacity, g);
}

// One block per group; its keys are in shared memory or, when that is too small, in `scratch`.
template <class T>
__global__ void __launch_bounds__(4 * kThreads)
    select_long_kernel(Job job, const T* estimate, OrderKey<T>* scratch, int64_t capacity) {
  const int64_t g = blockIdx.x;
  OrderKey<T>* keys = scratch ? scratch + g * capacity : dynamic_shared<OrderKey<T>>();
  select_group(BlockGroup{}, job, estimate, keys, g);
}

// ---- long lists of many rows, by the whole grid: the digits of 8 bits of the smallest selected
// key are found from the top one down, each by a count of those of all keys with the digits above.
constexpr int kDigits = 256;
static_assert(kDigits == kThreads);
constexpr int64_t kPiece = 64 * kThreads;  // keys of a block

using Count = unsigned long long;

struct Search {
  Count* counts;  // [groups, kDigits]
  Count* prefix;  // [groups] the digits found
  Count* nans;    // [groups]
  int64_t* take;  // [groups] keys to select among those with the prefix
  int64_t* ties;  // [groups, pieces] keys equal to the smallest selected one; then those before
  int64_t pieces;
};

// The keys of a block: those of its group in [begin, end).
struct Piece {
  int64_t begin, end;
  __device__ Piece(int64_t number, int64_t n) : begin(number * kPiece), end(begin + kPiece) {
    if (end > n) end = n;
  }
};

__global__ void start_search_kernel(Job job, Search search, int64_t groups) {
  const int64_t g = piece();
  if (g >= groups) return;
  const List<float> list(job, nullptr, g);
  job.n_sel[g] = search.take[g] = list.take;
}

// Counts the digit at `shift`, and with the first the NaNs.
template <class T>
__global__ void count_digits_kernel(Job job, Search search, const T* estimate, int shift) {
  using Key = OrderKey<T>;
  __shared__ unsigned counts[kDigits];
  const int64_t g = quotient(blockIdx.x, search.pieces);
  const List<T> list(job, estimate, g);
  const Piece range(blockIdx.x - g * search.pieces, list.n);
  if (list.w == 0 || range.begin >= range.end) return;
  counts[threadIdx.x] = 0;
  __syncthreads();
  const bool top = shift + 8 == 8 * int(sizeof(T));
  const Key known = top ? Key(0) : Key(Key(-1) << (shift + 8)), prefix = Key(search.prefix[g]);
  unsigned nans = 0;
  for (int64_t i = range.begin + threadIdx.x; i < range.end; i += kThreads) {
    bool nan;
    const Key key = list.key(i, &nan);
    nans += nan;
    if ((key & known) == prefix) atomicAdd(&counts[(key >> shift) % kDigits], 1u);
  }
  __syncthreads();
  const unsigned count = counts[threadIdx.x];
  if (count > 0) atomicAdd(&search.counts[g * kDigits + threadIdx.x], Count(count));
  if (top && nans > 0) atomicAdd(&search.nans[g], Count(nans));
}

// The digit at `shift` of the smallest selected key, and what is to be taken among the keys that
// have it. Clears the counts. A block for each group, a thread for each digit, the largest first.
__global__ void narrow_kernel(Search search, int shift) {
  const int64_t g = blockIdx.x, take = search.take[g];
  Count* counts = search.counts + g * kDigits + (kDigits - 1 - int(threadIdx.x));
  const int64_t count = int64_t(*counts);
  int64_t total;
  const int64_t above = block_exclusive_sum(count, &total);
  *counts = 0;
  if (above < take && take <= above + count) {
    search.take[g] = take - above;
    search.prefix[g] |= Count(kDigits - 1 - int(threadIdx.x)) << shift;
  }
}

template <class T>
__global__ void count_ties_kernel(Job job, Search search, const T* estimate) {
  const int64_t g = quotient(blockIdx.x, search.pieces);
  const List<T> list(job, estimate, g);
  const Piece range(blockIdx.x - g * search.pieces, list.n);
  const auto prefix = OrderKey<T>(search.prefix[g]);
  int64_t ties = 0;
  for (int64_t i = range.begin + threadIdx.x; i < range.end && list.w > 0; i += kThreads) {
    bool nan;
    ties += list.key(i, &nan) == prefix;
  }
  ties = block_sum(ties);
  if (threadIdx.x == 0) search.ties[blockIdx.x] = ties;
}

// ties become those in the pieces before; take becomes the number of ties that are skipped. A block
// for each group.
__global__ void skip_ties_kernel(unsigned long long* nan_count, Search search) {
  const int64_t g = blockIdx.x;
  const int64_t ties = block_prefix_sum(search.ties + g * search.pieces, search.pieces);
  if (threadIdx.x > 0) return;
  search.take[g] = ties - search.take[g];
  if (search.nans[g] > 0) atomicAdd(nan_count, search.nans[g]);
}

template <class T>
__global__ void mark_kernel(Job job, Search search, const T* estimate) {
  const int64_t g = quotient(blockIdx.x, search.pieces);
  const List<T> list(job, estimate, g);
  const Piece range(blockIdx.x - g * search.pieces, list.n);
  if (list.w == 0 || range.begin >= range.end || search.nans[g] > 0) return;
  const auto prefix = OrderKey<T>(search.prefix[g]);
  const int64_t skip = search.take[g] - search.ties[blockIdx.x];
  uint8_t* selected = job.selected;
  auto key = [=](int64_t i) {
    bool nan;
    return list.key(range.begin + i, &nan);
  };
  BlockGroup{}.scan(
      range.end - range.begin, [=](int64_t i) { return key(i) == prefix; },
      [=](int64_t i, bool tie, int64_t rank) {
        selected[list.index(range.begin + i)] = key(i) > prefix || (tie && rank >= skip);
      });
}

template <class T>
void select_by_grid(const Job& job, const Tensor& estimate, int64_t groups, int64_t capacity) {
  const char* name = "select_columns";
  const Device device = estimate.device();
  const T* x = estimate.data<T>();
  const int64_t pieces = (capacity + kPiece - 1) / kPiece;
  const Tensor kept = Tensor::empty({groups, kDigits + 3}, Dtype::i64, device);
  const Tensor ties = Tensor::empty({groups, pieces}, Dtype::i64, device);
  check_cuda(cudaMemsetAsync(kept.raw(), 0, size_t(kept.numel()) * sizeof(int64_t), stream()),
             name);
  auto* counts = reinterpret_cast<Count*>(kept.data<int64_t>());
  Count* prefix = counts + groups * kDigits;
  const Search search{counts,
                      prefix,
                      prefix + groups,
                      reinterpret_cast<int64_t*>(prefix + 2 * groups),
                      ties.data<int64_t>(),
                      pieces};
  const dim3 every(blocks_for(groups * pieces, 1)), each(blocks_for(groups, 1)), block(kThreads);
  Job start = job;  // it marks nothing
  start.selected = nullptr;
  launch_each(name, groups, start_search_kernel, start, search, groups);
  for (int shift = 8 * int(sizeof(T)) - 8; shift >= 0; shift -= 8) {
    launch(name, count_digits_kernel<T>, every, block, 0, job, search, x, shift);
    launch(name, narrow_kernel, each, block, 0, search, shift);
  }
  launch(name, count_ties_kernel<T>, every, block, 0, job, search, x);
  launch(name, skip_ties_kernel, each, block, 0, job.nan_count, search);
  launch(name, mark_kernel<T>, every, block, 0, job, search, x);
}

template <class T>
void launch_select(const Job& job, const Tensor& estimate, int64_t groups, int64_t capacity) {
  const T* x = estimate.data<T>();
  const int64_t bytes = capacity * int64_t(sizeof(T));
  if (bytes <= kWarpBytes) {
    const int64_t warps = std::min<int64_t>(kThreads / kWarp, 3 * kWarpBytes / bytes);
    launch("select_columns", select_short_kernel<T>, dim3(blocks_for(groups, warps)),
           dim3(unsigned(warps * kWarp)), size_t(warps * bytes), job, x, groups, capacity);
    return;
  }
  const bool fits = bytes <= std::min(kSharedBytes, int64_t(max_shared()) - kStaticBytes);
  const bool rows = job.mode == SelectMode::per_head || job.mode == SelectMode::per_batch;
  if (!fits && rows) return select_by_grid<T>(job, estimate, groups, capacity);
  Tensor scratch;
  if (!fits) scratch = Tensor::empty({groups, capacity}, estimate.dtype(), estimate.device());
  launch("select_columns", select_long_kernel<T>, dim3(blocks_for(groups, 1)),
         dim3(fits ? kThreads : 4 * kThreads), fits ? size_t(bytes) : 0, job, x,
         reinterpret_cast<OrderKey<T>*>(fits ? nullptr : scratch.data<T>()), capacity);
}

}  // namespace

void select_columns(Tensor selected, Tensor n_sel, Tensor nan_count, Tensor estimate,
                    Visibility visible, SelectConfig config) {
  const int64_t H = estimate.dim(1), T = estimate.dim(2), K = estimate.dim(3);
  const int64_t groups = n_sel.numel();
  check_cuda(cudaMemsetAsync(nan_count.data<int64_t>(), 0, sizeof(int64_t), stream()),
             "select_columns");
  if (groups == 0) return;
  if (selected.numel() > 0) {
    check_cuda(cudaMemsetAsync(selected.data<uint8_t>(), 0, size_t(selected.numel()), stream()),
               "select_columns");
  }
  DeviceWidths widths(visible, T, estimate.device());
  Job job{selected.data<uint8_t>(),
          n_sel.data<int64_t>(),
          reinterpret_cast<unsigned long long*>(nan_count.data<int64_t>()),
          widths.get(),
          H,
          K,
          config.k,
          config.mode};
  const bool heads =
      config.mode == SelectMode::causal_per_batch || config.mode == SelectMode::per_batch;
  const bool rows = config.mode == SelectMode::per_head || config.mode == SelectMode::per_batch;
  // At least one, so that an empty group still writes its 0.
  const int64_t capacity = std::max<int64_t>(1, (heads ? H : 1) * (rows ? T : 1) * K);
  dispatch_float(estimate.dtype(),
                 [&]<class R>() { launch_select<R>(job, estimate, groups, capacity); });
}

}  // namespace brine::cuda
