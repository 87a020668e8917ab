// The prior of the scores: each column's share of a row's linear attention, from prefix sums of the
// key features.
//
// Shares are differences of prefix sums, so these are stored and multiplied in f64. Rows are
// processed in tiles, and all rows of a tile visit a group of borders together: neighbouring rows
// share most of their prefixes, which thus stay in L1.
#include <cstring>
#include <vector>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/csr.h"
#include "tensor/kernels/estimator.h"
#include "tensor/math.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kLanes = 8;  // f64 in the widest vector: prefixes are padded to whole vectors
constexpr int64_t kRows = 8;   // of a tile
constexpr int64_t kGroup = 4;  // borders at a time

using Vector = PriorVector;
constexpr int64_t kWide = kPriorWide;

Vector load(const double* p) { return load_prior(p); }

void store(double* p, Vector v) { std::memcpy(p, &v, sizeof(v)); }

// to += s[0] p0 + .. + s[3] p3; n is a multiple of kLanes.
void add4(const double* s, const double* p0, const double* p1, const double* p2, const double* p3,
          int64_t n, double* to) {
  const double s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
  for (int64_t i = 0; i < n; i += kWide) {
    Vector a = s0 * load(p0 + i) + s1 * load(p1 + i), b = s2 * load(p2 + i) + s3 * load(p3 + i);
    store(to + i, load(to + i) + (a + b));
  }
}

// to += s0 p0 + s1 p1
void add2(double s0, const double* p0, double s1, const double* p1, int64_t n, double* to) {
  for (int64_t i = 0; i < n; i += kWide) {
    store(to + i, load(to + i) + (s0 * load(p0 + i) + s1 * load(p1 + i)));
  }
}

void add1(double s0, const double* p0, int64_t n, double* to) {
  for (int64_t i = 0; i < n; i += kWide) store(to + i, load(to + i) + s0 * load(p0 + i));
}

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// The data that all heads of a call share.
template <class T>
struct Prior {
  int64_t heads, tokens, rows, m, padded, K, step;
  const T *gain, *q, *k;
  RowWidths widths;

  Prior(const Tensor& scores, const Tensor& gains, const Tensor& phi_q, const Tensor& phi_k,
        const Visibility& visible, int64_t step)
      : heads(phi_q.dim(1)),
        tokens(phi_q.dim(2)),
        rows(scores.dim(2)),
        m(phi_q.dim(3)),
        padded(round_up(m, kLanes)),
        K(scores.dim(3)),
        step(step),
        gain(gains.data<T>()),
        q(phi_q.data<T>()),
        k(phi_k.data<T>()),
        widths(visible, tokens) {}
};

// Row j of `sums` becomes the sum of phi_k over the keys before j: [length + 1, padded].
template <class T>
void prefix_sums(double* sums, const Prior<T>& at, int64_t n) {
  const int64_t length = at.widths.valid(n / at.heads);
  std::fill(sums, sums + at.padded, 0.0);
  const T* k = at.k + n * at.tokens * at.m;
  for (int64_t j = 0; j < length; ++j, k += at.m, sums += at.padded) {
    double* next = sums + at.padded;
#pragma omp simd
    for (int64_t i = 0; i < at.m; ++i) next[i] = sums[i] + double(k[i]);
    for (int64_t i = at.m; i < at.padded; ++i) next[i] = 0;
  }
}

// A few neighbouring rows of one head. Border c is before column c: 0 <= c <= K.
template <class T>
struct Tile {
  const Prior<T>& at;
  int64_t n;           // sequence times heads plus head
  const double* sums;  // prefix_sums()
  int64_t borders;     // stored per row: K + 1, and padding to a whole group after border 0
  int64_t count = 0;
  int64_t width[kRows] = {};
  std::vector<int32_t> begin;        // [kRows, borders] first key after a border
  std::vector<double> query, below;  // [kRows, padded]; [kRows, borders] query . prefix there

  Tile(const Prior<T>& prior, int64_t n, double* memory)
      : at(prior),
        n(n),
        sums(memory),
        borders(1 + round_up(prior.K, kGroup)),
        begin(size_t(kRows * borders), 0),
        query(size_t(kRows * prior.padded), 0.0),
        below(size_t(kRows * borders), 0.0) {
    prefix_sums(memory, prior, n);
  }

  // Loads the rows from `first` on.
  void turn(int64_t first) {
    count = std::min(kRows, at.rows - first);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t t = (first + r) * at.step;
      width[r] = at.widths(n / at.heads, t);
      place(width[r], begin.data() + r * borders);
      const T* q = at.q + (n * at.tokens + t) * at.m;
      for (int64_t i = 0; i < at.m; ++i) query[size_t(r * at.padded + i)] = double(q[i]);
    }
    for (int64_t c = 1; c <= at.K; c += kGroup) {
      for (int64_t r = 0; r < count; ++r) dots(r, c);
    }
  }

  // math::column_begin of every border. (2cw + K + 1/2) / 2K is never within 1/4K of a whole
  // number, so a product with the inverse, which is far more exact than that, rounds down to the
  // same value.
  void place(int64_t w, int32_t* to) const {
    const double whole = 2 * double(w), inverse = 0.5 / double(at.K);
    const int32_t last = int32_t(at.K);
#pragma omp simd
    for (int32_t c = 0; c < int32_t(borders); ++c) {
      to[c] = int32_t((double(c < last ? c : last) * whole + double(last) + 0.5) * inverse);
    }
  }

  const double* prefix_at(int64_t r, int64_t c) const {
    return sums + int64_t(begin[size_t(r * borders + c)]) * at.padded;
  }

  void dots(int64_t r, int64_t c) {
    dot4(query.data() + r * at.padded, prefix_at(r, c), prefix_at(r, c + 1), prefix_at(r, c + 2),
         prefix_at(r, c + 3), at.padded, below.data() + r * borders + c);
  }

  double total(int64_t r) const { return below[size_t(r * borders + at.K)]; }

  // As in log_shares().
  void logs(int64_t r, T* out) const {
    log_shares(begin.data() + r * borders, below.data() + r * borders, width[r], at.K, out);
  }

  // The derivative of the sum over columns of dy log(share) with respect to the value at each
  // border, times the gain: slope [borders]. Returns the part of the gain's gradient.
  double slopes(int64_t r, const T* dy, const T* value, double gain, double* slope) const {
    const int32_t* b = begin.data() + r * borders;
    const double* u = below.data() + r * borders;
    double sum = 0, dgain = 0, before = 0;
    for (int64_t c = 0; c < at.K; ++c) {
      const bool owns = b[c + 1] > b[c];
      const double g = owns ? double(dy[c]) : 0.0;
      const double share = owns ? gain * g / (u[c + 1] - u[c]) : 0.0;
      dgain += g * double(value[c]);
      sum += g;
      slope[c] = before - share;
      before = share;
    }
    slope[at.K] = before - gain * sum / total(r);
    for (int64_t c = at.K + 1; c < borders; ++c) slope[c] = 0;
    return dgain;
  }
};

// dq [kRows, padded] += sum over borders of slope times the prefix there.
template <class T>
void add_prefixes(const Tile<T>& tile, const double* slope, double* dq) {
  const int64_t padded = tile.at.padded;
  for (int64_t c = 1; c <= tile.at.K; c += kGroup) {
    for (int64_t r = 0; r < tile.count; ++r) {
      add4(slope + r * tile.borders + c, tile.prefix_at(r, c), tile.prefix_at(r, c + 1),
           tile.prefix_at(r, c + 2), tile.prefix_at(r, c + 3), padded, dq + r * padded);
    }
  }
}

// dprefix at each border += slope times query. Rows with a border at the same key are processed
// together.
template <class T>
void add_queries(const Tile<T>& tile, const double* slope, double* dprefix) {
  const int64_t padded = tile.at.padded, step = tile.borders;
  for (int64_t c = 1; c <= tile.at.K; ++c) {
    const int32_t* b = tile.begin.data() + c;
    for (int64_t r = 0; r < tile.count;) {
      double* to = dprefix + int64_t(b[r * step]) * padded;
      const double *q = tile.query.data() + r * padded, *s = slope + r * step + c;
      if (r + 1 < tile.count && b[(r + 1) * step] == b[r * step]) {
        add2(s[0], q, s[step], q + padded, padded, to);
        r += 2;
      } else {
        add1(s[0], q, padded, to);
        ++r;
      }
    }
  }
}

// The gradients of a head's rows for the queries and, through the prefixes, for the keys; returns
// the gain's. dprefix [length + 1, padded] is scratch memory.
template <class T>
double backward_head(Tile<T>& tile, const T* dy, T* dq, T* dk, double* dprefix) {
  const Prior<T>& at = tile.at;
  const int64_t padded = at.padded, length = at.widths.valid(tile.n / at.heads);
  const double gain = double(at.gain[tile.n % at.heads]);
  std::fill(dprefix, dprefix + (length + 1) * padded, 0.0);
  std::vector<double> slope(size_t(kRows * tile.borders)), dquery(size_t(kRows * padded));
  std::vector<T> value(static_cast<size_t>(at.K));
  std::fill(dq, dq + at.tokens * at.m, T(0));
  double dgain = 0;
  for (int64_t first = 0; first < at.rows; first += kRows) {
    tile.turn(first);
    std::fill(slope.begin(), slope.end(), 0.0);
    std::fill(dquery.begin(), dquery.end(), 0.0);
    for (int64_t r = 0; r < tile.count; ++r) {
      if (tile.width[r] == 0) continue;
      tile.logs(r, value.data());
      dgain += tile.slopes(r, dy + (first + r) * at.K, value.data(), gain,
                           slope.data() + r * tile.borders);
    }
    add_prefixes(tile, slope.data(), dquery.data());
    add_queries(tile, slope.data(), dprefix);
    for (int64_t r = 0; r < tile.count; ++r) {
      T* to = dq + (first + r) * at.step * at.m;
      for (int64_t i = 0; i < at.m; ++i) to[i] = T(dquery[size_t(r * padded + i)]);
    }
  }
  // Key j is in every prefix after it.
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

template <class T>
void forward_head(Tile<T>& tile, const T* scores, T* y) {
  const Prior<T>& at = tile.at;
  std::vector<T> value(static_cast<size_t>(at.K));
  const T gain = at.gain[tile.n % at.heads];
  for (int64_t first = 0; first < at.rows; first += kRows) {
    tile.turn(first);
    for (int64_t r = 0; r < tile.count; ++r, scores += at.K, y += at.K) {
      if (tile.width[r] == 0) {
        std::copy_n(scores, at.K, y);
        continue;
      }
      tile.logs(r, value.data());
#pragma omp simd
      for (int64_t c = 0; c < at.K; ++c) y[c] = scores[c] + gain * value[size_t(c)];
    }
  }
}

}  // namespace

void performer_prior(Tensor y, Tensor scores, Tensor gain, Tensor phi_q, Tensor phi_k,
                     Visibility visible, int64_t step) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const Prior<T> at(scores, gain, phi_q, phi_k, visible, step);
    const int64_t size = at.rows * at.K, all = phi_q.dim(0) * at.heads;
    const PieceMemory<double> memory(all, (at.tokens + 1) * at.padded);
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      const auto lease = memory.lease();
      Tile<T> tile(at, n, lease.data());
      forward_head(tile, scores.data<T>() + n * size, y.data<T>() + n * size);
    });
  });
}

void performer_prior_backward(Tensor dgain, Tensor dphi_q, Tensor dphi_k, Tensor dy, Tensor gain,
                              Tensor phi_q, Tensor phi_k, Visibility visible, int64_t step) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const Prior<T> at(dy, gain, phi_q, phi_k, visible, step);
    const int64_t all = phi_q.dim(0) * at.heads, size = at.tokens * at.m;
    std::vector<double> parts(static_cast<size_t>(all));
    const int64_t prefix = (at.tokens + 1) * at.padded;
    const PieceMemory<double> memory(all, 2 * prefix);
    parallel_for(all, 1, [&](int64_t n, int64_t) {
      const auto lease = memory.lease();
      double* mine = lease.data();
      Tile<T> tile(at, n, mine);
      parts[size_t(n)] =
          backward_head(tile, dy.data<T>() + n * at.rows * at.K, dphi_q.data<T>() + n * size,
                        dphi_k.data<T>() + n * size, mine + prefix);
    });
    for (int64_t n = 0; n < all; ++n) dgain.data<T>()[n % at.heads] += T(parts[size_t(n)]);
  });
}

}  // namespace brine::BRINE_CPU
