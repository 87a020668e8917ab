// The harness of every numeric test: random tensors by seed, comparison, gradient check, and
// check_op(), which derives all routine checks of an op from one case.
//
// Including it switches on poison (fresh memory is NaN) and guard bands for the whole program.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "autograd/node.h"
#include "tensor/base/random.h"
#include "tensor/device/allocator.h"
#include "tensor/tensor.h"

namespace brine::test {

struct Watch {
  Watch() {
    set_guard_bands(true);
    set_poison(true);
  }
};
inline const Watch watch;

// Sets the number of threads while an object lives.
struct Threads {
  int before = threads();
  explicit Threads(int n) { set_threads(n); }
  ~Threads() { set_threads(before); }
};

// ---- random tensors: the same (shape, seed) gives the same numbers in every type, rounded
inline Tensor normal(const Shape& shape, uint64_t seed, Dtype dtype = Dtype::f32, double mean = 0,
                     double deviation = 1) {
  RandomSlice slice{seed, 0x7e57, 0};
  std::vector<double> values(size_t(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = mean + deviation * slice.normal(i);
  return Tensor::from(values, shape).to(dtype);
}

inline Tensor uniform(const Shape& shape, uint64_t seed, double low, double high,
                      Dtype dtype = Dtype::f32) {
  RandomSlice slice{seed, 0x7e58, 0};
  std::vector<double> values(size_t(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = low + (high - low) * slice.uniform(i);
  return Tensor::from(values, shape).to(dtype);
}

// Whole numbers in [0, bound).
inline Tensor ids(const Shape& shape, uint64_t seed, int64_t bound, Dtype dtype = Dtype::i32) {
  RandomSlice slice{seed, 0x7e59, 0};
  std::vector<int64_t> values(size_t(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = int64_t(slice.word(i) % uint64_t(bound));
  return Tensor::from(values, shape).to(dtype);
}

// ---- comparison
// |a - b| <= atol + rtol |b| everywhere (NaN equals NaN); a mismatch is reported.
inline bool close(const std::vector<double>& a, const std::vector<double>& b, double atol,
                  double rtol, const std::string& what = "close") {
  if (a.size() != b.size()) {
    MESSAGE(what << ": " << a.size() << " values against " << b.size());
    return false;
  }
  size_t bad = 0, worst = 0;
  double excess = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    double over = std::abs(a[i] - b[i]) - atol - rtol * std::abs(b[i]);
    if (over <= 0) continue;
    ++bad;
    if (std::isnan(over)) over = std::numeric_limits<double>::infinity();
    if (over > excess) excess = over, worst = i;
  }
  if (bad == 0) return true;
  MESSAGE(what << ": " << bad << " of " << a.size() << " differ, worst at " << worst << ": "
               << a[worst] << " against " << b[worst]);
  return false;
}

inline bool close(const Tensor& a, const Tensor& b, double atol, double rtol,
                  const std::string& what = "close") {
  if (!(a.shape() == b.shape())) {
    MESSAGE(what << ": " << join(a.shape()) << " against " << join(b.shape()));
    return false;
  }
  return close(a.to_vector(), b.to_vector(), atol, rtol, what);
}

inline double largest(const std::vector<double>& v) {
  double m = 0;
  for (double x : v) m = std::max(m, std::abs(x));
  return m;
}

// Equal within `tolerance` of the largest value of b.
inline bool close_to_scale(const Tensor& a, const Tensor& b, double tolerance,
                           const std::string& what = "close_to_scale") {
  return close(a, b, tolerance * std::max(largest(b.to_vector()), 1e-30), 0, what);
}

// The lengths of sequences as ops take them; none: all are whole.
inline Tensor lengths_of(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? Tensor() : Tensor::from(lengths, Shape{int64_t(lengths.size())});
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  const Tensor x = a.detach().contiguous().to(Device{}), y = b.detach().contiguous().to(Device{});
  return std::memcmp(x.raw(), y.raw(), size_t(x.numel()) * item_size(x.dtype())) == 0;
}

// ---- running a function with its gradients
using In = const std::vector<Tensor>&;
using Function = std::function<Tensor(In)>;

struct Run {
  Tensor y;
  std::vector<Tensor>
      grads;  // of each input; undefined if not requested, zeros if no gradient reached it
};

inline bool differentiable(const Tensor& x) {
  return x.defined() && (x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64);
}

// f and its gradients for the cotangent dy; `only` >= 0 requests that input's gradient alone.
inline Run run(const Function& f, const std::vector<Tensor>& inputs, const Tensor& dy,
               int only = -1) {
  std::vector<Tensor> leaves = inputs;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (differentiable(leaves[i]) && (only < 0 || only == int(i))) {
      leaves[i] = require_grad(leaves[i].clone());
    }
  }
  Run result;
  Tensor y = f(leaves);
  if (y.node()) backward(y, dy);
  result.y = y.detach();
  for (const Tensor& x : leaves) {
    if (!x.defined() || !x.node()) {
      result.grads.emplace_back();
    } else {
      result.grads.push_back(has_grad(x) ? grad(x) : Tensor::zeros_like(x));
    }
  }
  return result;
}

inline std::vector<Tensor> to_dtype(const std::vector<Tensor>& inputs, Dtype dtype) {
  std::vector<Tensor> result = inputs;
  for (Tensor& x : result) {
    if (differentiable(x)) x = x.to(dtype);
  }
  return result;
}

// The cotangent used by the checks: random, never all ones.
inline Tensor cotangent(const Tensor& y, uint64_t seed = 0xc07a) {
  return normal(y.shape(), seed, y.dtype());
}

// ---- gradient check
struct GradcheckOptions {
  double step = 1e-5;
  int64_t probes = 160;  // elements tried per input, spread evenly
  int only = -1;         // one input, or all
  uint64_t seed = 0xc07a;
};

// Worst relative error of f's gradients against central differences, in f64. The error of an
// element counts relative to its size, but at least to 1 % of the input's largest gradient.
inline double gradcheck(const Function& f, const std::vector<Tensor>& given,
                        GradcheckOptions options = {}) {
  std::vector<Tensor> inputs = to_dtype(given, Dtype::f64);
  Tensor dy;
  {
    NoGrad off;
    dy = cotangent(f(inputs), options.seed);
  }
  const std::vector<double> weight = dy.to_vector();
  Run analytic = run(f, inputs, dy, options.only);
  auto loss = [&](In x) {
    NoGrad off;
    const std::vector<double> y = f(x).to_vector();
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weight[i];
    return sum;
  };
  double worst = 0;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!analytic.grads[k].defined()) continue;
    const std::vector<double> g = analytic.grads[k].to_vector();
    const double floor = std::max(0.01 * largest(g), 1e-4);
    const int64_t n = inputs[k].numel(), stride = std::max<int64_t>(1, n / options.probes);
    for (int64_t i = 0; i < n; i += stride) {
      std::vector<Tensor> x = inputs;
      x[k] = inputs[k].clone();
      double& element = x[k].data<double>()[i];
      const double middle = element;
      element = middle + options.step;
      const double high = loss(x);
      element = middle - options.step;
      const double low = loss(x);
      const double numeric = (high - low) / (2 * options.step), exact = g[size_t(i)];
      const double error =
          std::abs(numeric - exact) / std::max({std::abs(numeric), std::abs(exact), floor});
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  }
  return worst;
}

// A tensor that an op takes beside its inputs, in the type of x and on its device.
inline Tensor beside(const Tensor& extra, const Tensor& x) {
  return extra.to(x.dtype()).to(x.device());
}

// ---- one case, all routine checks
struct OpCase {
  std::string name;
  std::vector<Tensor> inputs;  // f32 ones are also run in f64; others are passed on unchanged
  Function f;
  // Expected output from the f64 inputs, by code that shares nothing with the op; may be empty.
  std::function<std::vector<double>(const std::vector<Tensor>&)> oracle = {};
  double tolerance = 1e-5;       // f32 against f64, relative to the largest value of each tensor
  double grad_tolerance = 1e-6;  // of gradcheck; 0 skips it
};

// In the programs of the GPU's kernels the case is run on the device, as on the CPU.
#ifdef BRINE_CHECK_ON_DEVICE
void check_op(const OpCase& c);
#else
inline void check_op(const OpCase& c) {
  INFO("case " << c.name);
  const std::vector<Tensor> inputs32 = to_dtype(c.inputs, Dtype::f32);
  const std::vector<Tensor> inputs64 = to_dtype(inputs32, Dtype::f64);
  Tensor dy32;
  {
    NoGrad off;
    dy32 = cotangent(c.f(inputs32));
  }
  {  // a tape dropped without backward gives everything back
    const int64_t live = allocator_stats().live;
    std::vector<Tensor> leaves = inputs32;
    for (Tensor& x : leaves) {
      if (differentiable(x)) x = require_grad(x);
    }
    c.f(leaves);
    leaves.clear();
    CHECK_MESSAGE(allocator_stats().live == live, c.name << ": a dropped tape keeps memory");
  }
  const Run f32 = run(c.f, inputs32, dy32);
  const Run f64 = run(c.f, inputs64, dy32.to(Dtype::f64));
  if (c.oracle) {
    CHECK(close(f64.y.to_vector(), c.oracle(inputs64), 1e-11 * largest(f64.y.to_vector()), 1e-11,
                c.name + ": f64 against the oracle"));
  }
  CHECK(close_to_scale(f32.y.to(Dtype::f64), f64.y, c.tolerance, c.name + ": f32 against f64"));
  for (size_t i = 0; i < inputs32.size(); ++i) {
    if (!f32.grads[i].defined()) continue;
    const std::string which = c.name + ": gradient of input " + std::to_string(i);
    CHECK(close_to_scale(f32.grads[i].to(Dtype::f64), f64.grads[i], c.tolerance, which));
    // An input whose gradient is requested alone gets the same gradient.
    Run alone = run(c.f, inputs32, dy32, int(i));
    CHECK_MESSAGE(same_bits(alone.grads[i], f32.grads[i]), which << " asked for alone");
  }
  for (int n : {1, 2, 3}) {
    Threads set(n);
    Run again = run(c.f, inputs32, dy32);
    CHECK_MESSAGE(same_bits(again.y, f32.y), c.name << ": " << n << " threads change the output");
    for (size_t i = 0; i < inputs32.size(); ++i) {
      if (!f32.grads[i].defined()) continue;
      CHECK_MESSAGE(same_bits(again.grads[i], f32.grads[i]),
                    c.name << ": " << n << " threads change the gradient of input " << i);
    }
  }
  if (c.grad_tolerance > 0) CHECK(gradcheck(c.f, c.inputs) < c.grad_tolerance);
}
#endif

}  // namespace brine::test
