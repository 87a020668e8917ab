// Linear attention in chunks: within a chunk as matrix products, between chunks with a running
// state [m, e] of key features times values. O(T m e) time, O(m e) state; one task for the heads
// that share keys and values, which also share the state.
#include <vector>

#include "tensor/cpu/core/gemm_f64.h"
#include "tensor/cpu/core/onednn.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kChunk = kLinearAttentionChunk;

// c [M, N] = op(a) op(b) + beta c
struct Side {
  int64_t ld = 0;
  bool transposed = false;
};

template <class T>
void product(int64_t M, int64_t N, int64_t K, const T* a, Side sa, const T* b, Side sb, T beta,
             T* c, int64_t ldc) {
  onednn::gemm({.M = M,
                .N = N,
                .K = K,
                .ta = sa.transposed,
                .tb = sb.transposed,
                .lda = sa.ld,
                .ldb = sb.ld,
                .ldc = ldc,
                .beta = float(beta)},
               a, b, c);
}

// Sizes of a call, and the inputs.
template <class T>
struct Layout {
  int64_t groups, heads;       // of a sequence: groups of heads, heads of a group
  int64_t tokens, m, i, d, e;  // e = i + d
  bool causal;
  double eps;
  const T *q, *k, *v, *identity;
  int64_t identity_step;  // between sequences
  RowWidths widths;

  Layout(const Tensor& phi_q, const Tensor& phi_k, const Tensor& id, const Tensor& values,
         const Visibility& visible, double eps)
      : groups(phi_k.dim(1)),
        heads(phi_q.dim(1) / groups),
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

// One group of heads: its valid rows, the queries of one of its heads, and the scratch memory of a
// chunk.
template <class T>
struct Group {
  const Layout<T>& at;
  const T *all_q, *q, *k, *v, *identity;
  int64_t rows;
  T *values, *inner, *state;     // [kChunk, e], [kChunk, kChunk], [m, e]
  std::vector<double> key_sums;  // [m], of the keys in `state`

  // Whole cache lines: the part after it starts at one.
  static int64_t memory(const Layout<T>& at) {
    return (kChunk * (at.e + kChunk) + at.m * at.e + 15) / 16 * 16;
  }

  Group(const Layout<T>& layout, int64_t n, T* memory)
      : at(layout),
        all_q(layout.q + n * layout.heads * layout.tokens * layout.m),
        q(all_q),
        k(layout.k + n * layout.tokens * layout.m),
        v(layout.v + n * layout.tokens * layout.d),
        identity(layout.identity + n / layout.groups * layout.identity_step),
        rows(layout.widths.valid(n / layout.groups)),
        values(memory),
        inner(values + kChunk * layout.e),
        state(inner + kChunk * kChunk) {
    reset();
  }

  void reset() {
    std::fill(state, state + at.m * at.e, T(0));
    key_sums.assign(size_t(at.m), 0.0);
  }

  // f(h) for every head of the group, with its queries as q.
  template <class F>
  void each_head(F f) {
    for (int64_t h = 0; h < at.heads; ++h) {
      q = all_q + h * at.tokens * at.m;
      f(h);
    }
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
  void weights(int64_t s, int64_t n) const {
    product(n, n, at.m, q + s * at.m, {at.m}, k + s * at.m, {at.m, true}, T(0), inner, kChunk);
    lower(n);
  }

  void lower(int64_t n) const {
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
void each_chunk(const Group<T>& group, F f) {
  for (int64_t s = 0; s < group.rows; s += kChunk) f(s, std::min(kChunk, group.rows - s));
}

template <class T>
void absorb_all(Group<T>& group) {
  each_chunk(group, [&](int64_t s, int64_t n) {
    group.load(s, n);
    group.absorb(s, n);
  });
}

// Rows s .. s + n of the current head; the values are loaded.
template <class T>
void forward_chunk(const Group<T>& group, int64_t s, int64_t n, T* y, T* den) {
  const Layout<T>& at = group.at;
  T* out = y + s * at.e;
  product(n, at.e, at.m, group.q + s * at.m, {at.m}, group.state, {at.e}, T(0), out, at.e);
  if (at.causal) {
    group.weights(s, n);
    product(n, at.e, n, group.inner, {kChunk}, group.values, {at.e}, T(1), out, at.e);
  }
  for (int64_t r = 0; r < n; ++r) {
    den[s + r] = T(group.denominator(s + r, r));
    const T share = 1 / den[s + r];
#pragma omp simd
    for (int64_t j = 0; j < at.e; ++j) out[r * at.e + j] *= share;
  }
}

// y [heads, T, e], den [heads, T]
template <class T>
void forward_group(Group<T>& group, T* y, T* den) {
  const Layout<T>& at = group.at;
  if (!at.causal) absorb_all(group);
  each_chunk(group, [&](int64_t s, int64_t n) {
    if (at.causal) group.load(s, n);
    group.each_head([&](int64_t h) {
      forward_chunk(group, s, n, y + h * at.tokens * at.e, den + h * at.tokens);
    });
    if (at.causal) group.absorb(s, n);
  });
  for (int64_t h = 0; h < at.heads; ++h) {
    std::fill(y + (h * at.tokens + group.rows) * at.e, y + (h + 1) * at.tokens * at.e, T(0));
    std::fill(den + h * at.tokens + group.rows, den + (h + 1) * at.tokens, T(1));
  }
}

// Gradients of one group; didentity [T, i] is its part. dq, dy, y and den are of all its heads.
template <class T>
struct GroupGradients {
  T *dq, *dk, *dv, *didentity;
  const T *dy, *y, *den;
};

// Scratch memory of the backward pass: numerators [kChunk, e] = the gradient of the sums in the
// numerator, below [kChunk] of the one in the denominator, dvalues [kChunk, e].
template <class T>
struct Split {
  T *numerators, *below, *dvalues;

  // Rows s .. s + n of head h.
  void operator()(const GroupGradients<T>& g, const Layout<T>& at, int64_t h, int64_t s,
                  int64_t n) const {
    const int64_t e = at.e;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t row = h * at.tokens + s + r;
      const T *dy = g.dy + row * e, *y = g.y + row * e;
      const T share = 1 / g.den[row];
      double dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t j = 0; j < e; ++j) {
        numerators[r * e + j] = dy[j] * share;
        dot += double(dy[j]) * double(y[j]);
      }
      below[r] = T(-dot * double(share));
    }
  }
};

// inner = the gradients of the weights within the chunk, 0 above the diagonal.
template <class T>
void inner_gradients(Group<T>& group, int64_t n, const Split<T>& split) {
  const int64_t e = group.at.e;
  product(n, n, e, split.numerators, {e}, group.values, {e, true}, T(0), group.inner, kChunk);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t j = 0; j <= r; ++j) group.inner[r * kChunk + j] += split.below[r];
  }
  group.lower(n);
}

// dq [n, m] of the current head for rows s .. s + n, from the state of earlier keys.
template <class T>
void chunk_queries(Group<T>& group, int64_t s, int64_t n, const Split<T>& split, T* dq) {
  const Layout<T>& at = group.at;
  const int64_t m = at.m;
  product(n, m, at.e, split.numerators, {at.e}, group.state, {at.e, true}, T(0), dq, m);
  for (int64_t r = 0; r < n; ++r) {
#pragma omp simd
    for (int64_t j = 0; j < m; ++j) {
      dq[r * m + j] += T(double(split.below[r]) * (group.key_sums[size_t(j)] + at.eps));
    }
  }
  if (!at.causal) return;
  inner_gradients(group, n, split);
  product(n, m, n, group.inner, {kChunk}, group.k + s * m, {m}, T(1), dq, m);
}

// dq in forward order.
template <class T>
void backward_queries(Group<T>& group, const GroupGradients<T>& g, const Split<T>& split) {
  const Layout<T>& at = group.at;
  each_chunk(group, [&](int64_t s, int64_t n) {
    if (at.causal) group.load(s, n);
    group.each_head([&](int64_t h) {
      split(g, at, h, s, n);
      chunk_queries(group, s, n, split, g.dq + (h * at.tokens + s) * at.m);
    });
    if (at.causal) group.absorb(s, n);
  });
}

// The state of the reverse pass: the sums over later queries of all heads for a key.
template <class T>
struct Later {
  T* state;                  // [m, e] sum of phi_q times numerators
  std::vector<double> sums;  // [m] sum of phi_q times below

  void absorb(const Group<T>& group, int64_t s, int64_t n, const Split<T>& split) {
    const int64_t m = group.at.m, e = group.at.e;
    product(m, e, n, group.q + s * m, {m, true}, split.numerators, {e}, T(1), state, e);
    for (int64_t r = 0; r < n; ++r) {
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) {
        sums[size_t(j)] += double(split.below[r]) * double(group.q[(s + r) * m + j]);
      }
    }
  }
};

// Adds what the current head's queries of the same chunk give: to dk [n, m] and to the gradients of
// the values.
template <class T>
void chunk_keys(Group<T>& group, int64_t s, int64_t n, const Split<T>& split, T* dk) {
  const int64_t m = group.at.m, e = group.at.e;
  group.weights(s, n);
  product(n, e, n, group.inner, {kChunk, true}, split.numerators, {e}, T(1), split.dvalues, e);
  inner_gradients(group, n, split);
  product(n, m, n, group.inner, {kChunk, true}, group.q + s * m, {m}, T(1), dk, m);
}

// dk and dv in reverse order.
template <class T>
void backward_keys(Group<T>& group, const GroupGradients<T>& g, const Split<T>& split) {
  const Layout<T>& at = group.at;
  const int64_t m = at.m, e = at.e, chunks = (group.rows + kChunk - 1) / kChunk;
  Later<T> later{group.state, std::vector<double>(size_t(m), 0.0)};
  std::fill(group.state, group.state + m * e, T(0));
  auto absorb = [&](int64_t h, int64_t s, int64_t n) {
    split(g, at, h, s, n);
    later.absorb(group, s, n, split);
  };
  if (!at.causal) {
    each_chunk(group,
               [&](int64_t s, int64_t n) { group.each_head([&](int64_t h) { absorb(h, s, n); }); });
  }
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const int64_t s = c * kChunk, n = std::min(kChunk, group.rows - s);
    T* dk = g.dk + s * m;
    group.load(s, n);
    product(n, m, e, group.values, {e}, later.state, {e, true}, T(0), dk, m);
    for (int64_t r = 0; r < n; ++r) {
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) dk[r * m + j] += T(later.sums[size_t(j)]);
    }
    product(n, e, m, group.k + s * m, {m}, later.state, {e}, T(0), split.dvalues, e);
    if (at.causal) {
      group.each_head([&](int64_t h) {
        split(g, at, h, s, n);
        chunk_keys(group, s, n, split, dk);
        later.absorb(group, s, n, split);
      });
    }
    for (int64_t r = 0; r < n; ++r) {
      const T* row = split.dvalues + r * e;
      if (g.didentity) std::copy_n(row, at.i, g.didentity + (s + r) * at.i);
      std::copy_n(row + at.i, at.d, g.dv + (s + r) * at.d);
    }
  }
}

int64_t backward_memory(int64_t e) { return 2 * kChunk * e + kChunk; }

// `memory` [backward_memory(e)] is scratch memory.
template <class T>
void backward_group(Group<T>& group, const GroupGradients<T>& g, T* memory) {
  const Layout<T>& at = group.at;
  const Split<T> split{memory, memory + 2 * kChunk * at.e, memory + kChunk * at.e};
  if (!at.causal) absorb_all(group);
  backward_queries(group, g, split);
  backward_keys(group, g, split);
  auto clear = [&](T* x, int64_t width) {
    if (x) std::fill(x + group.rows * width, x + at.tokens * width, T(0));
  };
  for (int64_t h = 0; h < at.heads; ++h) clear(g.dq + h * at.tokens * at.m, at.m);
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
    const int64_t all = phi_k.dim(0) * at.groups, rows = at.heads * at.tokens;
    const PieceMemory<T> memory(all, Group<T>::memory(at));
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      const auto lease = memory.lease();
      Group<T> group(at, n, lease.data());
      forward_group(group, py + n * rows * at.e, pden + n * rows);
    });
  });
}

void linear_attention_state(Tensor state, Tensor sums, Tensor phi_k, Tensor identity, Tensor v,
                            Visibility visible) {
  dispatch_float(v.dtype(), [&]<class T>() {
    const Layout<T> at(phi_k, phi_k, identity, v, visible, 0);
    const int64_t size = at.m * at.e, all = phi_k.dim(0) * at.groups;
    const PieceMemory<T> memory(all, Group<T>::memory(at));
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      const auto lease = memory.lease();
      Group<T> group(at, n, lease.data());
      absorb_all(group);
      std::copy_n(group.state, size, state.data<T>() + n * size);
      std::copy_n(group.key_sums.data(), at.m, sums.data<double>() + n * at.m);
    });
  });
}

void linear_attention_backward(Tensor dphi_q, Tensor dphi_k, Tensor didentity, Tensor dv, Tensor dy,
                               Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity,
                               Tensor v, Visibility visible, double eps) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const Layout<T> at(phi_q, phi_k, identity, v, visible, eps);
    const int64_t tokens = at.tokens, all = phi_k.dim(0) * at.groups;
    Tensor parts;  // of didentity, one per group: [B G, T, i]
    if (didentity.defined()) parts = Tensor::empty({all, tokens, at.i}, y.dtype());
    const int64_t forward = Group<T>::memory(at);
    const PieceMemory<T> memory(all, forward + backward_memory(at.e));
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      const auto lease = memory.lease();
      T* scratch = lease.data();
      Group<T> group(at, n, scratch);
      auto part = [&](const Tensor& x, int64_t width) { return x.data<T>() + n * tokens * width; };
      backward_group<T>(group,
                        {.dq = part(dphi_q, at.heads * at.m),
                         .dk = part(dphi_k, at.m),
                         .dv = part(dv, at.d),
                         .didentity = parts.defined() ? part(parts, at.i) : nullptr,
                         .dy = part(dy, at.heads * at.e),
                         .y = part(y, at.heads * at.e),
                         .den = part(den, at.heads)},
                        scratch + forward);
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
