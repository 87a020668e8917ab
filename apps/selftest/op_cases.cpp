// The ops that models are made of, forward and backward.
#include <cmath>

#include "apps/selftest/passed.h"
#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "tensor/base/random.h"
#include "tensor/functions/top_logits.h"

namespace brine::selftest {
namespace {

constexpr uint64_t kStream = 0x5e1f;

void add_dense(std::vector<Case>& all) {
  all.push_back(simple("matmul", {{3, 65, 130}, {3, 130, 33}},
                       [](const Inputs& x) { return matmul(x[0], x[1]); }));
  all.push_back(simple("matmul, transposed", {{2, 130, 65}, {2, 33, 130}},
                       [](const Inputs& x) { return matmul(x[0], x[1], true, true, 0.5); }));
  all.push_back(simple("linear", {{4, 50, 96}, {160, 96}, {160}},
                       [](const Inputs& x) { return linear(x[0], x[1], x[2]); }));
  all.push_back(simple("linear_in_out", {{4, 50, 96}, {96, 160}, {160}},
                       [](const Inputs& x) { return linear_in_out(x[0], x[1], x[2]); }));
  all.push_back(simple("linear_activation", {{4, 50, 96}, {160, 96}, {160}}, [](const Inputs& x) {
    return linear_activation(x[0], x[1], x[2], Activation::gelu);
  }));
  all.push_back(simple("linear_pair", {{2, 4, 50, 24}, {2, 2, 50, 16}, {72, 40}, {72}},
                       [](const Inputs& x) { return linear_pair(x[0], x[1], x[2], x[3]); }));
  for (Activation f :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    all.push_back(simple(join("activation ", int(f)), {{7, 333}},
                         [f](const Inputs& x) { return activate(x[0], f); }));
  }
  all.push_back(simple("layernorm", {{300, 130}, {130}, {130}},
                       [](const Inputs& x) { return layernorm(x[0], x[1], x[2]); }));
  all.push_back(simple("layernorm of short rows", {{3000, 12}, {12}, {12}},
                       [](const Inputs& x) { return layernorm(x[0], x[1], x[2]); }));
  all.push_back(
      simple("rmsnorm", {{300, 130}, {130}}, [](const Inputs& x) { return rmsnorm(x[0], x[1]); }));
  all.push_back(simple("add_layernorm", {{90, 70}, {90, 70}, {70}, {70}}, [](const Inputs& x) {
    const NormedSum both = add_layernorm(x[0], x[1], x[2], x[3]);
    return add(both.sum, both.normed);
  }));
  all.push_back(simple("softmax, padded", {{3, 2, 150, 150}},
                       [](const Inputs& x) { return softmax(x[0], 0.3, padded(true)); }));
  all.push_back(simple("running_mean", {{2, 3, 400, 20}},
                       [](const Inputs& x) { return running_mean(x[0]); }));
  all.push_back(simple("squared distance and sums", {{200, 50}, {200, 50}}, [](const Inputs& x) {
    const Tensor weight = Tensor::full({200}, 0.5, x[0].dtype()).to(x[0].device());
    return concat({squared_distance(x[0], x[1], weight), sum(x[0]), dot(x[0], x[1])}, 0);
  }));
  all.push_back({.name = "embedding", .run = [](const Place& p) {
                   const Tensor ids = p.ids({5, 40}, 1, 30);
                   return passed(p, {p.normal({30, 48}, 2)},
                                 [&](const auto& x) { return embedding(x[0], ids); });
                 }});
  all.push_back({.name = "rotary", .run = [](const Place& p) {
                   const Tensor frequencies = rotary_frequencies(16, 10000);
                   return passed(p, {p.normal({2, 3, 40, 20}, 2)}, [&](const auto& x) {
                     return rotary(x[0], frequencies, numbers({0, 7}));
                   });
                 }});
  all.push_back({.name = "cross_entropy", .run = [](const Place& p) {
                   const Tensor target = p.ids({90}, 3, 500);
                   return passed(p, {p.normal({90, 500}, 2)},
                                 [&](const auto& x) { return cross_entropy(x[0], target); });
                 }});
  for (int64_t n : {0, 20}) {
    all.push_back({.name = join("kl_logits, ", n), .run = [n](const Place& p) {
                     // Made on the CPU: its sums are f32, whatever the type of the case.
                     const Place near{Device{}, Dtype::f32};
                     TopLogits teacher = top_logits(near.normal({40, 300}, 5), n);
                     for (Tensor* x : {&teacher.values, &teacher.ids, &teacher.lse}) {
                       if (!x->defined()) continue;
                       *x = (x == &teacher.ids ? *x : x->to(p.type)).to(p.device);
                     }
                     return passed(p, {p.normal({40, 300}, 2)},
                                   [&](const auto& x) { return kl_logits(x[0], teacher); });
                   }});
  }
  all.push_back({.name = "adamw", .run = [](const Place& p) {
                   const Tensor w = p.normal({1000}, 1), m = p.normal({1000}, 2, 0.1);
                   const Tensor v = p.uniform({1000}, 3, 0.1, 1), g = p.normal({1000}, 4);
                   adamw(w, m, v, g, {.learning_rate = 0.01, .weight_decay = 0.1});
                   return std::vector{w, m, v};
                 }});
}

void add_convolutions(std::vector<Case>& all) {
  for (int64_t stride : {1, 2}) {
    for (int64_t channels : {4, 24}) {
      all.push_back(simple(join("conv2d, ", channels, " channels, stride ", stride),
                           {{2, 40, 16, channels}, {channels, channels, 3, 3}, {channels}},
                           [=](const std::vector<Tensor>& x) {
                             return conv2d(x[0], x[1], x[2],
                                           {.stride = stride, .relu = true, .halo_before = 2});
                           }));
    }
  }
  all.push_back(simple("upsample", {{2, 20, 8, 6}}, [](const std::vector<Tensor>& x) {
    return upsample(x[0], {.tokens = 40, .columns = 32, .stride = 2, .lengths = numbers({40, 13})});
  }));
}

// q, k, v of 3 sequences, 4 heads that share the keys of 2 groups.
std::vector<Tensor> heads(const Place& p, int64_t d) {
  return {p.normal({3, 4, 150, d}, 1), p.normal({3, 2, 150, d}, 2), p.normal({3, 2, 150, d}, 3)};
}

void add_attention(std::vector<Case>& all) {
  for (bool causal : {true, false}) {
    for (int64_t d : {16, 64, 128}) {
      all.push_back({.name = join("flash_attention, heads of ", d, causal ? ", causal" : ""),
                     .run = [=](const Place& p) {
                       return passed(p, heads(p, d), [=](const auto& x) {
                         return flash_attention(x[0], x[1], x[2], padded(causal));
                       });
                     }});
    }
    for (SelectMode mode : {SelectMode::per_query, SelectMode::causal_per_batch,
                            SelectMode::per_head, SelectMode::per_batch}) {
      if (causal && (mode == SelectMode::per_head || mode == SelectMode::per_batch)) continue;
      all.push_back(
          {.name =
               join("selection ", name_of(mode), " and sparse_attention", causal ? ", causal" : ""),
           .run = [=](const Place& p) {
             // Whole numbers: no near ties, many ties.
             const Tensor estimate =
                 made({3, 4, 150, 32}, p, [](size_t i) { return double(i * 2654435761u % 1009); });
             const FlatCsr csr = mask_by(estimate, padded(causal), {.k = 8, .mode = mode});
             std::vector<Tensor> out = passed(p, heads(p, 40), [&](const auto& x) {
               return sparse_attention(x[0], x[1], x[2], csr);
             });
             out.push_back(csr_to_mask(csr));
             return out;
           }});
    }
  }
  // 16 bits: with cuDNN where it is found. Other sums, and on some CPUs rounded weights.
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    all.push_back({.name = join("flash_attention in ", type),
                   .f64 = -1,
                   .f32 = 2e-2,
                   .run = [=](const Place& p) {
                     const ComputeType rounded(type);
                     return passed(p, heads(p, 64), [](const auto& x) {
                       return flash_attention(x[0], x[1], x[2], padded(true));
                     });
                   }});
    all.push_back({.name = join("linear and conv2d in ", type),
                   .f64 = -1,
                   .f32 = 2e-3,
                   .run = [=](const Place& p) {
                     const ComputeType rounded(type);
                     std::vector<Tensor> out = passed(
                         p, {p.normal({100, 96}, 1), p.normal({160, 96}, 2), p.normal({160}, 3)},
                         [](const auto& x) { return linear(x[0], x[1], x[2]); });
                     const std::vector<Tensor> more =
                         passed(p, {p.normal({2, 40, 16, 8}, 1), p.normal({8, 8, 3, 3}, 2)},
                                [](const auto& x) { return conv2d(x[0], x[1], {}, {}); });
                     out.insert(out.end(), more.begin(), more.end());
                     return out;
                   }});
  }
}

}  // namespace

Tensor Place::normal(const Shape& shape, uint64_t seed, double deviation) const {
  const RandomSlice slice{seed, kStream, 0};
  return made(shape, *this, [&](size_t i) { return deviation * slice.normal(i); });
}

Tensor Place::uniform(const Shape& shape, uint64_t seed, double low, double high) const {
  const RandomSlice slice{seed, kStream + 1, 0};
  return made(shape, *this, [&](size_t i) { return low + (high - low) * slice.uniform(i); });
}

Tensor Place::ids(const Shape& shape, uint64_t seed, int64_t bound) const {
  const RandomSlice slice{seed, kStream + 2, 0};
  std::vector<int32_t> values(size_t(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = int32_t(slice.word(i) % uint64_t(bound));
  }
  return Tensor::from(values, shape);
}

std::vector<Case> op_cases() {
  std::vector<Case> all;
  add_dense(all);
  add_convolutions(all);
  add_attention(all);
  add_pointwise(all);
  add_estimator(all);
  add_estimator_steps(all);
  add_teacher(all);
  add_blocks(all);
  return all;
}

}  // namespace brine::selftest
