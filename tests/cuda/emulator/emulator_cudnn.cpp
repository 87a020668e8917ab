// The interface to cuDNN, by slow sums in f64; as strict as the real one about alignment, with
// undefined values where its results are undefined. Off until a test enables it, as on a machine
// without cuDNN; BRINE_EMULATED_CUDNN enables it for a program.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "tensor/cuda/conv/cudnn.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/gpu_software.h"

namespace brine::cuda {
namespace {

bool on = std::getenv("BRINE_EMULATED_CUDNN") != nullptr;
int64_t calls = 0;

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

template <class T>
double at(const void* data, int64_t i) {
  return double(float(static_cast<const T*>(data)[i]));
}

// f(row of the image, column of it, tap, position in the result) for every product of a sequence.
template <class F>
void each_product(const FusedConv& c, int64_t b, F&& f) {
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t column = 0; column < c.W; ++column) {
      for (int64_t tap = 0; tap < c.kT * c.kW; ++tap) {
        const int64_t row = r * c.stride + tap / c.kW * c.dilation;
        const int64_t from = column + tap % c.kW * c.dilation - c.margin;
        if (from < 0 || from >= c.W) continue;
        f(((b * c.rows_in + row) * c.W + from) * c.C, tap, b * c.step + (r * c.W + column) * c.O);
      }
    }
  }
}

template <class T>
void convolve(const FusedConv& c, const FusedConvData& data) {
  const int64_t taps = c.kT * c.kW, images = c.B * c.rows_in * c.W * c.C;
  const int64_t results = (c.B - 1) * c.step + c.rows * c.W * c.O;
  const bool forward = c.pass == ConvPass::forward, weights = c.pass == ConvPass::weights;
  std::vector<double> sums(size_t(forward ? results : weights ? c.O * taps * c.C : images), 0.0);
  for (int64_t b = 0; b < c.B; ++b) {
    each_product(c, b, [&](int64_t x, int64_t tap, int64_t y) {
      for (int64_t o = 0; o < c.O; ++o) {
        for (int64_t i = 0; i < c.C; ++i) {
          const int64_t w = (o * taps + tap) * c.C + i;
          if (forward) {
            sums[size_t(y + o)] += at<T>(data.image, x + i) * at<T>(data.filter, w);
          } else if (weights) {
            sums[size_t(w)] += at<T>(data.image, x + i) * at<T>(data.result, y + o);
          } else {
            sums[size_t(x + i)] += at<T>(data.result, y + o) * at<T>(data.filter, w);
          }
        }
      }
    });
  }
  float* to = static_cast<float*>(forward ? data.result : weights ? data.filter : data.image);
  for (int64_t i = 0; i < int64_t(sums.size()); ++i) {
    if (forward && i % c.step >= c.rows * c.W * c.O) continue;  // between two sequences
    double sum = sums[size_t(i)];
    if (c.bias) sum += at<float>(data.bias, i % c.step % c.O);
    to[i] = float(c.relu && !(sum > 0) ? 0 : sum);
  }
}

template <class T>
void attend(const FusedAttention& a, const FusedAttentionData& data) {
  std::vector<double> p(static_cast<size_t>(a.T));
  for (int64_t row = 0; row < a.B * a.H * a.T; ++row) {
    const int64_t t = row % a.T, h = row / a.T % a.H, b = row / a.T / a.H;
    const int64_t tokens = data.lengths ? data.lengths[b] : a.T, head = (row - t) * a.d;
    const int64_t keys = a.causal && t < tokens ? t + 1 : tokens;
    T* y = static_cast<T*>(data.y) + ((b * a.T + t) * a.H + h) * a.d;
    if (t >= tokens) {
      std::fill_n(y, a.d, T(std::numeric_limits<float>::quiet_NaN()));
      data.lse[row] = -std::numeric_limits<float>::infinity();
      continue;
    }
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < keys; ++j) {
      double dot = 0;
      for (int64_t i = 0; i < a.d; ++i) {
        dot += at<T>(data.q, row * a.d + i) * at<T>(data.k, head + j * a.d + i);
      }
      p[size_t(j)] = dot * double(data.scale);
      largest = std::max(largest, p[size_t(j)]);
    }
    for (int64_t j = 0; j < keys; ++j) sum += p[size_t(j)] = std::exp(p[size_t(j)] - largest);
    for (int64_t i = 0; i < a.d; ++i) {
      double value = 0;
      for (int64_t j = 0; j < keys; ++j) value += p[size_t(j)] * at<T>(data.v, head + j * a.d + i);
      y[i] = T(float(value / sum));
    }
    data.lse[row] = float(largest + std::log(sum));
  }
}

}  // namespace

void set_cudnn(bool wanted) { on = wanted; }
std::string cudnn_version() { return "none: an emulated device"; }
bool cudnn_serves() { return on; }
int64_t cudnn_calls() { return calls; }
std::vector<std::string> cudnn_refusals() { return {}; }

bool cudnn_conv(const FusedConv& conv, const FusedConvData& data, Device) {
  if (!on || !is_aligned(data.image) || !is_aligned(data.filter) || !is_aligned(data.result)) {
    return false;
  }
  const emulator::Reach reach;
  conv.type == Dtype::bf16 ? convolve<bf16>(conv, data) : convolve<f16>(conv, data);
  ++calls;
  ++emulator::work[emulator::current_device()];
  return true;
}

bool cudnn_attention(const FusedAttention& attention, const FusedAttentionData& data, Device) {
  if (!on) return false;
  const emulator::Reach reach;
  attention.type == Dtype::bf16 ? attend<bf16>(attention, data) : attend<f16>(attention, data);
  ++calls;
  ++emulator::work[emulator::current_device()];
  return true;
}

}  // namespace brine::cuda
