// What a GPU must compute as the CPU does: small cases of every op, attention method and model
// part.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace brine::selftest {

// Where a case computes, and in which type. The same numbers everywhere, rounded to the type.
struct Place {
  Device device;
  Dtype type = Dtype::f32;

  Tensor normal(const Shape& shape, uint64_t seed, double deviation = 1) const;
  Tensor uniform(const Shape& shape, uint64_t seed, double low, double high) const;
  Tensor ids(const Shape& shape, uint64_t seed, int64_t bound) const;  // i32, on the CPU
};

// Outputs and gradients of `run` on two devices differ by at most these of the largest number of
// each; a negative one: the case is not computed in that type. What is selected from near ties
// differs with the rounding of sums, so that what selects keys is compared in f64, and in f32 with
// every key or with whole numbers.
struct Case {
  std::string name;
  double f64 = 1e-11, f32 = 1e-4;
  std::function<std::vector<Tensor>(const Place&)> run = {};
};

std::vector<Case> op_cases();
// Every registered attention method, causal and not, forward and backward; those that refuse are
// left out.
std::vector<Case> method_cases();
// The loss and gradients of a tiny model, in f64, f32 and 16 bits, and its decoding.
std::vector<Case> model_cases();

}  // namespace brine::selftest
