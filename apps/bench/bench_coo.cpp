// The flat CSR mask compared with coordinates, at the paper's shape: the same kernel from sorted
// 32-bit coordinates, and the plain implementation of a library of sparse tensors, op by op from
// 64-bit ones.
#include <cmath>

#include "apps/bench/parts/block.h"
#include "apps/bench/parts/coo.h"
#include "autograd/ops.h"
#include "tensor/kernels/attention.h"
#include "tensor/parallel.h"

namespace brine::bench {
namespace {

// Row t and flat column h T + key of every entry, in the order of the rows.
struct Coo {
  Tensor rows, columns;  // i32 [entries]
  int64_t heads, length;
};

Coo coo_of(const FlatCsr& csr) {
  Coo coo{Tensor::empty({csr.entries()}, Dtype::i32), csr.columns, csr.heads, csr.length};
  const int64_t* pointers = csr.row_pointers.data<int64_t>();
  int32_t* rows = coo.rows.data<int32_t>();
  parallel_for(csr.length, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      std::fill(rows + pointers[t], rows + pointers[t + 1], int32_t(t));
  });
  return coo;
}

// The inputs of the kernel, computed from coordinates: the starts of rows and heads, found in one
// pass over them.
FlatCsr pointers_of(const Coo& coo) {
  const int64_t T = coo.length, H = coo.heads, n = coo.rows.numel();
  FlatCsr csr{Tensor::empty({1, T + 1}, Dtype::i64),
              Tensor::empty({1, T, H + 1}, Dtype::i32),
              coo.columns,
              1,
              H,
              T,
              T};
  const int32_t *rows = coo.rows.data<int32_t>(), *columns = coo.columns.data<int32_t>();
  auto* pointers = csr.row_pointers.data<int64_t>();
  auto* offsets = csr.head_offsets.data<int32_t>();
  parallel_for(T, 64, [&](int64_t begin, int64_t end) {
    int64_t at = std::lower_bound(rows, rows + n, int32_t(begin)) - rows;
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = at;
      pointers[t] = first;
      for (int64_t h = 0; h < H; ++h) {
        offsets[t * (H + 1) + h] = int32_t(at - first);
        while (at < n && rows[at] == t && columns[at] < (h + 1) * T) ++at;
      }
      offsets[t * (H + 1) + H] = int32_t(at - first);
    }
    if (end == T) pointers[T] = n;
  });
  return csr;
}

// Coordinates as in libraries of sparse tensors: i64 [3, entries], head, row and key.
Tensor long_coordinates(const FlatCsr& csr) {
  const int64_t n = csr.entries(), T = csr.length;
  Tensor out = Tensor::empty({3, n}, Dtype::i64);
  Coo coo = coo_of(csr);
  for (int64_t e = 0; e < n; ++e) {
    const int64_t column = coo.columns.data<int32_t>()[e];
    out.data<int64_t>()[e] = column / T;
    out.data<int64_t>()[n + e] = coo.rows.data<int32_t>()[e];
    out.data<int64_t>()[2 * n + e] = column % T;
  }
  return out;
}

// Softmax attention op by op: every op reads and writes whole tensors of entries.
class PlainCoo {
 public:
  PlainCoo(Tensor coordinates, const Shape& shape)
      : n_(coordinates.dim(1)),
        H_(shape[1]),
        T_(shape[2]),
        d(shape[3]),
        at_(coordinates.data<int64_t>()),
        held_(coordinates) {}

  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
    Tensor of_q = gather(q, 1), of_k = gather(k, 2);
    Tensor scores = Tensor::empty({n_});
    each([&](int64_t e) {
      const float *a = of_q.data<float>() + e * d, *b = of_k.data<float>() + e * d;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < d; ++c) sum += a[c] * b[c];
      scores.data<float>()[e] = sum / std::sqrt(float(d));
    });
    of_q = of_k = Tensor();
    // Sums by row in no particular order cannot be shared by threads: one thread, as scatter ops do
    // it.
    Tensor most = Tensor::full({H_ * T_}, -1e30), sums = Tensor::zeros({H_ * T_});
    for (int64_t e = 0; e < n_; ++e) {
      float& m = most.data<float>()[row(e)];
      m = std::max(m, scores.data<float>()[e]);
    }
    each([&](int64_t e) {
      float& s = scores.data<float>()[e];
      s = std::exp(s - most.data<float>()[row(e)]);
    });
    for (int64_t e = 0; e < n_; ++e) sums.data<float>()[row(e)] += scores.data<float>()[e];
    each([&](int64_t e) { scores.data<float>()[e] /= sums.data<float>()[row(e)]; });
    Tensor of_v = gather(v, 2);
    each([&](int64_t e) {
      float* x = of_v.data<float>() + e * d;
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) x[c] *= scores.data<float>()[e];
    });
    Tensor y = Tensor::zeros(q.shape());
    for (int64_t e = 0; e < n_; ++e) {
      float* to = y.data<float>() + row(e) * d;
      const float* from = of_v.data<float>() + e * d;
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) to[c] += from[c];
    }
    return y;
  }

 private:
  int64_t row(int64_t e) const { return at_[e] * T_ + at_[n_ + e]; }
  template <class F>
  void each(F f) const {
    parallel_for(n_, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) f(e);
    });
  }
  Tensor gather(const Tensor& x, int64_t axis) const {
    Tensor y = Tensor::empty({n_, d});
    each([&](int64_t e) {
      const float* from = x.data<float>() + (at_[e] * T_ + at_[axis * n_ + e]) * d;
      std::copy_n(from, d, y.data<float>() + e * d);
    });
    return y;
  }

  int64_t n_, H_, T_, d;
  const int64_t* at_;
  Tensor held_;
};

double largest_difference(const Tensor& a, const Tensor& b) {
  double most = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    most = std::max(most, std::fabs(double(a.data<float>()[i]) - double(b.data<float>()[i])));
  }
  return most;
}

}  // namespace

// Including the selection: a mask is used once.
void coo_rows(RowSink& rows, const CooCase& given) {
  const Tensor &q = given.q, &k = given.k, &v = given.v;
  const int64_t H = q.dim(1), T = q.dim(2), d = q.dim(3);
  const double scale = 1 / std::sqrt(double(d));
  const Tensor dy = noise(q.shape(), 4);
  auto made = [&] { return build_csr(given.selected, {}, given.kept); };
  const FlatCsr csr = made();
  const Coo coo = coo_of(csr);
  const int64_t n = csr.entries();
  Tensor p = Tensor::empty({n}), y = Tensor::like(q), again = Tensor::like(q);
  Tensor dq = Tensor::like(q), dk = Tensor::like(k), dv = Tensor::like(v);
  auto attend = [&](const FlatCsr& mask, const Tensor& to) {
    BRINE_CALL(q, sparse_attention, to, p, q, k, v, mask, scale);
  };
  auto both = [&](const FlatCsr& mask) {
    attend(mask, y);
    BRINE_CALL(q, sparse_attention_backward, dq, dk, dv, dy, q, k, v, p, mask, scale);
  };
  attend(csr, y);
  attend(pointers_of(coo), again);
  check(largest_difference(y, again) == 0, "bench coo: the two masks give other results");

  const double offsets = 8.0 * double(T + 1) + 4.0 * double(T * (H + 1));
  const double csr_bytes = 4.0 * double(n) + offsets + 4.0 * double(n);  // columns, p
  const double coo_bytes = 8.0 * double(n) + 4.0 * double(n);
  auto add = [&](const std::string& name, double ms, double ratio, double bytes) {
    rows.add({.name = name + given.note,
              .shape = join("T=", T, " H=", H, " d=", d, " k=", given.kept),
              .ms = ms,
              .rate = double(n) / ms * 1e-3,
              .unit = "M entries/s",
              .ratio = ratio,
              .peak = int64_t(bytes),
              .notes = {{"bytes_over_sorted_coo", bytes / coo_bytes}}});
  };
  auto [ours, fused] =
      median_times([&] { attend(made(), y); }, [&] { attend(pointers_of(coo_of(made())), y); });
  add("flat CSR, build + forward", ours, 0, csr_bytes);
  add("sorted COO, build + forward", fused, fused / ours, coo_bytes);
  auto [trained, fused_trained] =
      median_times([&] { both(made()); }, [&] { both(pointers_of(coo_of(made()))); });
  add("flat CSR, build + forward + backward", trained, 0, csr_bytes);
  add("sorted COO, build + forward + backward", fused_trained, fused_trained / trained, coo_bytes);
  const PlainCoo plain(long_coordinates(csr), q.shape());
  check(largest_difference(y, plain.attend(q, k, v)) < 1e-4,
        "bench coo: the plain implementation differs");
  const double slow = median_time([&] { plain.attend(q, k, v); });
  add("plain COO, forward", slow, slow / ours, double(n) * (24.0 + 4.0 + 2 * 4.0 * double(d)));
}

void bench_coo(RowSink& rows) {
  const int64_t T = sized(8192, 128);
  const Shape shape{1, kHeads, T, kHeadSize};
  const Tensor estimate = noise({1, kHeads, T, kColumns}, 7);
  coo_rows(rows, {.q = noise(shape, 1),
                  .k = noise(shape, 2),
                  .v = noise(shape, 3),
                  .selected = select_columns(estimate, {}, {.k = kKept}).selected,
                  .kept = kKept,
                  .note = ""});
}

}  // namespace brine::bench
