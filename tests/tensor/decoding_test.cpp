// The kernels of decoding that stand by themselves: thin products, cached attention, convolution by
// rows. Those of the Performer are held to the full pass by the decoding contract.
#include <cmath>

#include "tensor/kernels/kernels_conv.h"
#include "tensor/kernels/kernels_decoding.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::close_to_scale;
using brine::test::normal;
using brine::test::same_bits;

TEST_CASE("thin_linear: any number of rows and odd sizes, strided weights, bits by the row alone") {
  for (Dtype type : {Dtype::f32, Dtype::f64}) {
    for (auto [O, I] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {33, 63}, {130, 257}}) {
      const Tensor all = normal({O, 2 * I}, 1, type), w = all.slice(1, I / 2, I);
      const Tensor b = normal({O}, 2, type), x = normal({7, I}, 3, type);
      std::vector<double> wanted;
      const std::vector<double> xs = x.to_vector(), ws = w.to_vector(), bs = b.to_vector();
      for (int64_t r = 0; r < 7; ++r) {
        for (int64_t o = 0; o < O; ++o) {
          double sum = bs[size_t(o)];
          for (int64_t i = 0; i < I; ++i) sum += xs[size_t(r * I + i)] * ws[size_t(o * I + i)];
          wanted.push_back(sum);
        }
      }
      Tensor y = Tensor::empty({7, O}, type), plain = Tensor::like(y);
      BRINE_CALL(y, thin_linear, y, x, w, b);
      CHECK(close_to_scale(y.to(Dtype::f64), Tensor::from(wanted, {7, O}),
                           type == Dtype::f64 ? 1e-13 : 1e-5));
      BRINE_CALL(y, thin_linear, plain, x, w, Tensor());
      CHECK_FALSE(same_bits(y, plain));
      for (int64_t r = 0; r < 7; ++r) {
        Tensor one = Tensor::empty({1, O}, type);
        BRINE_CALL(y, thin_linear, one, x.slice(0, r, 1), w, b);
        CHECK(same_bits(one, y.slice(0, r, 1)));
      }
    }
  }
}

TEST_CASE("cached_attention: a span of keys of each sequence; none gives 0") {
  const int64_t B = 3, H = 2, S = 21;
  for (int64_t d : {1, 5, 16, 64, 80}) {
    const Tensor q = normal({B, H, 1, d}, 1, Dtype::f64), k = normal({B, H, S, d}, 2, Dtype::f64),
                 v = normal({B, H, S, d}, 3, Dtype::f64);
    const std::vector<int64_t> first = {0, 7, 4}, last = {21, 8, 4};
    const double scale = 0.3;
    std::vector<double> wanted(size_t(B * H * d), 0.0);
    for (int64_t n = 0; n < B * H; ++n) {
      double all = 0;
      for (int pass = 0; pass < 2; ++pass) {
        for (int64_t j = first[size_t(n / H)]; j < last[size_t(n / H)]; ++j) {
          double dot = 0;
          for (int64_t c = 0; c < d; ++c) {
            dot += q.data<double>()[n * d + c] * k.data<double>()[(n * S + j) * d + c];
          }
          const double p = std::exp(scale * dot);
          if (pass == 0) all += p;
          for (int64_t c = 0; pass == 1 && c < d; ++c) {
            wanted[size_t(n * d + c)] += p / all * v.data<double>()[(n * S + j) * d + c];
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

TEST_CASE("convolve_row: the newest row of the causal convolution, as rows are pushed") {
  for (auto [C, O] : {std::pair<int64_t, int64_t>{1, 1}, {6, 3}, {24, 12}, {48, 48}, {5, 70}}) {
    for (int64_t kernel : {1, 3}) {
      for (int64_t dilation : {1, 2}) {
        const int64_t B = 2, T = 7, W = 11, span = (kernel - 1) * dilation, margin = span / 2;
        INFO(join(C, " to ", O, ", kernel ", kernel, ", dilation ", dilation));
        for (Dtype type : {Dtype::f32, Dtype::f64}) {
          const Tensor x = normal({B, T, W, C}, 1, type),
                       w = normal({O, C, kernel, kernel}, 2, type);
          const Tensor b = normal({O}, 3, type);
          Tensor padded = Tensor::zeros({B, span + T, W, C}, type);
          BRINE_CALL(x, copy, padded.slice(1, span, T), x);
          Tensor full = Tensor::empty({B, T, W, O}, type);
          BRINE_CALL(x, conv2d, full, padded, w, b, {.dilation = dilation, .relu = true});
          Tensor packed = Tensor::empty({kernel, kernel, C, packed_outputs(O)}, type);
          BRINE_CALL(x, pack_row_weights, packed, w);
          Tensor window = Tensor::zeros({B, span + 1, W + 2 * margin, C}, type);
          for (int64_t t = 0; t < T; ++t) {
            BRINE_CALL(x, push_row, window, x.slice(1, t, 1).contiguous().view({B, W, C}), margin);
            Tensor y = Tensor::empty({B, W, O}, type);
            BRINE_CALL(x, convolve_row, y, window, packed, b, dilation, true);
            CHECK(close_to_scale(y, full.slice(1, t, 1).contiguous().view({B, W, O}),
                                 type == Dtype::f64 ? 1e-13 : 1e-5));
          }
        }
      }
    }
  }
}
