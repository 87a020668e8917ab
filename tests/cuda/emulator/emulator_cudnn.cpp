// The interface to cuDNN, by slow sums in f64; as strict as the real one about alignment, with
// undefined values where its results are undefined. Off until a test enables it, as on a machine
// without cuDNN; BRINE_EMULATED_CUDNN enables it for a program.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "tensor/cuda/attention/cudnn.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/gpu_software.h"

namespace brine::cuda {
namespace {

bool on = std::getenv("BRINE_EMULATED_CUDNN") != nullptr;
int64_t calls = 0;

template <class T>
double at(const void* data, int64_t i) {
  return double(float(static_cast<const T*>(data)[i]));
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

bool cudnn_attention(const FusedAttention& attention, const FusedAttentionData& data, Device) {
  if (!on) return false;
  const emulator::Reach reach;
  attention.type == Dtype::bf16 ? attend<bf16>(attention, data) : attend<f16>(attention, data);
  ++calls;
  ++emulator::work[emulator::current_device()];
  return true;
}

}  // namespace brine::cuda
