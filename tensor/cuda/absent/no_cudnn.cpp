// The cuDNN interface of a build without its headers: never available.
#include "tensor/cuda/attention/cudnn.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/gpu_software.h"

namespace brine::cuda {

void set_cudnn(bool) {}
std::string cudnn_version() { return "none: this build did not find its headers"; }
bool cudnn_serves() { return false; }
int64_t cudnn_calls() { return 0; }
std::vector<std::string> cudnn_refusals() { return {}; }
bool cudnn_attention(const FusedAttention&, const FusedAttentionData&, Device) { return false; }

}  // namespace brine::cuda
