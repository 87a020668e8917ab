// Low-rank additions to the linear layers of a model (LoRA: Hu et al. 2021, arXiv 2106.09685).
#pragma once

#include <string>
#include <vector>

#include "nn/layers/layers.h"
#include "tensor/named_tensor.h"

namespace brine::nn {

// Adds A [rank, in] and B [out, rank] to the linear maps in the numbered layers of a model:
// queries, keys, values, attention outputs and MLPs, not the maps of an attention method,
// embeddings or heads. Throws for a rank below 1 and for a model without such maps.
void add_low_rank(Module& root, int64_t rank, Init& init);

// Whether a parameter's path is that of an A or B.
bool is_low_rank(const std::string& path);

// The tensors of a model with W + B A in the place of W, A and B of every such map.
std::vector<NamedTensor> merge_low_rank(const std::vector<NamedTensor>& tensors);

}  // namespace brine::nn
