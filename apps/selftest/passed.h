// How a case of one op is put together: its inputs, its result, the gradients of its inputs.
#pragma once

#include "apps/selftest/cases.h"
#include "autograd/ops.h"
#include "tensor/mask/csr.h"

namespace brine::selftest {

// value(i) for every number of the shape.
template <class F>
Tensor made(const Shape& shape, const Place& place, F&& value) {
  std::vector<double> values(size_t(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = value(i);
  return Tensor::from(values, shape).to(place.type).to(place.device);
}

using Inputs = std::vector<Tensor>;
using Op = std::function<Tensor(const Inputs&)>;

// The result of the op and the gradients of its inputs, from random ones of y.
inline std::vector<Tensor> passed(const Place& place, const std::vector<Tensor>& inputs,
                                  const Op& op) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) leaves.push_back(require_grad(x));
  const Tensor y = op(leaves);
  backward(y, place.normal(y.shape(), 99));
  std::vector<Tensor> out = {y.detach()};
  for (const Tensor& leaf : leaves) out.push_back(has_grad(leaf) ? grad(leaf) : Tensor());
  return out;
}

inline Case simple(const std::string& name, const std::vector<Shape>& shapes, const Op& op) {
  return {.name = name, .run = [=](const Place& place) {
            std::vector<Tensor> inputs;
            for (const Shape& shape : shapes) inputs.push_back(place.normal(shape, inputs.size()));
            return passed(place, inputs, op);
          }};
}

inline Tensor numbers(const std::vector<int64_t>& values) {
  return Tensor::from(values, {int64_t(values.size())});
}

// Lengths of three sequences of 150 rows, one of them empty.
inline Visibility padded(bool causal) {
  return {.causal = causal, .lengths = numbers({150, 0, 77})};
}

// The mask of the columns that the estimate chooses, of the three sequences.
inline FlatCsr mask_by(const Tensor& estimate, const Visibility& visible,
                       const SelectConfig& config) {
  const Selection chosen = select_columns(estimate, visible, config);
  return build_csr(chosen.selected, visible, config.k, 0, chosen.most_entries);
}

// The cases of the other files.
void add_pointwise(std::vector<Case>& all);        // and primitives, sums, norms
void add_estimator(std::vector<Case>& all);        // forward and backward
void add_estimator_steps(std::vector<Case>& all);  // one token at a time
void add_teacher(std::vector<Case>& all);          // losses, recall, refinement
void add_blocks(std::vector<Case>& all);           // masks of key blocks

}  // namespace brine::selftest
