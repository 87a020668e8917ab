// The graph that Brine uses, as a plan: nothing here runs, so that a machine without a GPU can test
// whether cuDNN accepts it. It throws an Error if it does not.
#pragma once

#include "tensor/cuda/attention/cudnn.h"
#include "tensor/cuda/cudnn/graph.h"

namespace brine::cuda::cudnn {

constexpr int64_t kMaxWorkspace = int64_t(256) << 20;  // bytes

// The numbers of the tensors in memory.
enum AttentionTensor : int64_t { kQ = 1, kK, kV, kY, kLse, kScale, kHidden, kRows, kKeys };

Plan plan_of(const FusedAttention& attention, const Target& target);

}  // namespace brine::cuda::cudnn
