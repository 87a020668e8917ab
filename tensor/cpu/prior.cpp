// The prior of the scores: each column's share of a row's linear attention, from prefix sums of the
// key features.
//
// Shares are differences of prefix sums, so these are kept and multiplied in f64. They are rounded
// up to whole vectors and walked row by row: neighbouring rows share most of their prefixes, which
// stay in the cache nearest to the core.
#include <vector>

#include "tensor/csr.h"
#include "tensor/kernels_performer.h"
#include "tensor/math.h"
#include "tensor/parallel.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kLanes = 8;  // f64 in the widest vector

// What is common to all heads of a call.
template <class T>
struct Prior {
  int64_t heads, tokens, rows, m, padded, K, step;
  const T *gain, *q, *k;
  RowWidths widths;

  Prior(const Tensor& scores, const Tensor& gains, const Tensor& phi_q, const Tensor& phi_k,
        const Visibility& see, int64_t step)
      : heads(phi_q.dim(1)),
        tokens(phi_q.dim(2)),
        rows(scores.dim(2)),
        m(phi_q.dim(3)),
        padded((m + kLanes - 1) / kLanes * kLanes),
        K(scores.dim(3)),
        step(step),
        gain(gains.data<T>()),
        q(phi_q.data<T>()),
        k(phi_k.data<T>()),
        widths(see, tokens) {}
};

// The prefix sums of one head and the row that is looked at.
template <class T>
struct Row {
  const Prior<T>& at;
  int64_t n;      // sequence times heads plus head
  Tensor prefix;  // [length + 1, padded]: row j = sum of phi_k of the keys before j
  double* sums;
  int64_t w = 0;
  std::vector<int64_t> begin;        // [K + 1] first key of each column
  std::vector<double> query, below;  // [padded]; [K + 1] query . prefix at each border

  Row(const Prior<T>& prior, int64_t n)
      : at(prior),
        n(n),
        prefix(Tensor::empty({prior.widths.valid(n / prior.heads) + 1, prior.padded}, Dtype::f64)),
        sums(prefix.data<double>()),
        begin(size_t(prior.K + 1)),
        query(size_t(prior.padded), 0.0),
        below(size_t(prior.K + 1), 0.0) {
    std::fill(sums, sums + at.padded, 0.0);
    const T* k = at.k + n * at.tokens * at.m;
    for (int64_t j = 0; j + 1 < prefix.dim(0); ++j, k += at.m) {
      const double* last = sums + j * at.padded;
      double* next = sums + (j + 1) * at.padded;
#pragma omp simd
      for (int64_t i = 0; i < at.m; ++i) next[i] = last[i] + double(k[i]);
      for (int64_t i = at.m; i < at.padded; ++i) next[i] = 0;
    }
  }

  // Turns to row r; false when it is padding.
  bool turn(int64_t r) {
    const int64_t t = r * at.step;
    w = at.widths(n / at.heads, t);
    if (w == 0) return false;
    for (int64_t c = 0; c <= at.K; ++c) begin[size_t(c)] = math::column_begin(c, w, at.K);
    const T* q = at.q + (n * at.tokens + t) * at.m;
    for (int64_t i = 0; i < at.m; ++i) query[size_t(i)] = double(q[i]);
    for (int64_t c = 0; c <= at.K; c += 4) dots(c, std::min(c + 4, at.K + 1));
    return true;
  }

  // Four at a time, so that a query's vector is loaded once for all of them.
  void dots(int64_t c, int64_t end) {
    const double* q = query.data();
    if (end - c < 4) {
      for (; c < end; ++c) {
        const double* p = sums + begin[size_t(c)] * at.padded;
        double a = 0;
#pragma omp simd reduction(+ : a)
        for (int64_t i = 0; i < at.padded; ++i) a += q[i] * p[i];
        below[size_t(c)] = a;
      }
      return;
    }
    const int64_t* b = begin.data() + c;
    const double *p0 = sums + b[0] * at.padded, *p1 = sums + b[1] * at.padded;
    const double *p2 = sums + b[2] * at.padded, *p3 = sums + b[3] * at.padded;
    double a0 = 0, a1 = 0, a2 = 0, a3 = 0;
#pragma omp simd reduction(+ : a0, a1, a2, a3)
    for (int64_t i = 0; i < at.padded; ++i) {
      a0 += q[i] * p0[i];
      a1 += q[i] * p1[i];
      a2 += q[i] * p2[i];
      a3 += q[i] * p3[i];
    }
    double* out = below.data() + c;
    out[0] = a0;
    out[1] = a1;
    out[2] = a2;
    out[3] = a3;
  }

  int64_t keys(int64_t c) const { return begin[size_t(c) + 1] - begin[size_t(c)]; }
  // The row's whole mass, and that of a column that owns keys.
  double total() const { return below[size_t(at.K)]; }
  double part(int64_t c) const { return below[size_t(c) + 1] - below[size_t(c)]; }

  // log((w / n_c) mass_c) of every column, 0 where it owns no key.
  void logs(T* out) const {
    for (int64_t c = 0; c < at.K; ++c) {
      out[c] = keys(c) ? T(part(c) / total() * double(w) / double(keys(c))) : T(1);
    }
#pragma omp simd
    for (int64_t c = 0; c < at.K; ++c) out[c] = math::log(out[c]);
  }
};

// dq [m] = sum over borders c of slope[c] times the prefix there.
template <class T>
void query_gradient(const Row<T>& row, const std::vector<double>& slope, T* dq) {
  const int64_t padded = row.at.padded;
  for (int64_t i = 0; i < padded; i += kLanes) {
    double sum[kLanes] = {};
    for (int64_t c = 1; c <= row.at.K; ++c) {
      const double* p = row.sums + row.begin[size_t(c)] * padded + i;
#pragma omp simd
      for (int64_t j = 0; j < kLanes; ++j) sum[j] += slope[size_t(c)] * p[j];
    }
    for (int64_t j = 0; j < std::min(kLanes, row.at.m - i); ++j) dq[i + j] = T(sum[j]);
  }
}

// What a head's rows give to the gain, the queries and, by the prefixes, the keys.
template <class T>
double backward_head(Row<T>& row, const T* dy, T* dq, T* dk) {
  const Prior<T>& at = row.at;
  const int64_t padded = at.padded, length = row.prefix.dim(0) - 1;
  const double gain = double(at.gain[row.n % at.heads]);
  Tensor memory = Tensor::zeros({length + 1, padded}, Dtype::f64);
  double* dprefix = memory.data<double>();
  std::vector<double> slope(size_t(at.K + 1));
  std::vector<T> value(size_t(at.K));
  std::fill(dq, dq + at.tokens * at.m, T(0));
  double dgain = 0;
  for (int64_t r = 0; r < at.rows; ++r, dy += at.K) {
    if (!row.turn(r)) continue;
    row.logs(value.data());
    double sum = 0, before = 0;
    for (int64_t c = 0; c < at.K; ++c) {
      const bool owns = row.keys(c) > 0;
      const double g = owns ? double(dy[c]) : 0.0;
      const double share = owns ? gain * g / row.part(c) : 0.0;
      dgain += g * double(value[size_t(c)]);
      sum += g;
      slope[size_t(c)] = before - share;
      before = share;
    }
    slope[size_t(at.K)] = before - gain * sum / row.total();
    query_gradient(row, slope, dq + r * at.step * at.m);
    for (int64_t c = 1; c <= at.K; ++c) {
      double* p = dprefix + row.begin[size_t(c)] * padded;
      const double s = slope[size_t(c)];
      const double* q = row.query.data();
#pragma omp simd
      for (int64_t i = 0; i < padded; ++i) p[i] += s * q[i];
    }
  }
  // Key j is in every prefix behind it.
  double* later = dprefix + length * padded;
  for (int64_t j = length - 1; j >= 0; --j, later -= padded) {
    for (int64_t i = 0; i < at.m; ++i) dk[j * at.m + i] = T(later[i]);
    if (j == 0) break;
    double* here = later - padded;
#pragma omp simd
    for (int64_t i = 0; i < padded; ++i) here[i] += later[i];
  }
  std::fill(dk + length * at.m, dk + at.tokens * at.m, T(0));
  return dgain;
}

}  // namespace

void performer_prior(Tensor y, Tensor scores, Tensor gain, Tensor phi_q, Tensor phi_k,
                     Visibility see, int64_t step) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const Prior<T> at(scores, gain, phi_q, phi_k, see, step);
    const T* from = scores.data<T>();
    T* to = y.data<T>();
    parallel_for(phi_q.dim(0) * at.heads, 1, [&](int64_t n, int64_t) {
      Row<T> row(at, n);
      std::vector<T> value(size_t(at.K));
      const T g = at.gain[n % at.heads];
      for (int64_t r = 0; r < at.rows; ++r) {
        const int64_t first = (n * at.rows + r) * at.K;
        if (!row.turn(r)) {
          std::copy_n(from + first, at.K, to + first);
          continue;
        }
        row.logs(value.data());
#pragma omp simd
        for (int64_t c = 0; c < at.K; ++c) to[first + c] = from[first + c] + g * value[size_t(c)];
      }
    });
  });
}

void performer_prior_backward(Tensor dgain, Tensor dphi_q, Tensor dphi_k, Tensor dy, Tensor gain,
                              Tensor phi_q, Tensor phi_k, Visibility see, int64_t step) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const Prior<T> at(dy, gain, phi_q, phi_k, see, step);
    const int64_t all = phi_q.dim(0) * at.heads, size = at.tokens * at.m;
    std::vector<double> parts(static_cast<size_t>(all));
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      Row<T> row(at, n);
      parts[size_t(n)] = backward_head(row, dy.data<T>() + n * at.rows * at.K,
                                       dphi_q.data<T>() + n * size, dphi_k.data<T>() + n * size);
    });
    for (int64_t n = 0; n < all; ++n) dgain.data<T>()[n % at.heads] += T(parts[size_t(n)]);
  });
}

}  // namespace brine::BRINE_CPU
