// Results of evaluations for people.
#pragma once

#include "distill/evaluation/evaluation.h"

namespace brine {

// On standard output: a line or a table for each part.
void print_evaluation(const distill::EvaluationResult& result);

}  // namespace brine
