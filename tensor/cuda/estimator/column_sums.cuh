// Products of queries with the sums of keys over columns, by prefix sums of the keys: a row's
// product with a column is the difference of its products with the prefixes at both borders, or,
// where columns have few keys, with their sum. A warp for every row.
//
// Prefixes begin anew at every reach of keys, a power of two, so that differences of neighbours are
// exact enough in the type of the keys; the products with the sums of whole reaches, which all rows
// share, are one matrix product, and are added up in f64.
#pragma once

#include "tensor/cuda/core/blas.h"
#include "tensor/cuda/core/columns.cuh"
#include "tensor/cuda/core/running_sum.cuh"
#include "tensor/cuda/core/scratch.h"
#include "tensor/cuda/estimator/reaches.h"

namespace brine::cuda::columns {

constexpr int64_t kChunk = 16;   // prefixes that one thread writes
constexpr int64_t kMaxRows = 8;  // of a block: neighbours share most of their prefixes
constexpr int kLanes = 8;        // of a warp, for one product
constexpr int64_t kFewKeys = 4;  // of a column on average, which are added up by themselves
constexpr int kLaneLoad = 4;     // numbers that a lane loads at once

// Sizes and inputs of a call. Prefix j, 0 <= j <= T, is the sum over the keys before j of its
// reach.
template <class T>
struct Columns {
  int64_t heads, groups, queries, tokens, rows, m, padded, K, step, units;
  int64_t reaches, chunks;  // of the T + 1 prefixes
  int shift;                // a reach has 2^shift keys
  RowWidths widths;
  const T *q, *k;  // [B, H, queries, m], [B, G, T, m]

  // The keys of head n = b H + h.
  __device__ const T* keys(int64_t n) const {
    return k + (n / heads * groups + n % heads * groups / heads) * tokens * m;
  }
  // Keys of its sequence.
  __device__ int64_t valid(int64_t n) const {
    const int64_t length = widths.length(n / heads);
    return length < tokens ? length : tokens;
  }
  __device__ int64_t width(int64_t n, int64_t row) const { return widths(n / heads, row * step); }
  // Numbers of a head's prefixes, of its f64 sums over chunks, of its sums over reaches.
  __host__ __device__ int64_t prefixes() const { return (tokens + 1) * padded; }
  __host__ __device__ int64_t sums() const { return chunks * m; }
  __host__ __device__ int64_t wholes() const { return reaches * m; }
  __host__ __device__ int64_t chunks_of_reach() const { return (int64_t(1) << shift) / kChunk; }
};

// K columns of the rows of a grid.
template <class T>
Columns<T> columns_of(const Tensor& q, const Tensor& k, int64_t K, const ColumnGrid& grid,
                      const RowWidths& widths) {
  Columns<T> at{};
  at.heads = q.dim(1);
  at.groups = k.dim(1);
  at.queries = q.dim(2);
  at.tokens = k.dim(2);
  at.rows = (at.queries + grid.step - 1) / grid.step;
  at.m = q.dim(3);
  at.padded = (at.m + kLaneLoad - 1) / kLaneLoad * kLaneLoad;
  at.K = K;
  at.step = grid.step;
  at.units = grid.units;
  at.shift = 4;  // a chunk
  while (at.tokens >> at.shift >= max_reaches()) ++at.shift;
  at.reaches = (at.tokens >> at.shift) + 1;
  at.chunks = at.reaches * at.chunks_of_reach();
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

// sums [batch, chunks, m] of the keys of a chunk, for the heads first .. first + batch.
template <class T>
__global__ void key_sums_kernel(double* sums, Columns<T> at, int64_t first, int64_t batch) {
  if (piece() >= batch * at.sums()) return;
  const Strip strip(piece(), at.chunks, at.m, at.tokens + 1);
  const int64_t n = first + strip.local, valid = at.valid(n);
  const T* k = at.keys(n) + strip.column;
  double sum = 0;
  for (int64_t j = strip.first; j < strip.last && j < valid; ++j) sum += double(k[j * at.m]);
  sums[piece()] = sum;
}

// prefix [batch, T + 1, padded] from the sums before each chunk of a reach, up to the last key.
template <class T>
__global__ void prefix_kernel(T* prefix, const double* sums, Columns<T> at, int64_t first,
                              int64_t batch) {
  if (piece() >= batch * at.chunks * at.padded) return;
  const Strip strip(piece(), at.chunks, at.padded, at.tokens + 1);
  const int64_t n = first + strip.local, valid = at.valid(n);
  const bool padding = strip.column >= at.m;
  const T* k = at.keys(n) + strip.column;
  T* to = prefix + strip.local * at.prefixes() + strip.column;
  double sum = padding ? 0 : sums[(strip.local * at.chunks + strip.chunk) * at.m + strip.column];
  for (int64_t j = strip.first; j < strip.last && j <= valid; ++j) {
    to[j * at.padded] = T(sum);
    if (j < valid && !padding) sum += double(k[j * at.m]);
  }
}

template <class T>
void multiply(const char* name, Gemm g, const void* a, const void* b, void* y, double beta,
              Device device) {
  g.exact = true;
  g.in = g.out = DtypeOf<T>::value;
  check(gemm(g, {.a = a, .b = b, .y = y}, 1, beta, device), name,
        ": cuBLASLt has no algorithm to multiply ", g.batch, " times [", g.M, ", ", g.K, "] x [",
        g.K, ", ", g.N, "]");
}

constexpr int64_t kMaxBatch = 65535;  // products at once

// y [batch, R, N] = the queries of the rows, every step-th of the tokens, times x [batch, N, m].
template <class T>
void multiply_queries(const char* name, T* y, const T* x, int64_t N, const Columns<T>& at,
                      int64_t first, int64_t batch, Device device) {
  Gemm g;
  g.M = at.rows;
  g.N = N;
  g.K = at.m;
  g.tb = true;
  g.lda = at.step * at.m;
  g.ldb = at.m;
  g.ldy = N;
  g.batch = batch;
  g.step_a = at.queries * at.m;
  g.step_b = N * at.m;
  g.step_y = at.rows * N;
  multiply<T>(name, g, at.q + first * at.queries * at.m, x, y, 0, device);
}

// dq of the rows = or, with beta = 1, += dy [batch, R, N] times x [batch, N, m].
template <class T>
void multiply_slopes(const char* name, T* dq, const T* dy, const T* x, int64_t N,
                     const Columns<T>& at, int64_t first, int64_t batch, double beta,
                     Device device) {
  Gemm g;
  g.M = at.rows;
  g.N = at.m;
  g.K = N;
  g.lda = N;
  g.ldb = at.m;
  g.ldy = at.step * at.m;
  g.batch = batch;
  g.step_a = at.rows * N;
  g.step_b = N * at.m;
  g.step_y = at.tokens * at.m;
  multiply<T>(name, g, dy, x, dq + first * at.tokens * at.m, beta, device);
}

// The memory of a batch of heads.
template <class T>
struct Prefixes {
  Tensor prefix, sums;     // [batch, T + 1, padded], f64 [batch, chunks, m]
  Tensor whole, products;  // of reaches: [batch, reaches, m]; with the queries [batch, R, reaches]

  static int64_t bytes(const Columns<T>& at) {
    return (at.prefixes() + at.wholes() + at.rows * at.reaches) * int64_t(sizeof(T)) +
           at.sums() * int64_t(sizeof(double));
  }
  Prefixes(const Columns<T>& at, int64_t batch, Device device) {
    constexpr Dtype type = DtypeOf<T>::value;
    prefix = Tensor::empty(Shape{batch, at.prefixes()}, type, device);
    sums = Tensor::empty(Shape{batch, at.sums()}, Dtype::f64, device);
    whole = Tensor::empty(Shape{batch, at.wholes()}, type, device);
    products = Tensor::empty(Shape{batch, at.rows, at.reaches}, type, device);
  }

  void make(const char* name, const Columns<T>& at, int64_t first, int64_t batch) const {
    const Device device = prefix.device();
    double* s = sums.data<double>();
    launch_each(name, batch * at.sums(), key_sums_kernel<T>, s, at, first, batch);
    sum_chunks<T, double>(name, whole.data<T>(), s, batch * at.reaches, at.chunks_of_reach(), at.m,
                          device);
    sums_before(name, s, batch * at.reaches, at.chunks_of_reach(), at.m, false, device);
    launch_each(name, batch * at.chunks * at.padded, prefix_kernel<T>, prefix.data<T>(), s, at,
                first, batch);
    multiply_queries(name, products.data<T>(), whole.data<T>(), at.reaches, at, first, batch,
                     device);
  }
};

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
  int64_t n, r, w;         // head, row, keys seen; w = 0: no products are made
  int64_t unit, whole;     // keys of a unit of the columns, and units seen
  const T* prefix;         // [T + 1, padded] of the head
  const T* products;       // [reaches] of the query with the sums of whole reaches
  T* query;                // [padded]
  double *before, *below;  // [reaches] sums of products, [K + 1]
  int lane;

  // f64 numbers of shared memory of a row with `arrays` arrays for borders.
  static __host__ __device__ int64_t memory(const Columns<T>& at, int64_t arrays) {
    return (at.padded + at.reaches + arrays * (at.K + 1) + 1) / 2 * 2;
  }

  __device__ Row(const Columns<T>& prior, const T* prefixes, const T* wholes, double* scratch,
                 int64_t local, int64_t first, int64_t row)
      : at(prior),
        n(first + local),
        r(row),
        w(row < prior.rows ? prior.width(n, row) : 0),
        unit(math::unit_of_sums(w, prior.K, prior.units)),
        whole(w / unit),
        prefix(prefixes + local * prior.prefixes()),
        products(wholes + (local * prior.rows + row) * prior.reaches),
        query(reinterpret_cast<T*>(scratch)),
        before(scratch + prior.padded),
        below(before + prior.reaches),
        lane(int(threadIdx.x) % kWarp) {
    if (w == 0) return;
    const T* q = at.q + (n * at.queries + r * at.step) * at.m;
    for (int64_t i = lane; i < at.padded; i += kWarp) query[i] = i < at.m ? q[i] : T(0);
    const bool few = w <= kFewKeys * at.K;
    if (!few) sum_products();
    __syncwarp();  // the query is whole
    few ? few_products() : find_products();
    __syncwarp();
  }

  // First key of column c.
  __device__ int64_t begin(int64_t c) const {
    return c == at.K ? w : unit * border(c, whole, at.K);
  }
  __device__ const T* prefix_at(int64_t c) const { return prefix + begin(c) * at.padded; }
  // The column of key j < w.
  __device__ int64_t column(int64_t j) const {
    const int64_t of = quotient(j, unit);
    return of < whole ? column_of(of, whole, at.K) : at.K - 1;
  }

  // f(i, sum, value) for i < n: the sum of the values before i, and value(i).
  template <class Value, class F>
  __device__ void running_sums(int64_t n, Value value, F f) {
    double sum = 0;
    for (int64_t first = 0; first < n; first += kWarp) {
      const int64_t i = first + lane;
      const double term = i < n ? value(i) : 0.0;
      double upto = term;
      for (int by = 1; by < kWarp; by *= 2) {
        const double other = __shfl_up_sync(kAllLanes, upto, by);
        if (lane >= by) upto += other;
      }
      if (i < n) f(i, sum + upto - term, term);
      sum += __shfl_sync(kAllLanes, upto, kWarp - 1);
    }
  }

  // before = the sums of the products with the reaches before each.
  __device__ void sum_products() {
    running_sums(
        at.reaches, [this](int64_t i) { return double(products[i]); },
        [this](int64_t i, double sum, double) { before[i] = sum; });
  }

  // Columns of few keys, by the keys themselves: a small product with one of them would drown in
  // the rounding of a difference of products with many. Eight lanes per column.
  __device__ void few_products() {
    const int sublane = lane % kLanes, group = lane / kLanes, groups = kWarp / kLanes;
    const T* k = at.keys(n);
    if (lane == 0) below[0] = 0;
    for (int64_t c0 = 0; c0 < at.K; c0 += groups) {
      const int64_t c = c0 + group, from = begin(c < at.K ? c : at.K);
      const int64_t to = begin(c + 1 < at.K ? c + 1 : at.K);
      T a = 0;
      for (int64_t i = sublane; i < at.m; i += kLanes) {
        T sum = 0;
        for (int64_t j = from; j < to; ++j) sum += k[j * at.m + i];
        a += query[i] * sum;
      }
      for (int with = kLanes / 2; with > 0; with /= 2) a += __shfl_xor_sync(kAllLanes, a, with);
      if (sublane == 0 && c < at.K) below[c + 1] = double(a);
    }
    __syncwarp();
    running_sums(
        at.K, [this](int64_t c) { return below[c + 1]; },
        [this](int64_t c, double sum, double value) { below[c + 1] = sum + value; });
  }

  // Eight lanes per border, two borders at a time.
  __device__ void find_products() {
    const int sublane = lane % kLanes, group = lane / kLanes, groups = kWarp / kLanes;
    if (lane == 0) below[0] = 0;  // there are no keys before it
    for (int64_t c0 = 1; c0 <= at.K; c0 += 2 * groups) {
      const int64_t c = c0 + group, d = c + groups;
      const int64_t j = begin(c < at.K ? c : at.K), k = begin(d < at.K ? d : at.K);
      const T *p = prefix + j * at.padded, *s = prefix + k * at.padded;
      T a = 0, b = 0;
      for (int64_t i = kLaneLoad * sublane; i < at.padded; i += kLaneLoad * kLanes) {
        T x[kLaneLoad], y[kLaneLoad], z[kLaneLoad];
        load_wide<kLaneLoad>(x, query + i);
        load_wide<kLaneLoad>(y, p + i);
        load_wide<kLaneLoad>(z, s + i);
#pragma unroll
        for (int n = 0; n < kLaneLoad; ++n) {
          a += x[n] * y[n];
          b += x[n] * z[n];
        }
      }
      for (int with = kLanes / 2; with > 0; with /= 2) {
        a += __shfl_xor_sync(kAllLanes, a, with);
        b += __shfl_xor_sync(kAllLanes, b, with);
      }
      if (sublane == 0 && c <= at.K) below[c] = before[j >> at.shift] + double(a);
      if (sublane == 0 && d <= at.K) below[d] = before[k >> at.shift] + double(b);
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
__global__ void products_kernel(T* y, const T* prefix, const T* wholes, Columns<T> at, Out out,
                                int64_t first, int64_t wide) {
  const int64_t warp = int64_t(threadIdx.x) / kWarp, bands = (at.rows + wide - 1) / wide;
  const Row<T> row(at, prefix, wholes, dynamic_shared<double>() + warp * Row<T>::memory(at, 1),
                   blockIdx.x / bands, first, blockIdx.x % bands * wide + warp);
  if (row.r >= at.rows) return;
  const int64_t to = (row.n * at.rows + row.r) * at.K;
  for (int64_t c = row.lane; c < at.K; c += kWarp) y[to + c] = out(row, c, to + c);
}

inline Tensor numbers(int64_t n, Device device) { return Tensor::empty({n}, Dtype::f64, device); }

// y [B, H, R, K] by `out`, in batches of as many heads as memory allows.
template <class T, class Out>
void column_products(const char* name, const Tensor& y, const Columns<T>& at, Out out) {
  const int64_t all = y.dim(0) * at.heads, wide = rows_of_block(at, 1);
  const int64_t heads = std::min(kMaxBatch, heads_per_batch(all, Prefixes<T>::bytes(at)));
  const Prefixes<T> made(at, heads, y.device());
  for (int64_t first = 0; first < all; first += heads) {
    const int64_t batch = std::min(heads, all - first);
    made.make(name, at, first, batch);
    launch(name, products_kernel<T, Out>,
           dim3(blocks_for(batch * ((at.rows + wide - 1) / wide), 1)), dim3(unsigned(wide * kWarp)),
           size_t(wide * Row<T>::memory(at, 1) * 8), y.data<T>(), made.prefix.template data<T>(),
           made.products.template data<T>(), at, out, first, wide);
  }
}

}  // namespace brine::cuda::columns
