// The kept columns of the estimate. The selection algorithm is in tensor/kernels/select.h: a warp
// processes the short list of a row, a block a longer one, with its keys in shared memory if they
// fit.
#include "tensor/kernels/select.h"

#include "tensor/cuda/core/block_group.cuh"
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
  __device__ int64_t place(int64_t i) const {
    const uint32_t head = uint32_t(i) / span;
    return first + head * stride + (uint32_t(i) - head * span);
  }
  // 0 for a column that owns no key; *nan: whether one that does is NaN.
  __device__ OrderKey<T> key(int64_t i, bool* nan) const {
    const int64_t c = uint32_t(i) % K;
    const bool real = w >= K || math::column_begin(c + 1, w, K) > math::column_begin(c, w, K);
    const T x = estimate[place(i)];
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
                 [=](int64_t i, bool chosen) { selected[list.place(i)] = chosen; });
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
