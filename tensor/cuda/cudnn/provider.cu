// Plans of the graphs, cached by request, and their execution.
#include <atomic>
#include <limits>
#include <map>
#include <optional>

#include "tensor/cuda/core/common.cuh"
#include "tensor/cuda/core/plans.h"
#include "tensor/cuda/cudnn/graphs.h"
#include "tensor/cuda/cudnn/library.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/gpu_software.h"

namespace brine::cuda {
namespace {

constexpr size_t kPlans = 512;

std::atomic<bool> wanted{true};
std::atomic<int64_t> calls{0};

// Everything that a plan depends on.
struct Key {
  FusedAttention attention;
  int device = 0;

  auto operator<=>(const Key&) const = default;
};
// Empty if cuDNN refused.
using KeptPlan = std::optional<cudnn::Plan>;

// Never destroyed: the driver may be unloaded before it.
auto& kept() {
  static auto* it = new Library<cudnnHandle_t, Key, KeptPlan>(kPlans);
  return *it;
}

// Why cuDNN did not do it, by key; plans that were dropped do not count twice. Never destroyed.
std::map<Key, std::string>& refusals() {
  static auto* it = new std::map<Key, std::string>;
  return *it;
}

std::string description(const Key& key) {
  const FusedAttention& a = key.attention;
  return join("attention, ", a.type, " [", a.B, ", ", a.H, ", ", a.T, ", ", a.d, "]",
              a.causal ? ", causal" : "", a.padded ? ", padded" : "");
}

cudnnHandle_t handle(int device) {
  cudnnHandle_t& cached = kept().handle(device);
  if (!cached)
    cudnn::check_status(cudnnCreate(&cached), "cudnnCreate (--cudnn off does without it)");
  cudnn::check_status(cudnnSetStream(cached, stream()), "cudnnSetStream");
  return cached;
}

bool run(const Key& key, const std::vector<cudnn::Binding>& bindings, Device device) {
  auto& lib = kept();
  std::lock_guard lock(lib.mutex);
  const cudnnHandle_t h = handle(key.device);
  KeptPlan& plan = lib.plans.get(key, [&]() -> KeptPlan {
    try {
      const cudnn::Target target{.handle = h};
      return plan_of(key.attention, target);
    } catch (const Error& e) {
      refusals().emplace(key, e.what());
      return {};  // Brine's kernels compute it; tests/cudnn checks that this is rare
    }
  });
  if (!plan) return false;
  const Workspace workspace(size_t(plan->workspace), device);
  if (!cudnn::run(h, *plan, bindings, workspace.data())) {
    refusals().emplace(key, "its plan did not run");
    plan.reset();
    return false;
  }
  ++calls;
  return true;
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

bool cudnn_serves() { return wanted && cudnn::library().why_not.empty(); }
int64_t cudnn_calls() { return calls; }

std::vector<std::string> cudnn_refusals() {
  std::lock_guard lock(kept().mutex);
  std::vector<std::string> lines;
  for (const auto& [key, why] : refusals()) lines.push_back(join(description(key), ": ", why));
  return lines;
}

void set_cudnn(bool on) { wanted = on; }

std::string cudnn_version() {
  const cudnn::Found& found = cudnn::library();
  return found.why_not.empty() ? found.version : found.why_not;
}

bool cudnn_attention(const FusedAttention& attention, const FusedAttentionData& data,
                     Device device) {
  if (!is_aligned(data.q) || !is_aligned(data.k) || !is_aligned(data.v) || !is_aligned(data.y) ||
      !is_aligned(data.lse) || !cudnn_serves()) {
    return false;
  }
  const float hidden = -std::numeric_limits<float>::infinity();
  std::vector<cudnn::Binding> bindings{{cudnn::kQ, data.q},     {cudnn::kK, data.k},
                                       {cudnn::kV, data.v},     {cudnn::kY, data.y},
                                       {cudnn::kLse, data.lse}, {cudnn::kScale, &data.scale}};
  if (attention.padded) {
    bindings.push_back({cudnn::kRows, data.lengths});
    bindings.push_back({cudnn::kKeys, data.lengths});
  }
  if (attention.padded || attention.causal) bindings.push_back({cudnn::kHidden, &hidden});
  return run({.attention = attention, .device = device.index}, bindings, device);
}

}  // namespace brine::cuda
