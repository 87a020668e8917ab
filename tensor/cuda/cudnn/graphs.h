// The graphs that Brine uses, as plans: nothing here runs, so that a machine without a GPU can test
// whether cuDNN accepts them. Each throws an Error if it does not.
#pragma once

#include "tensor/cuda/conv/cudnn.h"
#include "tensor/cuda/cudnn/graph.h"

namespace brine::cuda::cudnn {

constexpr int64_t kMaxWorkspace = int64_t(256) << 20;  // bytes

// The numbers of the tensors in memory.
enum ConvTensor : int64_t { kImage = 1, kFilter, kResult, kBias };
enum AttentionTensor : int64_t { kQ = 1, kK, kV, kY, kLse, kScale, kHidden, kRows, kKeys };

Plan plan_of(const FusedConv& conv, const Target& target);
Plan plan_of(const FusedAttention& attention, const Target& target);

}  // namespace brine::cuda::cudnn
