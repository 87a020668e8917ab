// Products of queries with the sums of keys over columns: prefix sums of the keys in f64, by a
// chunked scan, and a row's products with them at the borders of its columns. A warp for every row.
#pragma once

#include "tensor/cuda/core/common.cuh"
#include "tensor/cuda/core/running_sum.cuh"
#include "tensor/cuda/core/scratch.h"

namespace brine::cuda::columns {

constexpr int64_t kChunk = 64;   // prefixes that one thread writes
constexpr int64_t kMaxRows = 8;  // of a block: neighbours share most of their prefixes
constexpr int kLanes = 8;        // of a warp, for one product of f64 pairs

// Sizes and inputs of a call. Prefix j, 0 <= j <= T, is the sum over the keys before j.
template <class T>
struct Columns {
  int64_t heads, groups, tokens, rows, m, padded, K, step, units;
  int64_t chunks;  // of the T + 1 prefixes
  RowWidths widths;
  const T *q, *k;  // [B, H, T, m], [B, G, T, m]

  // The keys of head n = b H + h.
  __device__ const T* keys(int64_t n) const {
    return k + (n / heads * groups + n % heads * groups / heads) * tokens * m;
  }
  __device__ int64_t valid(int64_t n) const { return widths.valid(n / heads); }
  __device__ int64_t width(int64_t n, int64_t row) const { return widths(n / heads, row * step); }
  // f64 numbers of a head's prefixes, and of its sums over chunks.
  __host__ __device__ int64_t prefixes() const { return (tokens + 1) * padded; }
  __host__ __device__ int64_t sums() const { return chunks * m; }
};

// K columns of the rows of a grid.
template <class T>
Columns<T> columns_of(const Tensor& q, const Tensor& k, int64_t K, const ColumnGrid& grid,
                      const RowWidths& widths) {
  Columns<T> at{};
  at.heads = q.dim(1);
  at.groups = k.dim(1);
  at.tokens = q.dim(2);
  at.rows = (at.tokens + grid.step - 1) / grid.step;
  at.m = q.dim(3);
  at.padded = (at.m + 1) / 2 * 2;
  at.K = K;
  at.step = grid.step;
  at.units = grid.units;
  at.chunks = (at.tokens + kChunk) / kChunk;
  at.widths = widths;
  at.q = q.data<T>();
  at.k = k.data<T>();
  return at;
}

// A column of a chunk of a head: what one thread of a scan has.
struct Strip {
  int64_t local, chunk, column, first, last;  // prefixes [first, last)

  __device__ Strip(int64_t at, int64_t chunks, int64_t columns, int64_t prefixes)
      : local(at / columns / chunks), chunk(at / columns % chunks), column(at % columns) {
    first = chunk * kChunk;
    last = first + kChunk < prefixes ? first + kChunk : prefixes;
  }
};

// sums [turn, chunks, m] of the keys of a chunk, for the heads first .. first + turn.
template <class T>
__global__ void key_sums_kernel(double* sums, Columns<T> at, int64_t first, int64_t turn) {
  if (piece() >= turn * at.sums()) return;
  const Strip strip(piece(), at.chunks, at.m, at.tokens + 1);
  const int64_t n = first + strip.local, valid = at.valid(n);
  const T* k = at.keys(n) + strip.column;
  double sum = 0;
  for (int64_t j = strip.first; j < strip.last && j < valid; ++j) sum += double(k[j * at.m]);
  sums[piece()] = sum;
}

// prefix [turn, T + 1, padded] from the sums before each chunk, up to the last key.
template <class T>
__global__ void prefix_kernel(double* prefix, const double* sums, Columns<T> at, int64_t first,
                              int64_t turn) {
  if (piece() >= turn * at.chunks * at.padded) return;
  const Strip strip(piece(), at.chunks, at.padded, at.tokens + 1);
  const int64_t n = first + strip.local, valid = at.valid(n);
  const bool padding = strip.column >= at.m;
  const T* k = at.keys(n) + strip.column;
  double* to = prefix + strip.local * at.prefixes() + strip.column;
  double sum = padding ? 0 : sums[(strip.local * at.chunks + strip.chunk) * at.m + strip.column];
  for (int64_t j = strip.first; j < strip.last && j <= valid; ++j) {
    to[j * at.padded] = sum;
    if (j < valid && !padding) sum += double(k[j * at.m]);
  }
}

template <class T>
void prefix_sums(const char* name, double* prefix, double* sums, const Columns<T>& at,
                 int64_t first, int64_t turn, Device device) {
  launch_each(name, turn * at.sums(), key_sums_kernel<T>, sums, at, first, turn);
  sums_before(name, sums, turn, at.chunks, at.m, false, device);
  launch_each(name, turn * at.chunks * at.padded, prefix_kernel<T>, prefix, sums, at, first, turn);
}

// math::column_begin without a division. (2cw + K + 1/2) / 2K is never within 1/4K of a whole
// number, so a product with the inverse, which is far more exact than that, rounds down to the same
// value.
__device__ inline int64_t border(int64_t c, int64_t w, int64_t K) {
  return int64_t((2 * double(c) * double(w) + double(K) + 0.5) * (0.5 / double(K)));
}

// A row of one warp: the query and its products with the prefixes at the borders, in shared memory.
template <class T>
struct Row {
  const Columns<T>& at;
  int64_t n, r, w;        // head, row, keys seen; w = 0: no products are made
  int64_t unit, whole;    // keys of a unit of the columns, and units seen
  const double* prefix;   // [T + 1, padded] of the head
  double *query, *below;  // [padded], [K + 1]
  int lane;

  // f64 numbers of shared memory of a row with `arrays` arrays for borders.
  static __host__ __device__ int64_t memory(const Columns<T>& at, int64_t arrays) {
    return at.padded + (arrays * (at.K + 1) + 1) / 2 * 2;
  }

  __device__ Row(const Columns<T>& prior, const double* prefixes, double* own, int64_t local,
                 int64_t first, int64_t row)
      : at(prior),
        n(first + local),
        r(row),
        w(row < prior.rows ? prior.width(n, row) : 0),
        unit(math::unit_of_sums(w, prior.K, prior.units)),
        whole(w / unit),
        prefix(prefixes + local * prior.prefixes()),
        query(own),
        below(own + prior.padded),
        lane(int(threadIdx.x) % kWarp) {
    if (w == 0) return;
    const T* q = at.q + (n * at.tokens + r * at.step) * at.m;
    for (int64_t i = lane; i < at.padded; i += kWarp) query[i] = i < at.m ? double(q[i]) : 0;
    __syncwarp();
    products();
    __syncwarp();
  }

  // First key of column c.
  __device__ int64_t begin(int64_t c) const {
    return c == at.K ? w : unit * border(c, whole, at.K);
  }
  __device__ const double* prefix_at(int64_t c) const { return prefix + begin(c) * at.padded; }

  // Eight lanes per border, two borders at a time.
  __device__ void products() {
    const int own = lane % kLanes, group = lane / kLanes, groups = kWarp / kLanes;
    if (lane == 0) below[0] = 0;  // there are no keys before it
    for (int64_t c0 = 1; c0 <= at.K; c0 += 2 * groups) {
      const int64_t c = c0 + group, d = c + groups;
      const double *p = prefix_at(c < at.K ? c : at.K), *s = prefix_at(d < at.K ? d : at.K);
      double a = 0, b = 0;
      for (int64_t i = 2 * own; i < at.padded; i += 2 * kLanes) {
        const double2 x = *reinterpret_cast<const double2*>(query + i);
        const double2 y = *reinterpret_cast<const double2*>(p + i);
        const double2 z = *reinterpret_cast<const double2*>(s + i);
        a += x.x * y.x + x.y * y.y;
        b += x.x * z.x + x.y * z.y;
      }
      for (int with = kLanes / 2; with > 0; with /= 2) {
        a += __shfl_xor_sync(kAllLanes, a, with);
        b += __shfl_xor_sync(kAllLanes, b, with);
      }
      if (own == 0 && c <= at.K) below[c] = a;
      if (own == 0 && d <= at.K) below[d] = b;
    }
  }

  __device__ double total() const { return below[at.K]; }
  __device__ double product(int64_t c) const { return below[c + 1] - below[c]; }
  __device__ int64_t keys(int64_t c) const { return begin(c + 1) - begin(c); }
};

// Rows of a block, one per warp: as many as fit into shared memory, with `arrays` as above.
template <class T>
int64_t rows_of_block(const Columns<T>& at, int64_t arrays) {
  const int64_t bytes = Row<T>::memory(at, arrays) * int64_t(sizeof(double));
  return std::clamp<int64_t>(48 * 1024 / bytes, 1, kMaxRows);
}

// y = what `out` makes of each row's products; `wide` rows in a block.
template <class T, class Out>
__global__ void products_kernel(T* y, const double* prefix, Columns<T> at, Out out, int64_t first,
                                int64_t wide) {
  const int64_t warp = int64_t(threadIdx.x) / kWarp, bands = (at.rows + wide - 1) / wide;
  const Row<T> row(at, prefix, dynamic_shared<double>() + warp * Row<T>::memory(at, 1),
                   blockIdx.x / bands, first, blockIdx.x % bands * wide + warp);
  if (row.r >= at.rows) return;
  const int64_t to = (row.n * at.rows + row.r) * at.K;
  for (int64_t c = row.lane; c < at.K; c += kWarp) y[to + c] = out(row, c, to + c);
}

inline Tensor numbers(int64_t n, Device device) { return Tensor::empty({n}, Dtype::f64, device); }

// y [B, H, R, K] by `out`, in turns of as many heads as memory allows.
template <class T, class Out>
void column_products(const char* name, const Tensor& y, const Columns<T>& at, Out out) {
  const int64_t all = y.dim(0) * at.heads, wide = rows_of_block(at, 1);
  const int64_t heads = heads_per_turn(all, (at.prefixes() + at.sums()) * 8);
  const Tensor prefix = numbers(heads * at.prefixes(), y.device());
  const Tensor sums = numbers(heads * at.sums(), y.device());
  for (int64_t first = 0; first < all; first += heads) {
    const int64_t turn = std::min(heads, all - first);
    prefix_sums(name, prefix.data<double>(), sums.data<double>(), at, first, turn, y.device());
    launch(name, products_kernel<T, Out>, dim3(blocks_for(turn * ((at.rows + wide - 1) / wide), 1)),
           dim3(unsigned(wide * kWarp)), size_t(wide * Row<T>::memory(at, 1) * 8), y.data<T>(),
           prefix.data<double>(), at, out, first, wide);
  }
}

}  // namespace brine::cuda::columns
