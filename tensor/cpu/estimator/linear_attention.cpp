// Linear attention in chunks: within a chunk as matrix products, between chunks with a running
// state [m, e] of key features times values. O(T m e) time, O(m e) state; one task per head.
#include <vector>

#include "tensor/cpu/core/gemm_f64.h"
#include "tensor/cpu/core/onednn.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/csr.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kChunk = kLinearAttentionChunk;

// c [M, N] = op(a) op(b) + beta c
struct Side {
  int64_t ld = 0;
  bool transposed = false;
};

void product(int64_t M, int64_t N, int64_t K, const float* a, Side sa, const float* b, Side sb,
             float beta, float* c, int64_t ldc) {
  onednn::gemm({.M = M,
                .N = N,
                .K = K,
                .ta = sa.transposed,
                .tb = sb.transposed,
                .lda = sa.ld,
                .ldb = sb.ld,
                .ldc = ldc,
                .beta = beta},
               a, b, c);
}

void product(int64_t M, int64_t N, int64_t K, const double* a, Side sa, const double* b, Side sb,
             double beta, double* c, int64_t ldc) {
  auto strided = [](const double* x, Side s) {
    return Strided<const double>{x, s.transposed ? 1 : s.ld, s.transposed ? s.ld : 1};
  };
  gemm_f64(M, N, K, 1.0, strided(a, sa), strided(b, sb), beta, {c, ldc, 1});
}

// Sizes of a call, and the offsets of the parts of a head.
template <class T>
struct Layout {
  int64_t heads, tokens, m, i, d, e;  // e = i + d
  bool causal;
  double eps;
  const T *q, *k, *v, *identity;
  int64_t identity_step;  // between sequences
  RowWidths widths;

  Layout(const Tensor& phi_q, const Tensor& phi_k, const Tensor& id, const Tensor& values,
         const Visibility& visible, double eps)
      : heads(phi_q.dim(1)),
        tokens(phi_q.dim(2)),
        m(phi_q.dim(3)),
        i(id.defined() ? id.dim(-1) : 0),
        d(values.dim(3)),
        e(i + d),
        causal(visible.causal),
        eps(eps),
        q(phi_q.data<T>()),
        k(phi_k.data<T>()),
        v(values.data<T>()),
        identity(i ? id.data<T>() : nullptr),
        identity_step(i && id.rank() == 3 ? tokens * i : 0),
        widths(visible, tokens) {}
};

// One head: its valid rows, and the scratch memory of a chunk.
template <class T>
struct Head {
  const Layout<T>& at;
  const T *q, *k, *v, *identity;
  int64_t rows;
  T *values, *inner, *state;     // [kChunk, e], [kChunk, kChunk], [m, e]
  std::vector<double> key_sums;  // [m], of the keys in `state`

  // Whole cache lines: the part after it starts at one.
  static int64_t memory(const Layout<T>& at) {
    return (kChunk * (at.e + kChunk) + at.m * at.e + 15) / 16 * 16;
  }

  Head(const Layout<T>& layout, int64_t n, T* memory)
      : at(layout),
        q(layout.q + n * layout.tokens * layout.m),
        k(layout.k + n * layout.tokens * layout.m),
        v(layout.v + n * layout.tokens * layout.d),
        identity(layout.identity + n / layout.heads * layout.identity_step),
        rows(layout.widths.valid(n / layout.heads)),
        values(memory),
        inner(values + kChunk * layout.e),
        state(inner + kChunk * kChunk) {
    reset();
  }

  void reset() {
    std::fill(state, state + at.m * at.e, T(0));
    key_sums.assign(size_t(at.m), 0.0);
  }

  // Gathers [identity ; v] of rows s .. s + n.
  void load(int64_t s, int64_t n) {
    for (int64_t r = 0; r < n; ++r) {
      T* row = values + r * at.e;
      if (at.i) std::copy_n(identity + (s + r) * at.i, at.i, row);
      std::copy_n(v + (s + r) * at.d, at.d, row + at.i);
    }
  }

  // Adds the loaded rows to state and key_sums.
  void absorb(int64_t s, int64_t n) {
    product(at.m, at.e, n, k + s * at.m, {at.m, true}, values, {at.e}, T(1), state, at.e);
    for (int64_t r = s; r < s + n; ++r) {
#pragma omp simd
      for (int64_t j = 0; j < at.m; ++j) key_sums[size_t(j)] += double(k[r * at.m + j]);
    }
  }

  // inner = phi_q phi_k^T within the chunk, 0 above the diagonal.
  void weights(int64_t s, int64_t n) {
    product(n, n, at.m, q + s * at.m, {at.m}, k + s * at.m, {at.m, true}, T(0), inner, kChunk);
    lower(n);
  }

  void lower(int64_t n) {
    for (int64_t r = 0; r < n; ++r)
      std::fill(inner + r * kChunk + r + 1, inner + r * kChunk + n, T(0));
  }

  // phi_q(t) . (key_sums + eps), plus row r of inner when causal.
  double denominator(int64_t t, int64_t r) const {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < at.m; ++j) {
      sum += double(q[t * at.m + j]) * (key_sums[size_t(j)] + at.eps);
    }
    if (!at.causal) return sum;
    for (int64_t j = 0; j <= r; ++j) sum += double(inner[r * kChunk + j]);
    return sum;
  }
};

template <class T, class F>
void each_chunk(const Head<T>& head, F f) {
  for (int64_t s = 0; s < head.rows; s += kChunk) f(s, std::min(kChunk, head.rows - s));
}

template <class T>
void forward_head(Head<T>& head, T* y, T* den) {
  const Layout<T>& at = head.at;
  if (!at.causal) {
    each_chunk(head, [&](int64_t s, int64_t n) {
      head.load(s, n);
      head.absorb(s, n);
    });
  }
  each_chunk(head, [&](int64_t s, int64_t n) {
    T* out = y + s * at.e;
    product(n, at.e, at.m, head.q + s * at.m, {at.m}, head.state, {at.e}, T(0), out, at.e);
    if (at.causal) {
      head.load(s, n);
      head.weights(s, n);
      product(n, at.e, n, head.inner, {kChunk}, head.values, {at.e}, T(1), out, at.e);
    }
    for (int64_t r = 0; r < n; ++r) {
      den[s + r] = T(head.denominator(s + r, r));
      const T share = 1 / den[s + r];
#pragma omp simd
      for (int64_t j = 0; j < at.e; ++j) out[r * at.e + j] *= share;
    }
    if (at.causal) head.absorb(s, n);
  });
  std::fill(y + head.rows * at.e, y + at.tokens * at.e, T(0));
  std::fill(den + head.rows, den + at.tokens, T(1));
}

// Gradients of one head; didentity [T, i] is this head's own part.
template <class T>
struct HeadGradients {
  T *dq, *dk, *dv, *didentity;
  const T *dy, *y, *den;
};

// numerators [n, e] = the gradient of the sums in the numerator, below [n] of the one in the
// denominator.
template <class T>
void split(const HeadGradients<T>& g, int64_t e, int64_t s, int64_t n, T* numerators, T* below) {
  for (int64_t r = 0; r < n; ++r) {
    const T *dy = g.dy + (s + r) * e, *y = g.y + (s + r) * e;
    const T share = 1 / g.den[s + r];
    double dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < e; ++j) {
      numerators[r * e + j] = dy[j] * share;
      dot += double(dy[j]) * double(y[j]);
    }
    below[r] = T(-dot * double(share));
  }
}

// dq in forward order, from the state of earlier keys.
template <class T>
void backward_queries(Head<T>& head, const HeadGradients<T>& g, T* numerators, T* below) {
  const Layout<T>& at = head.at;
  const int64_t m = at.m, e = at.e;
  each_chunk(head, [&](int64_t s, int64_t n) {
    split(g, e, s, n, numerators, below);
    T* dq = g.dq + s * m;
    product(n, m, e, numerators, {e}, head.state, {e, true}, T(0), dq, m);
    for (int64_t r = 0; r < n; ++r) {
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) {
        dq[r * m + j] += T(double(below[r]) * (head.key_sums[size_t(j)] + at.eps));
      }
    }
    if (!at.causal) return;
    head.load(s, n);
    product(n, n, e, numerators, {e}, head.values, {e, true}, T(0), head.inner, kChunk);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t j = 0; j <= r; ++j) head.inner[r * kChunk + j] += below[r];
    }
    head.lower(n);
    product(n, m, n, head.inner, {kChunk}, head.k + s * m, {m}, T(1), dq, m);
    head.absorb(s, n);
  });
}

// The state of the reverse pass: the sums over later queries for a key.
template <class T>
struct Later {
  T* state;                  // [m, e] sum of phi_q times numerators
  std::vector<double> sums;  // [m] sum of phi_q times below

  void absorb(const Head<T>& head, int64_t s, int64_t n, const T* numerators, const T* below) {
    const int64_t m = head.at.m, e = head.at.e;
    product(m, e, n, head.q + s * m, {m, true}, numerators, {e}, T(1), state, e);
    for (int64_t r = 0; r < n; ++r) {
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) {
        sums[size_t(j)] += double(below[r]) * double(head.q[(s + r) * m + j]);
      }
    }
  }
};

// dk and dv in reverse order.
template <class T>
void backward_keys(Head<T>& head, const HeadGradients<T>& g, T* numerators, T* below, T* dvalues) {
  const Layout<T>& at = head.at;
  const int64_t m = at.m, e = at.e, chunks = (head.rows + kChunk - 1) / kChunk;
  Later<T> later{head.state, std::vector<double>(size_t(m), 0.0)};
  std::fill(head.state, head.state + m * e, T(0));
  if (!at.causal) {
    each_chunk(head, [&](int64_t s, int64_t n) {
      split(g, e, s, n, numerators, below);
      later.absorb(head, s, n, numerators, below);
    });
  }
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const int64_t s = c * kChunk, n = std::min(kChunk, head.rows - s);
    T* dk = g.dk + s * m;
    head.load(s, n);
    product(n, m, e, head.values, {e}, later.state, {e, true}, T(0), dk, m);
    for (int64_t r = 0; r < n; ++r) {
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) dk[r * m + j] += T(later.sums[size_t(j)]);
    }
    product(n, e, m, head.k + s * m, {m}, later.state, {e}, T(0), dvalues, e);
    if (at.causal) {
      split(g, e, s, n, numerators, below);
      head.weights(s, n);
      product(n, e, n, head.inner, {kChunk, true}, numerators, {e}, T(1), dvalues, e);
      product(n, n, e, numerators, {e}, head.values, {e, true}, T(0), head.inner, kChunk);
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t j = 0; j <= r; ++j) head.inner[r * kChunk + j] += below[r];
      }
      head.lower(n);
      product(n, m, n, head.inner, {kChunk, true}, head.q + s * m, {m}, T(1), dk, m);
      later.absorb(head, s, n, numerators, below);
    }
    for (int64_t r = 0; r < n; ++r) {
      const T* row = dvalues + r * e;
      if (g.didentity) std::copy_n(row, at.i, g.didentity + (s + r) * at.i);
      std::copy_n(row + at.i, at.d, g.dv + (s + r) * at.d);
    }
  }
}

int64_t backward_memory(int64_t e) { return 2 * kChunk * e + kChunk; }

// numerators [backward_memory(e)] is scratch memory.
template <class T>
void backward_head(Head<T>& head, const HeadGradients<T>& g, T* numerators) {
  const Layout<T>& at = head.at;
  T* dvalues = numerators + kChunk * at.e;
  T* below = dvalues + kChunk * at.e;
  if (!at.causal) {
    each_chunk(head, [&](int64_t s, int64_t n) {
      head.load(s, n);
      head.absorb(s, n);
    });
  }
  backward_queries(head, g, numerators, below);
  backward_keys(head, g, numerators, below, dvalues);
  auto clear = [&](T* x, int64_t width) {
    if (x) std::fill(x + head.rows * width, x + at.tokens * width, T(0));
  };
  clear(g.dq, at.m);
  clear(g.dk, at.m);
  clear(g.dv, at.d);
  clear(g.didentity, at.i);
}

}  // namespace

void linear_attention(Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity, Tensor v,
                      Visibility visible, double eps) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const Layout<T> at(phi_q, phi_k, identity, v, visible, eps);
    T *py = y.data<T>(), *pden = den.data<T>();
    const int64_t all = phi_q.dim(0) * at.heads;
    const PieceMemory<T> memory(all, Head<T>::memory(at));
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      const auto lease = memory.lease();
      Head<T> head(at, n, lease.data());
      forward_head(head, py + n * at.tokens * at.e, pden + n * at.tokens);
    });
  });
}

void linear_attention_state(Tensor state, Tensor sums, Tensor phi_k, Tensor identity, Tensor v,
                            Visibility visible) {
  dispatch_float(v.dtype(), [&]<class T>() {
    const Layout<T> at(phi_k, phi_k, identity, v, visible, 0);
    const int64_t size = at.m * at.e, all = phi_k.dim(0) * at.heads;
    const PieceMemory<T> memory(all, Head<T>::memory(at));
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      const auto lease = memory.lease();
      Head<T> head(at, n, lease.data());
      each_chunk(head, [&](int64_t s, int64_t rows) {
        head.load(s, rows);
        head.absorb(s, rows);
      });
      std::copy_n(head.state, size, state.data<T>() + n * size);
      std::copy_n(head.key_sums.data(), at.m, sums.data<double>() + n * at.m);
    });
  });
}

void linear_attention_backward(Tensor dphi_q, Tensor dphi_k, Tensor didentity, Tensor dv, Tensor dy,
                               Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity,
                               Tensor v, Visibility visible, double eps) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const Layout<T> at(phi_q, phi_k, identity, v, visible, eps);
    const int64_t tokens = at.tokens, all = phi_q.dim(0) * at.heads;
    Tensor parts;  // of didentity, one per head: [B H, T, i]
    if (didentity.defined()) parts = Tensor::empty({all, tokens, at.i}, y.dtype());
    const int64_t forward = Head<T>::memory(at);
    const PieceMemory<T> memory(all, forward + backward_memory(at.e));
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      const auto lease = memory.lease();
      T* mine = lease.data();
      Head<T> head(at, n, mine);
      auto part = [&](const Tensor& x, int64_t width) { return x.data<T>() + n * tokens * width; };
      backward_head<T>(head,
                       {.dq = part(dphi_q, at.m),
                        .dk = part(dphi_k, at.m),
                        .dv = part(dv, at.d),
                        .didentity = parts.defined() ? part(parts, at.i) : nullptr,
                        .dy = part(dy, at.e),
                        .y = part(y, at.e),
                        .den = part(den, 1)},
                       mine + forward);
    });
    if (!parts.defined()) return;
    const T* from = parts.data<T>();
    T* to = didentity.data<T>();
    const int64_t size = tokens * at.i;
    parallel_for(size, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < all; ++n) {
#pragma omp simd
        for (int64_t j = begin; j < end; ++j) to[j] += from[n * size + j];
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
