// Linear attention by products of cuBLASLt over chunks of rows: sums of every chunk, running sums
// over the chunks, and the triangle of a chunk.
//
// Z = [identity ; v ; 1], so a row's numerators and its denominator are one row of
// phi_q S + lower(phi_q phi_k^T) Z, where S is the sum of phi_k^T Z over the chunks before the
// row's. If all rows see all keys, S is that of all chunks and there is no triangle.
#include "tensor/cuda/core/blas.h"
#include "tensor/cuda/core/running_sum.cuh"
#include "tensor/cuda/core/scratch.h"
#include "tensor/kernels/dense.h"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

constexpr int64_t kCausalRows = 128, kWholeRows = 512;  // of a chunk, at most

// Of a head in a chunk; the tensors of a batch are [groups chunks, heads rows, columns].
struct ChunkRow {
  int64_t group, t, source;  // source: the row of a tensor [B, G heads, T, columns]
  bool valid;                // not padding
};

struct Chunks {
  int64_t groups, heads;  // of a sequence; of a group
  int64_t tokens, m, i, d;
  int64_t rows = 0, chunks = 0;
  RowWidths widths;
  int64_t first = 0, count = 0;  // groups of this batch

  __host__ __device__ int64_t e() const { return i + d; }
  // Columns of Z: those of the values, the ones, and zeros up to 16 bytes.
  __host__ __device__ int64_t wide() const { return (e() + 4) / 4 * 4; }
  __device__ ChunkRow row(int64_t line, int64_t of_heads) const {
    const int64_t above = quotient(line, rows), chunk = quotient(above, of_heads);
    const int64_t group = quotient(chunk, chunks);
    ChunkRow at;
    at.group = first + group;
    at.t = (chunk - group * chunks) * rows + line - above * rows;
    at.source = (at.group * of_heads + above - chunk * of_heads) * tokens + at.t;
    at.valid = at.t < widths.valid(quotient(at.group, groups));
    return at;
  }
  Tensor lines(int64_t of_heads, int64_t columns, const Tensor& like) const {
    return Tensor::empty({count * chunks, of_heads * rows, columns}, like.dtype(), like.device());
  }
};

Chunks chunks_of(const Tensor& phi_q, const Tensor& phi_k, const Tensor& identity, const Tensor& v,
                 const RowWidths& widths) {
  Chunks at{.groups = phi_k.dim(1),
            .heads = phi_q.dim(1) / phi_k.dim(1),
            .tokens = phi_k.dim(2),
            .m = phi_k.dim(3),
            .i = identity.defined() ? identity.dim(-1) : 0,
            .d = v.dim(3),
            .widths = widths};
  at.rows = std::min(widths.causal ? kCausalRows : kWholeRows, (at.tokens + 15) / 16 * 16);
  at.chunks = (at.tokens + at.rows - 1) / at.rows;
  return at;
}

// x [B, G heads, T, columns] in chunks, 0 at padding.
template <class T>
__global__ void chunks_kernel(T* to, const T* x, Chunks at, int64_t heads, int64_t columns,
                              int64_t n) {
  if (piece() >= n) return;
  const int64_t line = quotient(piece(), columns);
  const ChunkRow row = at.row(line, heads);
  to[piece()] = row.valid ? x[row.source * columns + piece() - line * columns] : T(0);
}

// Z. The rows of the identity of one sequence are `step` numbers after those of another.
template <class T>
__global__ void values_kernel(T* to, const T* identity, int64_t step, const T* v, Chunks at,
                              int64_t n) {
  if (piece() >= n) return;
  const int64_t line = quotient(piece(), at.wide()), c = piece() - line * at.wide();
  const ChunkRow row = at.row(line, 1);
  T value = T(c == at.e());
  if (row.valid && c < at.i) {
    value = identity[quotient(row.group, at.groups) * step + row.t * at.i + c];
  } else if (row.valid && c < at.e()) {
    value = v[row.source * at.d + c - at.i];
  }
  to[piece()] = row.valid ? value : T(0);
}

// The gradient of numerators and denominators: a warp for every row.
template <class T>
__global__ void numerators_kernel(T* to, const T* dy, const T* y, const T* den, Chunks at,
                                  int64_t lines) {
  const int64_t line = piece() / kWarp, e = at.e();
  if (line >= lines) return;
  const ChunkRow row = at.row(line, at.heads);
  dy += row.source * e;
  y += row.source * e;
  double dot = 0;
  for (int64_t c = threadIdx.x % kWarp; row.valid && c < e; c += kWarp) {
    dot += double(dy[c]) * double(y[c]);
  }
  dot = warp_sum(dot);
  const T share = row.valid ? 1 / den[row.source] : T(0);
  for (int64_t c = threadIdx.x % kWarp; c < at.wide(); c += kWarp) {
    const T value = c < e && row.valid ? dy[c] * share : T(0);
    to[line * at.wide() + c] = c == e ? T(-dot * double(share)) : value;
  }
}

// Products of rows with later keys become 0.
template <class T>
__global__ void triangle_kernel(T* weights, int64_t rows, int64_t n) {
  if (piece() >= n) return;
  const int64_t line = quotient(piece(), rows), row = line - quotient(line, rows) * rows;
  if (piece() - line * rows > row) weights[piece()] = 0;
}

// S [., m, wide]: eps is added to the sums of the keys.
template <class T>
__global__ void add_eps_kernel(T* state, T eps, int64_t column, int64_t wide, int64_t n) {
  if (piece() < n) state[piece() * wide + column] += eps;
}

template <class T>
__global__ void outputs_kernel(T* y, T* den, const T* sums, Chunks at, int64_t n) {
  if (piece() >= n) return;
  const int64_t line = quotient(piece(), at.wide()), c = piece() - line * at.wide();
  const ChunkRow row = at.row(line, at.heads);
  if (row.t >= at.tokens || c > at.e()) return;
  const T below = sums[line * at.wide() + at.e()];
  if (c == at.e()) {
    den[row.source] = row.valid ? below : T(1);
  } else {
    y[row.source * at.e() + c] = row.valid ? sums[piece()] * (1 / below) : T(0);
  }
}

// `columns` columns of x, of `wide`, from `skipped` on, back to [B, G heads, T, columns].
template <class T>
__global__ void rows_kernel(T* to, const T* x, Chunks at, int64_t heads, int64_t columns,
                            int64_t wide, int64_t skipped, int64_t n) {
  if (piece() >= n) return;
  const int64_t line = quotient(piece(), columns), c = piece() - line * columns;
  const ChunkRow row = at.row(line, heads);
  if (row.t < at.tokens) to[row.source * columns + c] = x[line * wide + skipped + c];
}

// didentity += the first columns of the gradient of Z, of the groups in order.
template <class T>
__global__ void add_identity_kernel(T* didentity, const T* dz, Chunks at, int64_t n) {
  if (piece() >= n) return;
  const int64_t t = quotient(piece(), at.i), c = piece() - t * at.i;
  T sum = didentity[piece()];
  for (int64_t g = 0; g < at.count; ++g) {
    sum += dz[(g * at.chunks * at.rows + t) * at.wide() + c];
  }
  didentity[piece()] = sum;
}

// y = op(a) op(b) + beta y, all [n, rows, columns]. Nothing is rounded to TF32.
void multiply_chunks(const char* name, const Tensor& y, const Tensor& a, bool ta, const Tensor& b,
                     bool tb, double beta = 0) {
  constexpr int64_t kMax = 65535;  // products at once
  Gemm g{.in = y.dtype(), .out = y.dtype(), .M = y.dim(1), .N = y.dim(2)};
  g.K = ta ? a.dim(1) : a.dim(2);
  g.ta = ta, g.tb = tb;
  g.lda = a.dim(2), g.ldb = b.dim(2), g.ldy = y.dim(2);
  g.step_a = a.dim(1) * a.dim(2), g.step_b = b.dim(1) * b.dim(2), g.step_y = g.M * g.N;
  g.exact = true;
  for (int64_t first = 0; first < y.dim(0); first += kMax) {
    g.batch = std::min(kMax, y.dim(0) - first);
    auto from = [&](const Tensor& x) { return x.slice(0, first, g.batch).raw(); };
    check(gemm(g, {.a = from(a), .b = from(b), .y = from(y)}, 1, beta, y.device()), name,
          ": cuBLASLt has no algorithm to multiply ", g.batch, " times [", g.M, ", ", g.K, "] x [",
          g.K, ", ", g.N, "]");
  }
}

// The inputs of a batch in chunks.
template <class T>
struct ChunkedInputs {
  const char* name;
  Chunks at;
  Tensor q, k, z;

  ChunkedInputs(const char* name, const Chunks& at, const Tensor& phi_q, const Tensor& phi_k,
                const Tensor& identity, const Tensor& v)
      : name(name), at(at), k(of_rows(phi_k, 1)), z(at.lines(1, at.wide(), v)) {
    if (phi_q.defined()) q = of_rows(phi_q, at.heads);
    const int64_t step = identity.defined() && identity.rank() == 3 ? at.tokens * at.i : 0;
    launch_each(name, z.numel(), values_kernel<T>, z.data<T>(), data_or_null<T>(identity), step,
                v.data<T>(), at, z.numel());
  }

  Tensor of_rows(const Tensor& x, int64_t heads) const {
    Tensor to = at.lines(heads, x.dim(3), x);
    launch_each(name, to.numel(), chunks_kernel<T>, to.data<T>(), x.data<T>(), at, heads, x.dim(3),
                to.numel());
    return to;
  }
  // The sums of x^T y of each chunk, [groups chunks, m, wide].
  Tensor sums(const Tensor& x, const Tensor& y) const {
    Tensor to = Tensor::empty({x.dim(0), x.dim(2), y.dim(2)}, x.dtype(), x.device());
    multiply_chunks(name, to, x, true, y, false);
    return to;
  }
  // The sums that the rows of a chunk see: those before it, or with `backwards` those after it.
  Tensor seen_sums(const Tensor& x, const Tensor& y, bool backwards) const {
    const Tensor parts = sums(x, y);
    const int64_t size = at.m * at.wide();
    if (at.widths.causal) {
      sums_before(name, parts.data<T>(), at.count, at.chunks, size, backwards, x.device());
      return parts;
    }
    Tensor all = Tensor::empty({at.count, at.m, at.wide()}, x.dtype(), x.device());
    sum_chunks(name, all.data<T>(), parts.data<T>(), at.count, at.chunks, size, x.device());
    return all;
  }
  Tensor state(double eps) const {
    const Tensor s = seen_sums(k, z, false);
    launch_each(name, s.rows(), add_eps_kernel<T>, s.data<T>(), T(eps), at.e(), at.wide(),
                s.rows());
    return s;
  }
  // lower(x y^T), undefined where all rows see all keys.
  Tensor triangle(const Tensor& x, const Tensor& y) const {
    if (!at.widths.causal) return {};
    Tensor w = at.lines(at.heads, at.rows, x);
    multiply_chunks(name, w, x, false, y, true);
    launch_each(name, w.numel(), triangle_kernel<T>, w.data<T>(), at.rows, w.numel());
    return w;
  }
  // x s, or x s^T, + w z, or w^T z.
  Tensor result(const Tensor& x, const Tensor& s, bool transposed, const Tensor& w, bool lower,
                const Tensor& z) const {
    const int64_t columns = s.dim(transposed ? 1 : 2), rows = x.numel() / x.dim(2) / s.dim(0);
    Tensor y = Tensor::empty({x.dim(0), x.dim(1), columns}, x.dtype(), x.device());
    multiply_chunks(name, y.view({s.dim(0), rows, columns}), x.view({s.dim(0), rows, x.dim(2)}),
                    false, s, transposed);
    if (w.defined()) multiply_chunks(name, y, w, lower, z, false, 1);
    return y;
  }
  void write_rows(const Tensor& to, const Tensor& x, int64_t heads, int64_t skipped = 0) const {
    const int64_t columns = to.dim(3), n = x.rows() * columns;
    launch_each(name, n, rows_kernel<T>, to.data<T>(), x.data<T>(), at, heads, columns, x.dim(2),
                skipped, n);
  }
};

// Calls f(ChunkedInputs) for batches of as many groups as memory allows; phi_q may be undefined.
template <class F>
void each_batch(const char* name, const Tensor& phi_q, const Tensor& phi_k, const Tensor& identity,
                const Tensor& v, const Visibility& visible, F&& f) {
  const DeviceWidths widths(visible, phi_k.dim(2), v.device());
  Chunks at = chunks_of(phi_q.defined() ? phi_q : phi_k, phi_k, identity, v, widths.get());
  const int64_t rows = at.chunks * at.rows, lines = rows * at.heads;
  const int64_t numbers =
      (rows + lines) * (at.m + at.wide()) + lines * at.rows + 2 * at.chunks * at.m * at.wide();
  const int64_t all = phi_k.dim(0) * phi_k.dim(1);
  dispatch_float(v.dtype(), [&]<class T>() {
    const int64_t batch = heads_per_batch(all, numbers * int64_t(sizeof(T)));
    for (at.first = 0; at.first < all; at.first += batch) {
      at.count = std::min(batch, all - at.first);
      f(ChunkedInputs<T>(name, at, phi_q, phi_k, identity, v));
    }
  });
}

}  // namespace

void linear_attention(Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity, Tensor v,
                      Visibility visible, double eps) {
  if (y.numel() == 0) return;
  auto outputs = [&]<class T>(const ChunkedInputs<T>& in) {
    const Tensor sums = in.result(in.q, in.state(eps), false, in.triangle(in.q, in.k), false, in.z);
    launch_each(in.name, sums.numel(), outputs_kernel<T>, y.data<T>(), den.data<T>(),
                sums.data<T>(), in.at, sums.numel());
  };
  each_batch("linear_attention", phi_q, phi_k, identity, v, visible, outputs);
}

void linear_attention_backward(Tensor dphi_q, Tensor dphi_k, Tensor didentity, Tensor dv, Tensor dy,
                               Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity,
                               Tensor v, Visibility visible, double eps) {
  if (y.numel() == 0) return;
  auto gradients = [&]<class T>(const ChunkedInputs<T>& in) {
    const Chunks& at = in.at;
    const Tensor g = at.lines(at.heads, at.wide(), dy);
    launch_each(in.name, g.rows() * kWarp, numerators_kernel<T>, g.data<T>(), dy.data<T>(),
                y.data<T>(), den.data<T>(), at, g.rows());
    const Tensor later = in.seen_sums(in.q, g, true);
    {
      const Tensor w = in.triangle(g, in.z);
      in.write_rows(dphi_q, in.result(g, in.state(eps), true, w, false, in.k), at.heads);
      in.write_rows(dphi_k, in.result(in.z, later, true, w, true, in.q), 1);
    }
    const Tensor dz = in.result(in.k, later, false, in.triangle(in.q, in.k), true, g);
    in.write_rows(dv, dz, 1, at.i);
    if (!didentity.defined() || at.i == 0) return;
    launch_each(in.name, at.tokens * at.i, add_identity_kernel<T>, didentity.data<T>(),
                dz.data<T>(), at, at.tokens * at.i);
  };
  each_batch("linear_attention_backward", phi_q, phi_k, identity, v, visible, gradients);
}

void linear_attention_state(Tensor state, Tensor sums, Tensor phi_k, Tensor identity, Tensor v,
                            Visibility visible) {
  if (phi_k.numel() == 0) {
    fill(state, 0);
    return fill(sums, 0);
  }
  auto store = [&]<class T>(const ChunkedInputs<T>& in) {
    const Chunks& at = in.at;
    const Tensor parts = in.sums(in.k, in.z);
    const Tensor all = Tensor::empty({at.count, at.m, at.wide()}, Dtype::f64, v.device());
    sum_chunks(in.name, all.data<double>(), parts.data<T>(), at.count, at.chunks, at.m * at.wide(),
               v.device());
    auto part = [&](const Tensor& x, int64_t columns) {
      return x.view({-1, at.m, columns}).slice(0, at.first, at.count);
    };
    copy(part(state, at.e()), all.slice(2, 0, at.e()));
    copy(part(sums, 1), all.slice(2, at.e(), 1));
  };
  each_batch("linear_attention_state", {}, phi_k, identity, v,
             {.causal = false, .lengths = visible.lengths}, store);
}

}  // namespace brine::cuda
