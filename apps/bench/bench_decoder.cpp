// A causal model of OPT-125M's shape on windows of 2,048 tokens: a training step of the dense
// model, a distillation step next to its teacher, and the share of one large product's rate that
// their products alone reach. tests/peer/distill.py --shape opt-125m runs the same distillation.
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/bench/parts/step.h"
#include "autograd/compute_type.h"
#include "distill/losses/losses.h"
#include "nn/io/model_io.h"
#include "nn/optim/optimizer.h"
#include "tensor/device/allocator.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

nn::ModelConfig config_of(int64_t T) {
  nn::ModelConfig c = nn::make_config("opt", {{"vocab_size", sized(50272, 100)},
                                              {"hidden_size", sized(768, 48)},
                                              {"num_hidden_layers", sized(12, 1)},
                                              {"num_attention_heads", 12},
                                              {"ffn_dim", sized(3072, 96)},
                                              {"max_position_embeddings", T}});
  c.attention = "flash";
  return c;
}

// GFLOP/s of a square product, its factors in the computing type of layers.
double product_rate(RowSink& rows) {
  const int64_t n = sized(default_device().is_cuda() ? 8192 : 2048, 48);
  auto factor = [&](uint64_t seed) {
    const Tensor x = noise({n, n}, seed);
    Tensor rounded = Tensor::empty({n, n}, compute_type(), x.device());
    BRINE_CALL(rounded, copy, rounded, x);
    return rounded;
  };
  const Tensor a = factor(1), b = factor(2), y = Tensor::empty({n, n}, Dtype::f32, a.device());
  const double ms = median_time([&] { BRINE_CALL(y, matmul, y, a, b, false, false, 1, 0); });
  const double rate = 2 * double(n) * double(n) * double(n) / ms / 1e6;
  rows.add(
      {join("product, ", compute_type()), join(n, " x ", n, " x ", n), ms, rate, "GFLOP/s", 1});
  return rate;
}

// Every dense layer of a step, forward and backward, including rounding and biases.
BenchRow dense_layers(const nn::ModelConfig& config, int64_t tokens, double limit) {
  struct Layer {
    int64_t in, out, count;
    bool bias;
  };
  const nn::ModelShape o = config.shape();
  const int64_t C = o.hidden_size, L = o.layers;
  const Layer layers[] = {{C, 3 * C, L, true},
                          {C, C, L, true},
                          {C, o.inner_size, L, true},
                          {o.inner_size, C, L, true},
                          {C, o.vocab_size, 1, false}};
  double ms = 0, flops = 0;
  for (const Layer& l : layers) {
    const Tensor x = require_grad(noise({tokens, l.in}, 1));
    const Tensor w = require_grad(noise({l.out, l.in}, 2));
    const Tensor bias = l.bias ? require_grad(noise({l.out}, 3)) : Tensor();
    const Tensor dy = noise({tokens, l.out}, 4);
    ms += double(l.count) * median_time([&] { backward(linear(x, w, bias), dy); });
    flops += 6 * double(l.count) * double(tokens) * double(l.in) * double(l.out);
  }
  const double rate = flops / ms / 1e6;
  return {"dense layers of a step",
          join("[", tokens, ", ", C, "] x ", L),
          ms,
          rate,
          "GFLOP/s",
          rate / limit};
}

}  // namespace

void decoder_rows(RowSink& rows) {
  const int64_t B = default_device().is_cuda() ? sized(4, 1) : 1, T = sized(2048, 64);
  nn::ModelConfig config = config_of(T);
  rows.attempt("dense layers of a step", join("[", B * T, ", ", config.shape().hidden_size, "]"),
               [&] {
                 const double limit = product_rate(rows);
                 trim();
                 rows.add(dense_layers(config, B * T, limit));
               });
  trim();
  const distill::Batch batch = random_batch(B, T, config.shape().vocab_size);
  const std::string shape =
      join("[", B, ", ", T, ", ", config.shape().hidden_size, "] x ", config.shape().layers);
  const std::shared_ptr<nn::Model> teacher = nn::make_model(config, 1);
  nn::ParameterStore teacher_store(*teacher);
  auto step = [&](const char* name, nn::Model& model, nn::ParameterStore& store,
                  distill::Teacher* beside, const distill::LossConfig& weights) {
    rows.attempt(name, shape, [&] {
      distill::Objective objective(model, beside, weights);
      nn::Adamw adamw(store, {});
      RandomStream random{.seed = 1, .stream = 2};
      rows.add(step_row(name, shape, B * T, [&] {
        training_step(objective, batch, {.random = &random}, store, adamw);
      }));
    });
    trim();
  };
  step("decoder, flash: training step", *teacher, teacher_store, nullptr, distill::task_only());
  config.attention = "sea";
  data::Schema keys;
  config.describe_attention(keys);
  keys.set_all({{"attention", {{"method", "sea"}, {"k", 64}, {"decoder", "lean"}}}});
  const std::unique_ptr<nn::Model> student = nn::make_student(config, *teacher, 2);
  nn::ParameterStore store(*student);
  distill::OnlineTeacher beside(teacher);
  step("decoder, SEA: distillation, online teacher", *student, store, &beside, {});
}

}  // namespace brine::bench
