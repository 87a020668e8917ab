// The attention losses with T x T maps, in plain form: the reference of the streamed ones.
#pragma once

#include "autograd/ops.h"
#include "distill/losses/losses.h"

namespace brine::bench {

// Causal scores of columns [B, H, T, K] as those of their keys [B, H, T, T]; hidden keys get 0.
Tensor widen(const Tensor& scores);
// {KL(t || a), MSE(a, t)} of causal maps a and t [B, H, T, T], defined as in approx_loss() and
// prob_loss(). Only a is differentiated.
Tensor map_distance(const Tensor& a, const Tensor& t);

// A distillation step on one batch of whole windows with a teacher of method `dense`, with every
// loss at its default weight: like Objective::run(), but with maps.
class MapObjective {
 public:
  MapObjective(nn::Model& student, nn::Model& teacher) : student_(student), teacher_(teacher) {}
  void run(const distill::Batch& batch, distill::LossTerms& terms);

 private:
  nn::Model &student_, &teacher_;
  distill::LossConfig weights_;
};

}  // namespace brine::bench
