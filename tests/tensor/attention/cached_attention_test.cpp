// Attention to cached keys against its definition, and the rows that a cache takes.
#include <cmath>

#include "tensor/kernels/attention.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

// Every head of H against the keys of its group of G.
void check_cached(int64_t H, int64_t G) {
  const int64_t B = 3, S = 21;
  for (int64_t d : {1, 5, 16, 64, 80}) {
    const Tensor q = normal({B, H, 1, d}, 1, Dtype::f64), k = normal({B, G, S, d}, 2, Dtype::f64),
                 v = normal({B, G, S, d}, 3, Dtype::f64);
    const std::vector<int64_t> first = {0, 7, 4}, last = {21, 8, 4};
    const double scale = 0.3;
    std::vector<double> wanted(size_t(B * H * d), 0.0);
    for (int64_t n = 0; n < B * H; ++n) {
      const int64_t group = n / H * G + n % H * G / H;
      double all = 0;
      for (int pass = 0; pass < 2; ++pass) {
        for (int64_t j = first[size_t(n / H)]; j < last[size_t(n / H)]; ++j) {
          double dot = 0;
          for (int64_t c = 0; c < d; ++c) {
            dot += q.data<double>()[n * d + c] * k.data<double>()[(group * S + j) * d + c];
          }
          const double p = std::exp(scale * dot);
          if (pass == 0) all += p;
          for (int64_t c = 0; pass == 1 && c < d; ++c) {
            wanted[size_t(n * d + c)] += p / all * v.data<double>()[(group * S + j) * d + c];
          }
        }
      }
    }
    for (Dtype type : {Dtype::f32, Dtype::f64}) {
      Tensor y = Tensor::empty({B, H, 1, d}, type);
      BRINE_CALL(y, cached_attention, y, q.to(type), k.to(type), v.to(type),
                 Tensor::from(first, {B}), Tensor::from(last, {B}), scale);
      CHECK(close_to_scale(y.to(Dtype::f64), Tensor::from(wanted, {B, H, 1, d}),
                           type == Dtype::f64 ? 1e-13 : 1e-5));
    }
  }
}

}  // namespace

TEST_CASE("cached_attention: a span of keys of each sequence; none gives 0") { check_cached(2, 2); }

TEST_CASE("cached_attention: heads of a group read its keys") {
  check_cached(6, 2);
  check_cached(4, 1);
}

TEST_CASE("cached_attention of keys and values in 16 bits is that of their values in f32") {
  const int64_t B = 2, S = 21;
  const Tensor first = Tensor::from(std::vector<int64_t>{0, 3}, {B}),
               last = Tensor::from(std::vector<int64_t>{21, 14}, {B});
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    for (int64_t d : {5, 64, 80}) {
      const Tensor q = normal({B, 4, 1, d}, 1), k = normal({B, 2, S, d}, 2).to(type),
                   v = normal({B, 2, S, d}, 3).to(type);
      Tensor y = Tensor::like(q), wanted = Tensor::like(q);
      BRINE_CALL(y, cached_attention, y, q, k, v, first, last, 0.3);
      BRINE_CALL(y, cached_attention, wanted, q, k.to(Dtype::f32), v.to(Dtype::f32), first, last,
                 0.3);
      CHECK((d % 16 ? close_to_scale(y, wanted, 1e-6) : brine::test::same_bits(y, wanted)));
    }
  }
}

TEST_CASE("append_row writes one position of each sequence, rounded, and nothing else") {
  const int64_t B = 3, H = 2, S = 9, d = 5;
  const std::vector<int64_t> at = {8, 0, 5};
  for (Dtype type : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
    Tensor cache = normal({B, H, S, d}, 1, type);
    Tensor row = normal({B, H, 1, d}, 2, type == Dtype::f64 ? type : Dtype::f32);
    std::vector<double> wanted = cache.to_vector();
    const std::vector<double> from = row.to(type).to_vector();
    for (int64_t n = 0; n < B * H; ++n) {
      for (int64_t c = 0; c < d; ++c) {
        wanted[size_t((n * S + at[size_t(n / H)]) * d + c)] = from[size_t(n * d + c)];
      }
    }
    BRINE_CALL(cache, append_row, cache, row, Tensor::from(at, {B}));
    CHECK(cache.to_vector() == wanted);
  }
}
