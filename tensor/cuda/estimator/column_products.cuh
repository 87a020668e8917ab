// Products of queries with the sums of keys over columns where all rows of a sequence see the same
// keys: the columns are then the same, too, and one matrix product serves all rows. The interface
// of a row is that of column_sums.cuh.
#pragma once

#include "tensor/cuda/estimator/column_sums_backward.cuh"

namespace brine::cuda::columns {

// A row of one warp, and its products with the columns, in memory.
template <class T>
struct WholeRow {
  const Columns<T>& at;
  int64_t n, r, w;  // head, row, keys seen
  math::SumColumns columns;
  const T* products;  // [K]
  double sum;
  int lane;

  __device__ WholeRow(const Columns<T>& at, const T* products, int64_t n, int64_t r)
      : at(at),
        n(n),
        r(r),
        w(r < at.rows ? at.width(n, r) : 0),
        columns(w, at.K, at.units),
        products(products),
        sum(0),
        lane(int(threadIdx.x) % kWarp) {
    if (w == 0) return;
    for (int64_t c = lane; c < at.K; c += kWarp) sum += double(products[c]);
    sum = warp_sum(sum);
  }
  __device__ double total() const { return sum; }
  __device__ double product(int64_t c) const { return double(products[c]); }
  __device__ int64_t keys(int64_t c) const { return columns.keys(c); }
};

constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kManyKeys = 64;  // of a column, from which a block sums them

// sums [batch, K, m] of the keys of each column of the heads first .. first + batch. `parts` warps,
// 1 or those of a block, for each column and 32 features.
template <class T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(T* sums, Columns<T> at, int64_t first, int64_t batch, int parts) {
  __shared__ double of_part[kWarps][kWarp];
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int64_t across = (at.m + kWarp - 1) / kWarp;
  const int64_t tile = (int64_t(blockIdx.x) * kWarps + warp) / parts;
  const int64_t column = quotient(tile, across), local = quotient(column, at.K);
  const int64_t c = column - local * at.K, n = first + local;
  const int64_t i = (tile - column * across) * kWarp + lane;
  const bool valid = local < batch && i < at.m;
  double sum = 0;
  if (valid) {
    const math::SumColumns columns(at.valid(n), at.K, at.units);
    const int64_t end = columns.w ? columns.begin(c + 1) : 0;
    const T* k = at.keys(n) + i;
#pragma unroll 8
    for (int64_t j = columns.w ? columns.begin(c) + warp % parts : 0; j < end; j += parts) {
      sum += double(k[j * at.m]);
    }
  }
  of_part[warp][lane] = sum;
  __syncthreads();
  if (!valid || warp % parts != 0) return;
  for (int p = 1; p < parts; ++p) sum += of_part[warp + p][lane];
  sums[column * at.m + i] = T(sum);
}

// products [batch, R, K] of the rows with the sums of the columns.
template <class T>
void whole_products(const char* name, T* products, T* sums, const Columns<T>& at, int64_t first,
                    int64_t batch, Device device) {
  const int64_t tiles = batch * at.K * ((at.m + kWarp - 1) / kWarp);
  const int parts = at.tokens >= kManyKeys * at.K ? kWarps : 1;
  launch(name, column_sums_kernel<T>, dim3(blocks_for(tiles * parts, kWarps)), dim3(kThreads), 0,
         sums, at, first, batch, parts);
  multiply_queries(name, products, sums, at.K, at, first, batch, device);
}

// y = what `out` makes of each row's products, which it replaces. A warp for each row.
template <class T, class Out>
__global__ void whole_rows_kernel(T* y, Columns<T> at, Out out, int64_t first, int64_t rows) {
  const int64_t i = piece() / kWarp;
  if (i >= rows) return;
  const int64_t local = quotient(i, at.rows), n = first + local, r = i - local * at.rows;
  const int64_t to = (n * at.rows + r) * at.K;
  const WholeRow<T> row(at, y + to, n, r);
  for (int64_t c = row.lane; c < at.K; c += kWarp) y[to + c] = out(row, c, to + c);
}

// y [B, H, R, K] by `out`.
template <class T, class Out>
void whole_column_products(const char* name, const Tensor& y, const Columns<T>& at, Out out) {
  const int64_t all = y.dim(0) * at.heads;
  const int64_t heads = std::min(kMaxBatch, heads_per_batch(all, at.K * at.m * int64_t(sizeof(T))));
  const Tensor sums = Tensor::empty(Shape{heads, at.K, at.m}, y.dtype(), y.device());
  for (int64_t first = 0; first < all; first += heads) {
    const int64_t batch = std::min(heads, all - first), rows = batch * at.rows;
    whole_products(name, y.data<T>() + first * at.rows * at.K, sums.data<T>(), at, first, batch,
                   y.device());
    launch_each(name, rows * kWarp, whole_rows_kernel<T, Out>, y.data<T>(), at, out, first, rows);
  }
}

// products [batch, R, K] become the derivatives with respect to them. A warp for each row, with
// memory for K + 1 derivatives.
template <class T, class Slopes>
__global__ void whole_slopes_kernel(T* products, Slopes slopes, Columns<T> at, int64_t first,
                                    int64_t rows) {
  const int64_t i = piece() / kWarp;
  if (i >= rows) return;
  const int64_t local = quotient(i, at.rows), r = i - local * at.rows;
  T* values = products + i * at.K;
  double* share = dynamic_shared<double>() + threadIdx.x / kWarp * (at.K + 1);
  const WholeRow<T> row(at, values, first + local, r);
  const int64_t number = row.n * at.rows + r;
  if (row.w) {
    slopes(row, share, number);
  } else {
    slopes.unseen(row, number);
  }
  __syncwarp();
  for (int64_t c = row.lane; c < at.K; c += kWarp) {
    values[c] = row.w ? T(share[c] - share[at.K]) : T(0);
  }
}

// dk [groups, T, m] of the heads of a batch: a key's gradient is that of its column's sum, dsums
// [batch, K, m], added over the `group_heads` heads of its group. A warp for each key.
template <class T>
__global__ void whole_keys_kernel(T* dk, const T* dsums, Columns<T> at, int64_t first,
                                  int64_t group_heads, int64_t rows) {
  const int64_t i = piece() / kWarp;
  if (i >= rows) return;
  const int64_t local = quotient(i, at.tokens), j = i - local * at.tokens;
  const math::SumColumns columns(at.valid(first + local * group_heads), at.K, at.units);
  const bool seen = j < columns.w;
  int64_t c = 0;
  if (seen) {
    const int64_t unit = quotient(j, columns.unit);
    c = unit < columns.whole ? column_of(unit, columns.whole, at.K) : at.K - 1;
  }
  T* to = dk + (first / group_heads + local) * at.tokens * at.m + j * at.m;
  for (int64_t f = threadIdx.x % kWarp; f < at.m; f += kWarp) {
    T sum = 0;
    for (int64_t h = 0; seen && h < group_heads; ++h) {
      sum += dsums[((local * group_heads + h) * at.K + c) * at.m + f];
    }
    to[f] = sum;
  }
}

// dq [B, H, T, m] and dk [B, G, T, m] from the derivatives that `slopes` makes.
template <class T, class Slopes>
void whole_column_products_backward(const char* name, const Tensor& dq, const Tensor& dk,
                                    const Columns<T>& at, Slopes slopes) {
  const Device device = dq.device();
  const int64_t all = dq.dim(0) * at.heads, group_heads = at.heads / at.groups;
  const int64_t each = (at.rows * at.K + 2 * at.K * at.m) * int64_t(sizeof(T));
  const int64_t groups = std::max<int64_t>(
      1, std::min(kMaxBatch / group_heads, heads_per_batch(all, each) / group_heads));
  const int64_t heads = groups * group_heads;
  const Tensor products = Tensor::empty(Shape{heads, at.rows, at.K}, dq.dtype(), device);
  const Tensor sums = Tensor::empty(Shape{2, heads, at.K, at.m}, dq.dtype(), device);
  T *p = products.data<T>(), *s = sums.data<T>(), *ds = s + heads * at.K * at.m;
  const int64_t warps =
      std::clamp<int64_t>(48 * 1024 / ((at.K + 1) * int64_t(sizeof(double))), 1, kThreads / kWarp);
  if (at.step > 1) {
    check_cuda(cudaMemsetAsync(dq.raw(), 0, size_t(dq.numel()) * sizeof(T), stream()), name);
  }
  for (int64_t first = 0; first < all; first += heads) {
    const int64_t batch = std::min(heads, all - first), rows = batch * at.rows;
    whole_products(name, p, s, at, first, batch, device);
    launch(name, whole_slopes_kernel<T, Slopes>, dim3(blocks_for(rows, warps)),
           dim3(unsigned(warps * kWarp)), size_t(warps * (at.K + 1)) * sizeof(double), p, slopes,
           at, first, rows);
    multiply_slopes(name, dq.data<T>(), p, s, at.K, at, first, batch, 0, device);
    Gemm g;
    g.M = at.K;
    g.N = at.m;
    g.K = at.rows;
    g.ta = true;
    g.lda = at.K;
    g.ldb = at.step * at.m;
    g.ldy = at.m;
    g.batch = batch;
    g.step_a = at.rows * at.K;
    g.step_b = at.tokens * at.m;
    g.step_y = at.K * at.m;
    multiply<T>(name, g, p, at.q + first * at.tokens * at.m, ds, 0, device);
    const int64_t keys = batch / group_heads * at.tokens;
    launch_each(name, keys * kWarp, whole_keys_kernel<T>, dk.data<T>(), ds, at, first, group_heads,
                keys);
  }
}

// y [B, H, R, K] = what `out` makes of each row's products with its columns.
template <class T, class Out>
void row_products(const char* name, const Tensor& y, const Columns<T>& at, Out out) {
  at.widths.causal ? column_products(name, y, at, out) : whole_column_products(name, y, at, out);
}

// dq [B, H, T, m] and dk [B, G, T, m] from the derivatives that `slopes` makes.
template <class T, class Slopes>
void row_products_backward(const char* name, const Tensor& dq, const Tensor& dk,
                           const Columns<T>& at, Slopes slopes) {
  at.widths.causal ? column_products_backward(name, dq, dk, at, slopes)
                   : whole_column_products_backward(name, dq, dk, at, slopes);
}

}  // namespace brine::cuda::columns
