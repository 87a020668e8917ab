// x w^T for few rows of x: the weights are read once and multiplied with every row in registers.
//
// Reading w limits the speed of such a product. Each element is one chain of vector sums over I and
// one final reduction, in whichever tile it is, so its bits do not depend on the other rows.
// Weights stored in 16 bits (S) are widened in registers: the bits are those of the same values in
// f32.
#include <algorithm>
#include <cmath>

#include "tensor/cpu/core/stored_vectors.h"
#include "tensor/kernels/dense.h"
#include "tensor/parallel.h"
#include "tensor/stored.h"

namespace brine::BRINE_CPU {
namespace {

// Outputs of a tile: as many as fit into registers with four rows.
constexpr int kOutputs = kRegisters == 32 ? 6 : 3;

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
    for (; i + W <= I; i += W) {
      Vector<T> weight[Outputs];
#pragma GCC unroll 8
      for (int j = 0; j < Outputs; ++j) weight[j] = load_as<T>(pw + j * ld + i);
#pragma GCC unroll 8
      for (int k = 0; k < Rows; ++k) {
        const Vector<T> in = load(px + k * I + i);
#pragma GCC unroll 8
        for (int j = 0; j < Outputs; ++j) sum[k][j] += in * weight[j];
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
          // Written out, or the compiler rounds products of one storage type and not of another.
          all[k][j] = std::fma(px[k * I + rest], T(widened(pw[j * ld + rest])), all[k][j]);
        }
        y[(r + k) * O + o + j] = b ? all[k][j] + b[o + j] : all[k][j];
      }
    }
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
    for (; o + kOutputs <= end; o += kOutputs) column<kOutputs>(o);
    for (; o < end; ++o) column<1>(o);
  }
};

}  // namespace

void thin_linear(Tensor y, Tensor x, Tensor w, Tensor b) {
  constexpr int64_t kPiece = 24, kShared = 1 << 17;  // outputs that justify a second thread
  dispatch_stored(y.dtype(), w.dtype(), [&]<class T, class S>() {
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
