// Convolutions of f32 images by cuDNN, and of bf16 ones as f32: TF32 holds every bf16 value, so
// that tensor cores multiply them exactly. Weights are turned to [O, kT, kW, C] for it, and bias,
// ReLU and padding are a pass of our own over the result.
#include "tensor/cuda/cudnn.h"

#ifdef BRINE_CUDNN

#include <cudnn.h>

#include <compare>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/cuda/blas.h"
#include "tensor/cuda/conv.cuh"
#include "tensor/cuda/plans.h"

namespace brine::cuda {
namespace {

constexpr size_t kPlans = 512;
constexpr size_t kWorkspace = size_t(256) << 20;  // the most that an algorithm may ask for

void check_cudnn(cudnnStatus_t status, const char* what) {
  check(status == CUDNN_STATUS_SUCCESS, "cudnn: ", what, ": ", cudnnGetErrorString(status));
}

// All codes of "not supported" are of one thousand; before version 9 all codes were.
bool is_unsupported(cudnnStatus_t status) {
  return status != CUDNN_STATUS_SUCCESS &&
         int(status) / 1000 == int(CUDNN_STATUS_NOT_SUPPORTED) / 1000;
}

template <class T, auto destroy>
struct Destroy {
  void operator()(T* it) const { destroy(it); }
};
template <class Pointer, auto destroy>
using Held = std::unique_ptr<std::remove_pointer_t<Pointer>,
                             Destroy<std::remove_pointer_t<Pointer>, destroy>>;
using TensorForm = Held<cudnnTensorDescriptor_t, cudnnDestroyTensorDescriptor>;
using FilterForm = Held<cudnnFilterDescriptor_t, cudnnDestroyFilterDescriptor>;
using Operation = Held<cudnnConvolutionDescriptor_t, cudnnDestroyConvolutionDescriptor>;

enum class Pass { forward, data, weights };

struct Key {
  Pass pass = Pass::forward;
  bool fast = false;  // TF32 may be used
  int64_t B = 0, rows_in = 0, W = 0, C = 0, O = 0, kT = 0, kW = 0, rows = 0;
  int64_t step = 0;  // numbers from one sequence of the result to the next
  int64_t dilation = 1, stride = 1, margin = 0;
  int device = 0;

  auto operator<=>(const Key&) const = default;
};

struct Plan {
  TensorForm image, result;
  FilterForm filter;
  Operation operation;
  int algorithm = 0;
  size_t workspace = 0;
  bool possible = false;
};

// Never destroyed: the driver may be gone before it.
auto& library() {
  static auto* it = new Library<cudnnHandle_t, Key, Plan>(kPlans);
  return *it;
}

cudnnHandle_t handle(int device) {
  cudnnHandle_t& own = library().handle(device);
  if (!own) check_cudnn(cudnnCreate(&own), "cudnnCreate");
  check_cudnn(cudnnSetStream(own, stream()), "cudnnSetStream");
  return own;
}

TensorForm tensor_form(int64_t B, int64_t rows, int64_t W, int64_t C, int64_t step) {
  cudnnTensorDescriptor_t made = nullptr;
  check_cudnn(cudnnCreateTensorDescriptor(&made), "cudnnCreateTensorDescriptor");
  TensorForm held(made);
  check_cudnn(cudnnSetTensor4dDescriptorEx(made, CUDNN_DATA_FLOAT, int(B), int(C), int(rows),
                                           int(W), int(step), 1, int(W * C), int(C)),
              "cudnnSetTensor4dDescriptorEx");
  return held;
}

Plan make_forms(const Key& k) {
  Plan plan;
  plan.image = tensor_form(k.B, k.rows_in, k.W, k.C, k.rows_in * k.W * k.C);
  plan.result = tensor_form(k.B, k.rows, k.W, k.O, k.step);
  cudnnFilterDescriptor_t filter = nullptr;
  check_cudnn(cudnnCreateFilterDescriptor(&filter), "cudnnCreateFilterDescriptor");
  plan.filter.reset(filter);
  check_cudnn(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, int(k.O),
                                         int(k.C), int(k.kT), int(k.kW)),
              "cudnnSetFilter4dDescriptor");
  cudnnConvolutionDescriptor_t operation = nullptr;
  check_cudnn(cudnnCreateConvolutionDescriptor(&operation), "cudnnCreateConvolutionDescriptor");
  plan.operation.reset(operation);
  check_cudnn(cudnnSetConvolution2dDescriptor(operation, 0, int(k.margin), int(k.stride), 1,
                                              int(k.dilation), int(k.dilation),
                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "cudnnSetConvolution2dDescriptor");
  check_cudnn(cudnnSetConvolutionMathType(operation, k.fast ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH),
              "cudnnSetConvolutionMathType");
  return plan;
}

// Plain products: Winograd's and the Fourier ones round more than f32 does.
bool wanted(cudnnConvolutionFwdAlgo_t a) {
  return a == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
         a == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
}
bool wanted(cudnnConvolutionBwdDataAlgo_t a) { return a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1; }
bool wanted(cudnnConvolutionBwdFilterAlgo_t a) { return a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1; }

// Takes the first algorithm that repeats its bits; they come fastest first.
template <class Perf>
void choose(Plan& plan, const Key& key, cudnnStatus_t status, const Perf* found, int count) {
  if (is_unsupported(status)) return;
  check_cudnn(status, "algorithms");
  for (int i = 0; i < count; ++i) {
    const Perf& p = found[i];
    const bool exact = p.mathType == CUDNN_FMA_MATH || p.mathType == CUDNN_DEFAULT_MATH;
    if (p.status != CUDNN_STATUS_SUCCESS || p.determinism != CUDNN_DETERMINISTIC ||
        p.memory > kWorkspace || !wanted(p.algo) || (!key.fast && !exact)) {
      continue;
    }
    const cudnnMathType_t math = key.fast ? p.mathType : CUDNN_FMA_MATH;
    check_cudnn(cudnnSetConvolutionMathType(plan.operation.get(), math), "math type");
    plan.algorithm = int(p.algo);
    plan.workspace = p.memory;
    plan.possible = true;
    return;
  }
}

Plan make_plan(const Key& key) {
  Plan plan = make_forms(key);
  const cudnnHandle_t h = handle(key.device);
  constexpr int kMost = 16;
  int count = 0;
  if (key.pass == Pass::forward) {
    cudnnConvolutionFwdAlgoPerf_t found[kMost];
    const auto status = cudnnGetConvolutionForwardAlgorithm_v7(
        h, plan.image.get(), plan.filter.get(), plan.operation.get(), plan.result.get(), kMost,
        &count, found);
    choose(plan, key, status, found, count);
  } else if (key.pass == Pass::data) {
    cudnnConvolutionBwdDataAlgoPerf_t found[kMost];
    const auto status = cudnnGetConvolutionBackwardDataAlgorithm_v7(
        h, plan.filter.get(), plan.result.get(), plan.operation.get(), plan.image.get(), kMost,
        &count, found);
    choose(plan, key, status, found, count);
  } else {
    cudnnConvolutionBwdFilterAlgoPerf_t found[kMost];
    const auto status = cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        h, plan.image.get(), plan.result.get(), plan.operation.get(), plan.filter.get(), kMost,
        &count, found);
    choose(plan, key, status, found, count);
  }
  return plan;
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// One pass: of image, filter and result the last or the one named by the pass is written.
bool run(const Key& key, float* image, float* filter, float* result, Device device) {
  if (!is_aligned(image) || !is_aligned(filter) || !is_aligned(result)) return false;
  auto& lib = library();
  std::lock_guard lock(lib.mutex);
  Plan& plan = lib.plans.get(key, [&] { return make_plan(key); });
  if (!plan.possible) return false;
  const Workspace workspace(plan.workspace, device);
  const cudnnHandle_t h = handle(key.device);
  const float one = 1, zero = 0;
  cudnnStatus_t status;
  if (key.pass == Pass::forward) {
    status =
        cudnnConvolutionForward(h, &one, plan.image.get(), image, plan.filter.get(), filter,
                                plan.operation.get(), cudnnConvolutionFwdAlgo_t(plan.algorithm),
                                workspace.data(), plan.workspace, &zero, plan.result.get(), result);
  } else if (key.pass == Pass::data) {
    status = cudnnConvolutionBackwardData(
        h, &one, plan.filter.get(), filter, plan.result.get(), result, plan.operation.get(),
        cudnnConvolutionBwdDataAlgo_t(plan.algorithm), workspace.data(), plan.workspace, &zero,
        plan.image.get(), image);
  } else {
    status = cudnnConvolutionBackwardFilter(
        h, &one, plan.image.get(), image, plan.result.get(), result, plan.operation.get(),
        cudnnConvolutionBwdFilterAlgo_t(plan.algorithm), workspace.data(), plan.workspace, &zero,
        plan.filter.get(), filter);
  }
  if (is_unsupported(status)) {
    plan.possible = false;
    return false;
  }
  check_cudnn(status, "convolution");
  return true;
}

// to [O, taps, C] of from [O, C, taps].
template <class T>
__global__ void turn_weights_kernel(float* to, const T* from, int64_t C, int64_t taps, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t c = i % C, tap = i / C % taps, o = i / C / taps;
  to[i] = float(from[(o * C + c) * taps + tap]);
}

// dw [O, C, taps] += from [O, taps, C].
__global__ void add_weights_kernel(float* dw, const float* from, int64_t C, int64_t taps,
                                   int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t tap = i % taps, c = i / taps % C, o = i / taps / C;
  dw[i] += from[(o * taps + tap) * C + c];
}

// y [B, rows_out, W, O] = relu(y + bias) in live rows, 0 in the others.
__global__ void finish_kernel(float* y, const float* bias, ConvSizes s, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t o = i % s.O, row = i / s.O / s.W, b = row / s.rows_out;
  const int64_t r = row % s.rows_out - s.before;
  float value = 0;
  if (r >= 0 && r < s.live(b)) {
    value = bias ? y[i] + bias[o] : y[i];
    if (s.relu && !(value > 0)) value = 0;
  }
  y[i] = value;
}

// g [B, rows, W, O] = dy in live rows where y > 0, rounded to T.
template <class T>
__global__ void gather_kernel(float* g, const float* dy, const float* y, ConvSizes s, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t line = s.W * s.O, at = i % line, row = i / line, b = row / s.rows;
  const int64_t r = row % s.rows, from = (b * s.rows_out + s.before + r) * line + at;
  const bool there = r < s.live(b) && (!s.relu || y[from] > 0);
  g[i] = there ? float(T(dy[from])) : 0.0f;
}

Tensor turned(const Tensor& w, const ConvSizes& s) {
  Tensor to = Tensor::empty({s.O, s.kT, s.kW, s.C}, Dtype::f32, w.device());
  auto launch_turn = [&]<class T>() {
    launch_each("conv2d", w.numel(), turn_weights_kernel<T>, to.data<float>(), w.data<T>(), s.C,
                s.taps(), w.numel());
  };
  w.dtype() == Dtype::bf16 ? launch_turn.template operator()<bf16>()
                           : launch_turn.template operator()<float>();
  return to;
}

Tensor widened(const Tensor& x) {
  if (x.dtype() == Dtype::f32) return x;
  Tensor to = Tensor::empty(x.shape(), Dtype::f32, x.device());
  copy(to, x);
  return to;
}

// The gradient of the sums, and how far its sequences lie apart.
struct Sums {
  Tensor held;
  float* data;
  int64_t step;

  Sums(const Tensor& dy, const Tensor& y, const ConvSizes& s, bool rounded)
      : data(dy.data<float>() + s.before * s.W * s.O), step(s.rows_out * s.W * s.O) {
    if (!s.relu && !s.lengths && !rounded && is_aligned(data)) return;
    held = Tensor::empty({s.B, s.rows, s.W, s.O}, Dtype::f32, dy.device());
    data = held.data<float>();
    step = s.rows * s.W * s.O;
    auto kernel = rounded ? gather_kernel<bf16> : gather_kernel<float>;
    launch_each("conv2d_backward", held.numel(), kernel, data, dy.data<float>(),
                s.relu ? y.data<float>() : nullptr, s, held.numel());
  }
};

Key key_of(Pass pass, const ConvSizes& s, int64_t step, bool fast, Device device) {
  return {.pass = pass,
          .fast = fast,
          .B = s.B,
          .rows_in = s.rows_in,
          .W = s.W,
          .C = s.C,
          .O = s.O,
          .kT = s.kT,
          .kW = s.kW,
          .rows = s.rows,
          .step = step,
          .dilation = s.dilation,
          .stride = s.stride,
          .margin = s.margin,
          .device = device.index};
}

// It counts in 32 bits, and knows nothing empty.
bool takes(const ConvSizes& s, const Tensor& x, const Tensor& w) {
  constexpr int64_t kMost = int64_t(1) << 31;
  const int64_t out = s.B * s.rows_out * s.W * s.O;
  return (x.dtype() == Dtype::f32 || x.dtype() == Dtype::bf16) && w.dtype() == x.dtype() &&
         s.rows > 0 && x.numel() > 0 && w.numel() > 0 && x.numel() < kMost && out < kMost;
}

}  // namespace

bool cudnn_conv2d(Tensor y, Tensor x, Tensor w, Tensor b, const Convolution& conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, conf, lengths);
  if (!takes(s, x, w)) return false;
  const bool half = x.dtype() == Dtype::bf16;
  const Tensor image = widened(x), filter = turned(w, s);
  const Key key = key_of(Pass::forward, s, s.rows_out * s.W * s.O, half || tf32(), x.device());
  float* result = y.data<float>() + s.before * s.W * s.O;
  if (!run(key, image.data<float>(), filter.data<float>(), result, x.device())) return false;
  launch_each("conv2d", y.numel(), finish_kernel, y.data<float>(),
              b.defined() ? b.data<float>() : nullptr, s, y.numel());
  return true;
}

bool cudnn_data_gradient(Tensor dx, Tensor dy, Tensor x, Tensor w, Tensor y,
                         const Convolution& conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, conf, lengths);
  if (!takes(s, x, w)) return false;
  const bool half = w.dtype() == Dtype::bf16;
  const Sums sums(dy, y, s, half);
  const Tensor filter = turned(w, s);
  const Key key = key_of(Pass::data, s, sums.step, half || tf32(), x.device());
  return run(key, dx.data<float>(), filter.data<float>(), sums.data, x.device());
}

bool cudnn_weight_gradient(Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor y,
                           const Convolution& conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, conf, lengths);
  if (!takes(s, x, w)) return false;
  const Sums sums(dy, y, s, false);
  const Tensor image = widened(x);
  const Tensor sum = Tensor::empty({s.O, s.kT, s.kW, s.C}, Dtype::f32, x.device());
  const Key key = key_of(Pass::weights, s, sums.step, tf32(), x.device());
  if (!run(key, image.data<float>(), sum.data<float>(), sums.data, x.device())) return false;
  launch_each("conv2d_backward", dw.numel(), add_weights_kernel, dw.data<float>(),
              sum.data<float>(), s.C, s.taps(), dw.numel());
  return true;
}

}  // namespace brine::cuda

#endif
