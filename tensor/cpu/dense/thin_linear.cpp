// x w^T for few rows of x: the weights are read once and multiplied with every row in registers.
//
// Reading w limits the speed of such a product. Each element is one chain of vector sums over I and
// one final reduction, in whichever tile it is, so its bits do not depend on the other rows.
// Weights stored in 16 bits (S) are widened in registers: in f16 the bits are those of the same
// values in f32, in bf16, which is read in pairs, the sums have another order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tensor/base/parallel.h"
#include "tensor/base/stored.h"
#include "tensor/cpu/core/stored_vectors.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

// Outputs of a tile: as many as fit into registers with four rows.
constexpr int kOutputs = kRegisters == 32 ? 6 : 3;
// Up to so many rows the outputs are computed one after the other: w is then read in the order of
// its addresses, which the hardware foresees. Six rows of w at once, several to a page, arrive at
// half the speed.
constexpr int64_t kSequential = 4;

// Weights that are read as pairs: no instruction spreads them over a wider vector. The inputs are
// then in the order of in_pairs().
template <class S>
constexpr bool kPairs = std::is_same_v<S, bf16>;

// The rows of x [R, I] with each two vectors of numbers as those at even indices and those at odd.
Tensor in_pairs(const Tensor& x) {
  constexpr int64_t W = kWidth<float>;
  const Tensor out = Tensor::empty(x.shape(), x.dtype());
  const int64_t I = x.dim(1), whole = I / (2 * W) * 2 * W;
  for (int64_t r = 0; r < x.dim(0); ++r) {
    const float* from = x.data<float>() + r * I;
    float* to = out.data<float>() + r * I;
    for (int64_t i = 0; i < whole; i += 2 * W) {
      for (int64_t j = 0; j < W; ++j) {
        to[i + j] = from[i + 2 * j];
        to[i + W + j] = from[i + 2 * j + 1];
      }
    }
    std::copy(from + whole, from + I, to + whole);
  }
  return out;
}

template <class T, class S>
struct Thin {
  int64_t R, O, I, ld;  // ld: from one row of w to the next
  const T *x, *b;
  const S* w;
  T* y;

  // A tile of Rows x Outputs elements, starting at (r, o).
  template <int Rows, int Outputs>
  void tile(int64_t r, int64_t o) const {
    constexpr int W = kWidth<T>;
    Vector<T> sum[Rows][Outputs] = {};
    const T* px = x + r * I;
    const S* pw = w + o * ld;
    int64_t i = 0;
    if constexpr (kPairs<S>) {
      for (; i + 2 * W <= I; i += 2 * W) {
        add<Rows, Outputs>(sum, px + i, [&](int j) { return even(pw + j * ld + i); });
        add<Rows, Outputs>(sum, px + i + W, [&](int j) { return odd(pw + j * ld + i); });
      }
    } else {
      for (; i + W <= I; i += W) {
        add<Rows, Outputs>(sum, px + i, [&](int j) { return load_as<T>(pw + j * ld + i); });
      }
    }
    // Unrolled like the loop above: the sums stay in registers.
    T all[Rows][Outputs];
#pragma GCC unroll 8
    for (int k = 0; k < Rows; ++k) {
#pragma GCC unroll 8
      for (int j = 0; j < Outputs; ++j) all[k][j] = sum_of_vector<T, kVectorBytes>(sum[k][j]);
    }
    for (int k = 0; k < Rows; ++k) {
      for (int j = 0; j < Outputs; ++j) {
        for (int64_t rest = i; rest < I; ++rest) {
          // Written out, or the compiler rounds the product in some tiles and not in others.
          all[k][j] = std::fma(px[k * I + rest], T(widened(pw[j * ld + rest])), all[k][j]);
        }
        y[(r + k) * O + o + j] = b ? all[k][j] + b[o + j] : all[k][j];
      }
    }
  }

  // sum += the vector of each row, at `in`, times that of each output.
  template <int Rows, int Outputs, class F>
  void add(Vector<T> (&sum)[Rows][Outputs], const T* in, F weight_of) const {
    Vector<T> weight[Outputs];
#pragma GCC unroll 8
    for (int j = 0; j < Outputs; ++j) weight[j] = weight_of(j);
#pragma GCC unroll 8
    for (int k = 0; k < Rows; ++k) {
      const Vector<T> value = load(in + k * I);
#pragma GCC unroll 8
      for (int j = 0; j < Outputs; ++j) sum[k][j] += value * weight[j];
    }
  }

  // Of a vector of pairs those at even indices, and those at odd: a bf16 is the upper half of a
  // float.
  static Vector<T> even(const S* p) { return std::bit_cast<Vector<T>>(words(p) << 16); }
  static Vector<T> odd(const S* p) { return std::bit_cast<Vector<T>>(words(p) & 0xffff0000u); }
  typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
  static Words words(const S* p) {
    Words out;
    std::memcpy(&out, p, sizeof(out));
    return out;
  }

  template <int Outputs>
  void column(int64_t o) const {
    int64_t r = 0;
    for (; r + 4 <= R; r += 4) tile<4, Outputs>(r, o);
    for (; r + 2 <= R; r += 2) tile<2, Outputs>(r, o);
    if (r < R) tile<1, Outputs>(r, o);
  }

  void columns(int64_t begin, int64_t end) const {
    int64_t o = begin;
    if (R > kSequential) {
      for (; o + kOutputs <= end; o += kOutputs) column<kOutputs>(o);
    }
    for (; o < end; ++o) column<1>(o);
  }
};

}  // namespace

void thin_linear(Tensor y, Tensor x, Tensor w, Tensor b) {
  constexpr int64_t kPiece = 24, kShared = 1 << 17;  // outputs that justify a second thread
  dispatch_stored(y.dtype(), w.dtype(), [&]<class T, class S>() {
    if (kPairs<S>) x = in_pairs(x);
    const Thin<T, S> thin{.R = x.dim(0),
                          .O = w.dim(0),
                          .I = x.dim(1),
                          .ld = w.stride(0),
                          .x = x.data<T>(),
                          .b = b.defined() ? b.data<T>() : nullptr,
                          .w = w.data<S>(),
                          .y = y.data<T>()};
    const int64_t piece = thin.R * thin.O * thin.I < kShared ? thin.O : kPiece;
    parallel_for(thin.O, piece, [&](int64_t begin, int64_t end) { thin.columns(begin, end); });
  });
}

}  // namespace brine::BRINE_CPU
