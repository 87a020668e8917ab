// Conversion of selected columns to compressed rows: warps over rows and heads, with one prefix sum
// over the rows between counting and filling.
#include "tensor/mask/csr.h"

#include "tensor/cuda/core/columns.cuh"
#include "tensor/cuda/core/packs.cuh"
#include "tensor/cuda/core/prefix_sum.cuh"
#include "tensor/kernels/attention.h"

namespace brine::cuda {
namespace {

// The candidates of a row and head: u8 [B, H, T, K], and the keys that one column may give.
struct Chosen {
  const uint8_t* selected;
  RowWidths widths;
  int64_t H, K, k;

  __device__ const uint8_t* row(int64_t b, int64_t h, int64_t t) const {
    return selected + ((b * H + h) * widths.rows + t) * K;
  }
};

// offsets [B, T, H + 1] within a row; a warp for every (b, t).
__global__ void count_kernel(int32_t* offsets, Chosen chosen, int64_t rows) {
  const int64_t r = piece() / kWarp, T = chosen.widths.rows, K = chosen.K, k = chosen.k;
  if (r >= rows) return;
  const int64_t b = quotient(r, T), t = r - b * T, w = chosen.widths(b, t);
  const int lane = int(threadIdx.x) % kWarp;
  int32_t* offset = offsets + r * (chosen.H + 1);
  int32_t total = 0;
  if (lane == 0) offset[0] = 0;
  for (int64_t h = 0; h < chosen.H; ++h) {
    int32_t n = 0;
    if (w > k) {
      const uint8_t* selected = chosen.row(b, h, t);
      for (int64_t c = lane; c < K; c += kWarp) {
        if (!selected[c]) continue;
        const int64_t size = column_begin(c + 1, w, K) - column_begin(c, w, K);
        n += int32_t(size < k ? size : k);
      }
      n = warp_sum(n);
    } else {
      n = int32_t(w);
    }
    total += n;
    if (lane == 0) offset[h + 1] = total;
  }
}

// At most 32 columns, one per lane: how many entries they give, and the sums of these up to a lane.
struct Columns {
  int64_t begin;
  int32_t keys, upto;
};

__device__ Columns load_columns(const uint8_t* selected, int64_t first, int64_t w, int64_t K,
                                int64_t k) {
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t c = first + lane;
  Columns out{0, 0, 0};
  if (c < K && selected[c]) {
    out.begin = column_begin(c, w, K);
    out.keys = int32_t(column_begin(c + 1, w, K) - out.begin);
    out.upto = int32_t(out.keys < k ? out.keys : k);
  }
  for (int by = 1; by < kWarp; by *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, out.upto, by);
    if (lane >= by) out.upto += other;
  }
  return out;
}

// The key of entry e of those columns; any e is allowed, so that all lanes can call.
__device__ int64_t key_of(const Columns& columns, int32_t e, int64_t k) {
  int owner = 0;
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const int32_t upto = __shfl_sync(kAllLanes, columns.upto, owner + step - 1);
    if (upto <= e) owner += step;
  }
  const int64_t begin = __shfl_sync(kAllLanes, columns.begin, owner);
  const int64_t n = __shfl_sync(kAllLanes, columns.keys, owner);
  const int64_t upto = __shfl_sync(kAllLanes, columns.upto, owner);
  const int64_t back = upto - 1 - e;  // entries of the same column that follow
  return begin + n - 1 - (n <= k ? back : quotient(back * n, k));
}

// A warp for every (b, h, t).
__global__ void fill_kernel(int32_t* columns, MaskRows rows, Chosen chosen, int64_t pieces) {
  const int64_t r = piece() / kWarp, T = rows.T, K = chosen.K, k = chosen.k;
  if (r >= pieces) return;
  const RowEntries at = rows(r);
  if (at.count == 0) return;
  const int64_t line = quotient(r, T), t = r - line * T, b = quotient(line, rows.H);
  const int64_t w = chosen.widths(b, t);
  const int lane = int(threadIdx.x) % kWarp;
  int32_t* out = columns + at.first;
  if (w <= k) {
    for (int64_t j = lane; j < w; j += kWarp) out[j] = int32_t(at.base + j);
    return;
  }
  const uint8_t* selected = chosen.row(b, line - b * rows.H, t);
  for (int64_t first = 0; first < K; first += kWarp) {
    const Columns some = load_columns(selected, first, w, K, k);
    const int32_t n = __shfl_sync(kAllLanes, some.upto, kWarp - 1);
    for (int32_t start = 0; start < n; start += kWarp) {
      const int32_t e = start + lane;
      const int64_t key = key_of(some, e, k);
      if (e < n) out[e] = int32_t(at.base + key);
    }
    out += n;
  }
}

// Entries of row r of all sequences, and row_pointers [B, T + 1] from their sums.
struct RowTotals {
  const int32_t* offsets;
  int64_t H;
  __device__ int64_t operator()(int64_t r) const { return offsets[r * (H + 1) + H]; }
};
struct RowPointers {
  int64_t* pointers;
  int64_t T;
  __device__ void operator()(int64_t r, int64_t below, int64_t upto) const {
    const int64_t b = r / T, t = r % T;
    pointers[b * (T + 1) + t + 1] = upto;
    if (t == 0) pointers[b * (T + 1)] = below;
  }
};

}  // namespace

void count_csr(FlatCsr csr, Tensor selected, Visibility visible, int64_t k) {
  const Device device = selected.device();
  const int64_t T = csr.length, H = csr.heads, rows = csr.batch * T;
  int64_t* pointers = csr.row_pointers.data<int64_t>();
  if (rows == 0) {
    const size_t bytes = size_t(csr.row_pointers.numel()) * sizeof(int64_t);
    if (bytes > 0) check_cuda(cudaMemsetAsync(pointers, 0, bytes, stream()), "count_csr");
    return;
  }
  DeviceWidths widths(visible, T, device);
  int32_t* offsets = csr.head_offsets.data<int32_t>();
  launch_each("count_csr", rows * kWarp, count_kernel, offsets,
              Chosen{selected.data<uint8_t>(), widths.get(), H, selected.dim(3), k}, rows);
  prefix_sum("count_csr", rows, RowTotals{offsets, H}, RowPointers{pointers, T}, device);
}

void fill_csr(FlatCsr csr, Tensor selected, Visibility visible, int64_t k) {
  const int64_t pieces = csr.batch * csr.heads * csr.length;
  if (pieces == 0) return;
  DeviceWidths widths(visible, csr.length, selected.device());
  launch_each("fill_csr", pieces * kWarp, fill_kernel, csr.columns.data<int32_t>(), MaskRows(csr),
              Chosen{selected.data<uint8_t>(), widths.get(), csr.heads, selected.dim(3), k},
              pieces);
}

}  // namespace brine::cuda
