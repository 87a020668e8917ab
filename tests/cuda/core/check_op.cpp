// The cases of tests/autograd on the device, forward and backward, as on the CPU.
#include "autograd/node.h"
#include "tests/cuda/compare.h"

void brine::test::check_op(const OpCase& c) {
  compare_both(c.name,
               [&](const On& on, Dtype dtype) {
                 std::vector<Tensor> leaves, results;
                 for (const Tensor& x : to_dtype(c.inputs, dtype)) {
                   leaves.push_back(differentiable(x) ? require_grad(on(x)) : on(x));
                 }
                 const Tensor y = c.f(leaves);
                 if (y.node()) backward(y, on(cotangent(y)));
                 results.push_back(y.detach());
                 for (const Tensor& x : leaves)
                   results.push_back(x.node() && has_grad(x) ? grad(x) : Tensor());
                 return results;
               },
               {std::max(2e-5, c.tolerance), 1e-11});
}
