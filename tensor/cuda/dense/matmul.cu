// Matrix products: any strides and batches, converted to the form that cuBLASLt multiplies.
#include <vector>

#include "tensor/cuda/core/blas.h"
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

// A leading axis: its size, and the elements from one of its matrices to the next.
struct Axis {
  int64_t size = 1, a = 0, b = 0, y = 0;
};

// BLAS's leading dimension: the distance of rows (or columns, when `transposed`). False when
// neither axis is dense.
bool leading(int64_t row, int64_t column, int64_t rows, int64_t columns, bool& transposed,
             int64_t& ld) {
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) {
    transposed = false;
    ld = std::max<int64_t>({columns, rows == 1 ? 1 : row, 1});
    return true;
  }
  if ((row == 1 || rows == 1) && (column >= rows || columns == 1)) {
    transposed = true;
    ld = std::max<int64_t>({rows, columns == 1 ? 1 : column, 1});
    return true;
  }
  return false;
}

// The same values in a form that BLAS can read, of type `dtype`; x itself if possible.
Tensor readable(const Tensor& x, Dtype dtype) {
  bool transposed;
  int64_t ld;
  const bool dense = leading(x.stride(-2), x.stride(-1), x.dim(-2), x.dim(-1), transposed, ld);
  if (dense && x.dtype() == dtype) return x;
  const bool flip = x.stride(-2) == 1 && x.stride(-1) != 1;
  const Tensor from = flip ? x.transpose(-1, -2) : x;
  Tensor to = Tensor::empty(from.shape(), dtype, x.device());
  copy(to, from);
  return flip ? to.transpose(-1, -2) : to;
}

// From one matrix to the next along an axis of y; 0 if it is shared.
int64_t step(const Tensor& x, const Tensor& y, int axis) {
  const int x_axis = axis - (y.rank() - x.rank());
  return x_axis < 0 || x.dim(x_axis) == 1 ? 0 : x.stride(x_axis);
}

// The leading axes of y without those of size 1, neighbours merged if they are one axis in memory.
std::vector<Axis> leading_axes(const Tensor& y, const Tensor& a, const Tensor& b) {
  std::vector<Axis> axes;
  for (int i = 0; i < y.rank() - 2; ++i) {
    const Axis next{y.dim(i), step(a, y, i), step(b, y, i), y.stride(i)};
    if (next.size == 1) continue;
    Axis* last = axes.empty() ? nullptr : &axes.back();
    if (last && last->a == next.a * next.size && last->b == next.b * next.size &&
        last->y == next.y * next.size) {
      *last = {last->size * next.size, next.a, next.b, next.y};
    } else {
      axes.push_back(next);
    }
  }
  return axes;
}

// When b is shared along the last axis, its matrices are additional rows of one product.
void fold_rows(Gemm& g, std::vector<Axis>& axes) {
  if (axes.empty()) return;
  const Axis& last = axes.back();
  if (last.b != 0 || g.ta) return;
  const bool single = g.M == 1 && last.a >= g.K && last.y >= g.N;
  if (!single && (last.a != g.M * g.lda || last.y != g.M * g.ldy)) return;
  if (single) {
    g.lda = last.a;
    g.ldy = last.y;
  }
  g.M *= last.size;
  axes.pop_back();
}

// Some of the library's kernels refuse more products at once: the last axis of a grid.
constexpr int64_t kMaxBatch = 65535;

// y [M, N] = beta y + bias, batch matrices `step` apart, rows ld apart.
template <class T>
__global__ void scale_bias_kernel(T* y, const T* bias, T beta, int64_t M, int64_t N, int64_t ld,
                                  int64_t step, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t column = i % N, row = i / N % M, matrix = i / N / M;
  T* at = y + matrix * step + row * ld + column;
  const T value = beta == T(0) ? T(0) : beta * *at;
  *at = bias ? value + bias[column] : value;
}

void scale_bias(const Gemm& g, const GemmData& data, const void* bias, double beta) {
  dispatch_float(g.out, [&]<class T>() {
    const int64_t n = g.batch * g.M * g.N;
    launch_each("matmul", n, scale_bias_kernel<T>, static_cast<T*>(data.y),
                static_cast<const T*>(bias), T(beta), g.M, g.N, g.ldy, g.step_y, n);
  });
}

// One batch of products.
void run(const Gemm& g, GemmData data, double alpha, double beta, Device device) {
  if (g.K == 0) return scale_bias(g, data, data.bias, beta);
  if (gemm(g, data, alpha, beta, device)) return;
  const void* bias = data.bias;
  data.bias = nullptr;
  check(bias && gemm(g, data, alpha, beta, device),
        "matmul: cuBLASLt has no algorithm to multiply ", g.batch, " times ", g.in, " [", g.M, ", ",
        g.K, "] x [", g.K, ", ", g.N, "]");
  scale_bias(g, data, bias, 1);
}

// Every index into all axes except the last: its products are one batch.
template <class F>
void each_batch(const std::vector<Axis>& axes, F f) {
  int64_t all = 1;
  for (const Axis& axis : axes) all *= axis.size;
  for (int64_t n = 0; n < all; ++n) {
    int64_t a = 0, b = 0, y = 0, rest = n;
    for (size_t i = axes.size(); i-- > 0; rest /= axes[i].size) {
      const int64_t at = rest % axes[i].size;
      a += at * axes[i].a;
      b += at * axes[i].b;
      y += at * axes[i].y;
    }
    f(a, b, y);
  }
}

void multiply(Tensor y, Tensor a, Tensor b, bool ta, bool tb, double alpha, double beta,
              Tensor bias) {
  if (y.numel() == 0) return;
  const bool half = item_size(a.dtype()) == 2 && a.dtype() == b.dtype();
  Gemm g{.in = half ? a.dtype() : y.dtype(), .out = y.dtype()};
  g.M = y.dim(-2);
  g.N = y.dim(-1);
  g.K = ta ? a.dim(-2) : a.dim(-1);
  if (g.K > 0) {
    a = readable(a, g.in);
    b = readable(b, g.in);
    leading(a.stride(-2), a.stride(-1), a.dim(-2), a.dim(-1), g.ta, g.lda);
    leading(b.stride(-2), b.stride(-1), b.dim(-2), b.dim(-1), g.tb, g.ldb);
    g.ta = g.ta != ta;
    g.tb = g.tb != tb;
  }
  g.ldy = g.M == 1 ? g.N : y.stride(-2);
  std::vector<Axis> axes = leading_axes(y, a, b);
  if (!bias.defined()) {
    fold_rows(g, axes);
    // The longest axis is the batch; the host iterates over the others.
    std::stable_sort(axes.begin(), axes.end(),
                     [](const Axis& p, const Axis& q) { return p.size < q.size; });
    if (!axes.empty()) {
      g.batch = axes.back().size;
      g.step_a = axes.back().a;
      g.step_b = axes.back().b;
      g.step_y = axes.back().y;
      axes.pop_back();
    }
  }
  const int64_t in = int64_t(item_size(g.in)), out = int64_t(item_size(g.out));
  each_batch(axes, [&](int64_t at_a, int64_t at_b, int64_t at_y) {
    for (int64_t first = 0; first < g.batch; first += kMaxBatch) {
      Gemm part = g;
      part.batch = std::min(kMaxBatch, g.batch - first);
      run(part,
          {.a = a.raw() + (at_a + first * g.step_a) * in,
           .b = b.raw() + (at_b + first * g.step_b) * in,
           .y = y.raw() + (at_y + first * g.step_y) * out,
           .bias = bias.defined() ? bias.raw() : nullptr},
          alpha, beta, y.device());
    }
  });
}

}  // namespace

void matmul(Tensor y, Tensor a, Tensor b, bool ta, bool tb, double alpha, double beta) {
  multiply(y, a, b, ta, tb, alpha, beta, {});
}

void linear(Tensor y, Tensor x, Tensor w, Tensor b) {
  if (is_thin(y, x, w)) return thin_linear(y, x, w, b);
  multiply(y, x, w, false, true, 1, 0, b);
}

void linear_activation(Tensor y, Tensor before, Tensor x, Tensor w, Tensor b, Activation f) {
  const Tensor sums = before.defined() ? before : y;
  linear(sums, x, w, b);
  activation(y, sums, f);
}

}  // namespace brine::cuda
