// The choice of key blocks by products of bf16 on tensor cores.
#pragma once

#include "tensor/blocks.h"

namespace brine::cuda {

struct Lists;
struct TileJobs;

// Chooses by mean keys and queries rounded to bf16, scores f32; false: not for these sizes.
bool select_blocks_half(const Lists& to, const TileJobs& jobs, BlockScores scores,
                        const BlockConfig& config);

}  // namespace brine::cuda
