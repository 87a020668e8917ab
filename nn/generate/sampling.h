// Sampling of the next token from the logits.
#pragma once

#include <cstdint>
#include <span>

namespace brine::nn {

struct Sampling {
  double temperature = 0.8;  // 0 takes the likeliest token
  int64_t top_k = 0;         // only the k likeliest; 0 = all
  double top_p = 0.95;       // then only the likeliest that have this share of the remaining mass
};

// One of the ids 0 .. logits.size() - 1, selected by a number `uniform` in (0, 1). Of equally
// likely tokens the lower id counts as the likelier. Throws when a logit is NaN or all are
// infinite.
int32_t sample(std::span<const float> logits, const Sampling& how, double uniform);

}  // namespace brine::nn
