// Human-readable results of evaluations.
#pragma once

#include "distill/evaluation/evaluation.h"

namespace brine {

// Mask recall by layer next to its floors and ceilings, a line each.
std::string mask_table(const std::vector<distill::MaskRow>& rows);

// On standard output: a line or a table for each part.
void print_evaluation(const distill::EvaluationResult& result);

}  // namespace brine
