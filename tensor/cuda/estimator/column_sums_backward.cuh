// The gradients of products with the sums of keys over columns.
#pragma once

#include "tensor/cuda/core/band_sums.cuh"
#include "tensor/cuda/estimator/column_sums.cuh"

namespace brine::cuda::columns {

// From the derivatives with respect to the products of the columns, share [K + 1], whose last is
// subtracted from that of the product with all keys, to those at the borders, which replace the
// products.
template <class T>
__device__ void slopes_at_borders(const Row<T>& row, const double* share) {
  __syncwarp();
  for (int64_t c = row.lane; c <= row.at.K; c += kWarp) {
    row.below[c] = (c > 0 ? share[c - 1] : 0.0) - share[c];
  }
  __syncwarp();
}

// dq of the row's query = sum over borders of slope times the prefix there, of its reach alone; 0
// for the queries before the next row's.
template <class T>
__device__ void query_gradient(const Row<T>& row, T* dq) {
  const Columns<T>& at = row.at;
  const int64_t t = row.r * at.step, last = t + at.step < at.tokens ? t + at.step : at.tokens;
  dq += row.n * at.tokens * at.m;
  for (int64_t i = (t + (row.w ? 1 : 0)) * at.m + row.lane; i < last * at.m; i += kWarp) dq[i] = 0;
  if (row.w == 0) return;
  for (int64_t i = kLaneLoad * row.lane; i < at.m; i += kLaneLoad * kWarp) {
    T sum[kLaneLoad] = {};
#pragma unroll 4
    for (int64_t c = 1; c <= at.K; ++c) {
      T x[kLaneLoad];
      load_wide<kLaneLoad>(x, row.prefix_at(c) + i);
      const T slope = T(row.below[c]);
#pragma unroll
      for (int n = 0; n < kLaneLoad; ++n) sum[n] += slope * x[n];
    }
    for (int n = 0; n < kLaneLoad && i + n < at.m; ++n) dq[t * at.m + i + n] = sum[n];
  }
}

// The derivatives with respect to the row's products with whole reaches, which replace these: a
// reach is below the borders that follow it, whose slopes sum to the derivative of the column that
// its last key is in.
template <class T>
__device__ void whole_slopes(const Row<T>& row, const double* share, T* products) {
  for (int64_t i = row.lane; i < row.at.reaches; i += kWarp) {
    const int64_t end = (i + 1) << row.at.shift;
    products[i] = end <= row.w ? T(share[row.column(end - 1)] - share[row.at.K]) : T(0);
  }
}

// dq and slope [batch, K, R] at the borders 1 .. K. slopes(row, share, i) fills share from the row
// with the number i.
template <class T, class Slopes>
__global__ void rows_kernel(T* dq, T* slope, T* wholes, Slopes slopes, const T* prefix,
                            Columns<T> at, int64_t first, int64_t wide) {
  const int64_t warp = int64_t(threadIdx.x) / kWarp, bands = (at.rows + wide - 1) / wide;
  const int64_t memory = Row<T>::memory(at, 2), local = blockIdx.x / bands;
  const int64_t r0 = blockIdx.x % bands * wide;
  double* shared = dynamic_shared<double>();
  const Row<T> row(at, prefix, wholes, shared + warp * memory, local, first, r0 + warp);
  if (row.r < at.rows) {
    double* share = row.below + at.K + 1;
    if (row.w) {
      slopes(row, share, row.n * at.rows + row.r);
      slopes_at_borders(row, share);
    } else {
      slopes.unseen(row, row.n * at.rows + row.r);
      for (int64_t c = row.lane; c <= at.K; c += kWarp) row.below[c] = 0;
    }
    query_gradient(row, dq);
    whole_slopes(row, share, wholes + (local * at.rows + row.r) * at.reaches);
  }
  __syncthreads();
  const int64_t count = at.rows - r0 < wide ? at.rows - r0 : wide;
  for (int64_t x = threadIdx.x; x < at.K * wide; x += blockDim.x) {
    const int64_t c = x / wide + 1, r = x % wide;
    if (r < count) {
      slope[(local * at.K + c - 1) * at.rows + r0 + r] =
          T(shared[r * memory + at.padded + at.reaches + c]);
    }
  }
}

constexpr int kColumns = 4;  // features that a lane sums up at a time, a warp apart

// The rows [from, to) that have border c, 1 <= c <= K, at key j. With units of u keys and c < K
// these are the widths w of that unit with (2 j/u - 1) K <= 2 c floor(w / u) < (2 j/u + 1) K. A
// border never moves back as w grows, so the widths of all units are one range.
template <class T>
__device__ void rows_with_border(const Columns<T>& at, int64_t n, int64_t j, int64_t c, int& from,
                                 int& to) {
  const int64_t valid = at.valid(n), K = at.K;
  from = to = 0;
  int64_t low = valid + 1, high = 0;
  if (c == K) {
    low = j;
    high = j + 1;
  }
  for (int64_t u = 1; c < K && j % u == 0; u *= 2) {
    // Widths with this unit: from `first` on, and before `next`.
    const int64_t first = u > 1 ? u * at.units * K : 1;
    const int64_t next = at.units ? 2 * u * at.units * K : valid + 1;
    if (first > valid) break;
    int64_t least = u * (((2 * (j / u) - 1) * K + 2 * c - 1) / (2 * c));
    int64_t end = u * (((2 * (j / u) + 1) * K + 2 * c - 1) / (2 * c));
    least = least < first ? first : least;
    end = end < next ? end : next;
    if (least < end) {
      low = least < low ? least : low;
      high = end > high ? end : high;
    }
    if (!at.units) break;
  }
  if (low > valid) return;
  high = high <= valid ? high : valid + 1;
  // Row r sees r step + 1 keys.
  from = int((low - 1 + at.step - 1) / at.step);
  to = int((high - 1 + at.step - 1) / at.step);
}

// dprefix [batch, T + 1, padded] = sum over the rows with a border there of slope times query. A
// warp for each prefix and 128 features; each lane searches the rows of one border.
template <class T>
__global__ void borders_kernel(T* dprefix, const T* slope, Columns<T> at, int64_t first,
                               int64_t batch) {
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t warp = piece() / kWarp, across = (at.m + kWarp * kColumns - 1) / (kWarp * kColumns);
  const int64_t local = warp / across / at.tokens, n = first + local;
  const int64_t j = warp / across % at.tokens + 1, i0 = warp % across * kWarp * kColumns + lane;
  if (local >= batch || j > at.valid(n)) return;
  const T* q = at.q + n * at.tokens * at.m + i0;
  T sum[kColumns] = {};
  for (int64_t c0 = 1; c0 <= at.K; c0 += kWarp) {
    int from = 0, to = 0;
    if (c0 + lane <= at.K) rows_with_border(at, n, j, c0 + lane, from, to);
    for (unsigned left = __ballot_sync(kAllLanes, from < to); left; left &= left - 1) {
      const int with = __ffs(int(left)) - 1;
      const int start = __shfl_sync(kAllLanes, from, with), end = __shfl_sync(kAllLanes, to, with);
      const T* s = slope + (local * at.K + c0 + with - 1) * at.rows;
#pragma unroll 4
      for (int r = start; r < end; ++r) {
        const T* x = q + r * at.step * at.m;
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          if (i0 + k * kWarp < at.m) sum[k] += s[r] * x[k * kWarp];
        }
      }
    }
  }
  T* out = dprefix + local * at.prefixes() + j * at.padded + i0;
  for (int k = 0; k < kColumns; ++k) {
    if (i0 + k * kWarp < at.m) out[k * kWarp] = sum[k];
  }
}

// sums [batch, chunks, m] of dprefix over a chunk.
template <class T>
__global__ void border_sums_kernel(double* sums, const T* dprefix, Columns<T> at, int64_t first,
                                   int64_t batch) {
  if (piece() >= batch * at.sums()) return;
  const Strip strip(piece(), at.chunks, at.m, at.tokens + 1);
  const int64_t valid = at.valid(first + strip.local);
  const T* from = dprefix + strip.local * at.prefixes() + strip.column;
  double sum = 0;
  for (int64_t j = strip.first ? strip.first : 1; j < strip.last && j <= valid; ++j) {
    sum += double(from[j * at.padded]);
  }
  sums[piece()] = sum;
}

// dk: key j is in every prefix after it. `sums` are those of the chunks after each.
template <class T>
__global__ void keys_kernel(T* dk, const double* sums, const T* dprefix, Columns<T> at,
                            int64_t first, int64_t batch) {
  if (piece() >= batch * at.sums()) return;
  const Strip strip(piece(), at.chunks, at.m, at.tokens + 1);
  const int64_t n = first + strip.local, valid = at.valid(n);
  const T* from = dprefix + strip.local * at.prefixes() + strip.column;
  T* to = dk + n * at.tokens * at.m + strip.column;
  double sum = sums[piece()];
  for (int64_t j = strip.last - 1; j >= strip.first; --j) {
    if (j < at.tokens) to[j * at.m] = j < valid ? T(sum) : T(0);
    if (j >= 1 && j <= valid) sum += double(from[j * at.padded]);
  }
}

// dk [B, G, T, m] = the sums over the heads of a group of heads [B, H, T, m].
template <class T>
__global__ void sum_heads_kernel(T* dk, const T* heads, int64_t group_heads, int64_t size,
                                 int64_t all) {
  if (piece() >= all) return;
  const T* from = heads + piece() / size * group_heads * size + piece() % size;
  T sum = 0;
  for (int64_t h = 0; h < group_heads; ++h) sum += from[h * size];
  dk[piece()] = sum;
}

template <class T>
void launch_keys(const char* name, T* dk, T* dprefix, double* sums, const T* slope,
                 const Columns<T>& at, int64_t first, int64_t batch, Device device) {
  const int64_t across = (at.m + kWarp * kColumns - 1) / (kWarp * kColumns);
  launch_each(name, batch * at.tokens * across * kWarp, borders_kernel<T>, dprefix, slope, at,
              first, batch);
  launch_each(name, batch * at.sums(), border_sums_kernel<T>, sums, dprefix, at, first, batch);
  sums_before(name, sums, batch, at.chunks, at.m, true, device);
  launch_each(name, batch * at.sums(), keys_kernel<T>, dk, sums, dprefix, at, first, batch);
}

// dq [B, H, T, m] and dk [B, G, T, m] from the derivatives that `slopes` makes, in batches of as
// many heads as memory allows.
template <class T, class Slopes>
void column_products_backward(const char* name, const Tensor& dq, const Tensor& dk,
                              const Columns<T>& at, Slopes slopes) {
  const int64_t all = dq.dim(0) * at.heads, wide = rows_of_block(at, 2);
  const Device device = dq.device();
  const int64_t border_slopes = at.K * at.rows;
  const int64_t each = Prefixes<T>::bytes(at) + border_slopes * int64_t(sizeof(T));
  const int64_t heads = std::min(kMaxBatch, heads_per_batch(all, each));
  const Prefixes<T> made(at, heads, device);
  const Tensor slope = Tensor::empty(Shape{heads, border_slopes}, dq.dtype(), device);
  const bool grouped = at.groups < at.heads;
  const Tensor dk_of_heads = grouped ? Tensor::empty(dq.shape(), dq.dtype(), device) : dk;
  T *prefix = made.prefix.template data<T>(), *wholes = made.products.template data<T>();
  for (int64_t first = 0; first < all; first += heads) {
    const int64_t batch = std::min(heads, all - first);
    made.make(name, at, first, batch);
    launch(name, rows_kernel<T, Slopes>, dim3(blocks_for(batch * ((at.rows + wide - 1) / wide), 1)),
           dim3(unsigned(wide * kWarp)), size_t(wide * Row<T>::memory(at, 2) * 8), dq.data<T>(),
           slope.data<T>(), wholes, slopes, prefix, at, first, wide);
    multiply_slopes(name, dq.data<T>(), wholes, made.whole.template data<T>(), at.reaches, at,
                    first, batch, 1, device);
    // The prefixes have been read: their memory is reused for the gradient.
    launch_keys(name, dk_of_heads.data<T>(), prefix, made.sums.template data<double>(),
                slope.data<T>(), at, first, batch, device);
  }
  if (!grouped) return;
  launch_each(name, dk.numel(), sum_heads_kernel<T>, dk.data<T>(), dk_of_heads.data<T>(),
              at.heads / at.groups, at.tokens * at.m, dk.numel());
}

// The parts [B, H, R] of head `matrix`, those of a sequence after the other.
struct GainTerms {
  const double* parts;
  int64_t heads, rows;
  __device__ void operator()(double (&sum)[1], int64_t matrix, int64_t i, int64_t) const {
    const int64_t b = quotient(i, rows);
    sum[0] += parts[(b * heads + matrix) * rows + i - b * rows];
  }
};
template <class T>
struct AddGain {
  T* dgain;
  __device__ void operator()(int64_t matrix, int64_t, int64_t, const double (&sum)[1]) const {
    dgain[matrix] += T(sum[0]);
  }
};

// dgain [H] += the sums of parts [B, H, R].
template <class T>
void add_gains(const char* name, const Tensor& dgain, const Tensor& parts, int64_t B,
               const Columns<T>& at) {
  sum_bands<1>(name, at.heads, B * at.rows, 1, GainTerms{parts.data<double>(), at.heads, at.rows},
               AddGain<T>{dgain.data<T>()}, dgain.device());
}

}  // namespace brine::cuda::columns
