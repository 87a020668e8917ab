// The ops that add no product: elementwise maps, sums, norms, primitives; and thin products.
#include "apps/selftest/passed.h"
#include "autograd/ops_primitives.h"
#include "tensor/functions/top_logits.h"

namespace brine::selftest {
namespace {

void add_elementwise(std::vector<Case>& all) {
  // Sizes that are not a multiple of the numbers that a thread takes at once.
  all.push_back(simple("add, sub, mul", {{7, 333}, {7, 333}, {7, 333}}, [](const Inputs& x) {
    return mul(add(x[0], x[1]), sub(scale(x[1], 0.7), x[2]));
  }));
  all.push_back(simple("sigmoid and tanh", {{7, 333}},
                       [](const Inputs& x) { return mul(sigmoid(x[0]), tanh(x[0])); }));
  all.push_back(simple("scale_rows", {{33, 40}, {33}},
                       [](const Inputs& x) { return scale_rows(x[0], x[1]); }));
  all.push_back(simple("scale_rows of odd rows", {{33, 41}, {33}},
                       [](const Inputs& x) { return scale_rows(x[0], x[1]); }));
  all.push_back(simple("zero_padding", {{2, 21, 3}}, [](const Inputs& x) {
    return zero_padding(x[0], numbers({21, 5}));
  }));
  all.push_back(simple("dropout", {{1001}}, [](const Inputs& x) {
    RandomStream random{.seed = 3, .stream = 4};
    return dropout(x[0], 0.3, random);
  }));
  all.push_back(simple("permute and concat_last", {{3, 5, 40}, {5, 3, 7}}, [](const Inputs& x) {
    return concat_last(permute(x[0], {1, 0, 2}), x[1]);
  }));
  all.push_back({.name = "cast to 16 bits", .run = [](const Place& p) {
                   const Tensor x = p.normal({333}, 1);
                   return Inputs{x.to(Dtype::bf16), x.to(Dtype::f16)};
                 }});
}

void add_sums_and_norms(std::vector<Case>& all) {
  all.push_back({.name = "sums off the tape", .run = [](const Place& p) {
                   const Tensor x = p.normal({700, 33}, 1), y = p.normal({33}, 2);
                   add_sum_of_rows(y, x);
                   const std::vector<int64_t> n = {count_nonfinite(x)};
                   return Inputs{y, square_sum(x), Tensor::from(n, {1}).to(p.device)};
                 }});
  all.push_back(simple("add_rmsnorm", {{90, 70}, {90, 70}, {70}}, [](const Inputs& x) {
    const NormedSum both = add_rmsnorm(x[0], x[1], x[2]);
    return add(both.sum, both.normed);
  }));
  // 70 chunks: in two levels.
  all.push_back(simple("running_mean of many rows", {{1, 4500, 3}},
                       [](const Inputs& x) { return running_mean(x[0]); }));
  all.push_back(
      {.name = "running_mean_step", .run = [](const Place& p) {
         const Tensor sums = p.normal({2, 3, 20}, 1).to(Dtype::f64);
         const Tensor y = running_mean_step(sums, p.normal({2, 3, 1, 20}, 2), numbers({4, 9}));
         return Inputs{y, sums};
       }});
  all.push_back({.name = "masked_softmax", .run = [](const Place& p) {
                   const Tensor mask = greater(p.normal({2, 2, 30, 50}, 9), 0.3);
                   return passed(p, {p.normal({2, 2, 30, 50}, 1)},
                                 [&](const Inputs& x) { return masked_softmax(x[0], mask, 0.5); });
                 }});
  all.push_back({.name = "top_logits", .f64 = -1, .f32 = 1e-6, .run = [](const Place& p) {
                   Inputs out;
                   for (int64_t n : {1, 20, 3000}) {  // the last: all, with their log-sum-exp
                     const TopLogits top = top_logits(p.normal({5, 3000}, 5), n);
                     out.insert(out.end(), {top.values, top.ids, top.lse});
                   }
                   return out;
                 }});
  for (Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    all.push_back({.name = join("thin_linear of weights in ", type),
                   .f64 = -1,
                   .f32 = 2e-6,
                   .run = [=](const Place& p) {
                     const Tensor w = p.normal({70, 130}, 2).to(type);
                     return Inputs{thin_linear(p.normal({5, 130}, 1), w, p.normal({70}, 3))};
                   }});
  }
}

void add_primitives(std::vector<Case>& all) {
  all.push_back(simple("unary primitives", {{3, 5, 20}}, [](const Inputs& x) {
    return log(add(exp(sin(x[0])), sqrt(add(abs(cos(x[0])), clamp(x[0], 0.5, 2)))));
  }));
  all.push_back(simple(
      "binary primitives, broadcast", {{3, 5, 20}, {3, 1, 20}},
      [](const Inputs& x) { return div(maximum(x[0], x[1]), pow(minimum(x[0], x[1]), 2) + 1); }));
  all.push_back(simple("comparisons and where", {{3, 70}, {3, 70}}, [](const Inputs& x) {
    const Tensor both = logical_and(less(x[0], x[1]), not_equal(x[0], 0));
    return where(both, mul(x[0], x[1]), x[1]);
  }));
  all.push_back(simple("reductions along axes", {{3, 41, 20}}, [](const Inputs& x) {
    return add(add(sum(x[0], {1}, true), mean(x[0], {1}, true)), max(x[0], {1}, true));
  }));
  all.push_back(simple("cumsum", {{3, 41, 5}}, [](const Inputs& x) { return cumsum(x[0], 1); }));
  all.push_back({.name = "gather and scatter_add", .run = [](const Place& p) {
                   const Tensor index = p.ids({6, 9}, 1, 5).to(p.device);
                   return passed(
                       p, {p.normal({6, 5}, 2), p.normal({6, 9}, 3)}, [&](const Inputs& x) {
                         return scatter_add(x[0], 1, index, mul(gather(x[0], 1, index), x[1]));
                       });
                 }});
}

}  // namespace

void add_pointwise(std::vector<Case>& all) {
  add_elementwise(all);
  add_sums_and_norms(all);
  add_primitives(all);
}

}  // namespace brine::selftest
