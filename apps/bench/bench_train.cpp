// Whole steps: an encoder layer of BERT's size, a distillation step of the quickstart's model, and
// steps of larger models.
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/bench/parts/step.h"
#include "distill/losses/losses.h"
#include "nn/io/model_io.h"
#include "nn/optim/optimizer.h"
#include "tensor/device/allocator.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

// Post-LN, GELU with erf, full attention without causality, no dropout.
struct BertLayer : nn::Module {
  BertLayer(nn::Init& init, int64_t C, int64_t heads, int64_t inner)
      : heads(heads),
        query(child<nn::Linear>("query", init, C, C)),
        key(child<nn::Linear>("key", init, C, C)),
        value(child<nn::Linear>("value", init, C, C)),
        output(child<nn::Linear>("output", init, C, C)),
        fc1(child<nn::Linear>("fc1", init, C, inner)),
        fc2(child<nn::Linear>("fc2", init, inner, C)),
        norm1(child<nn::LayerNorm>("norm1", init, C)),
        norm2(child<nn::LayerNorm>("norm2", init, C)),
        qkv_weight(pack({&query.weight, &key.weight, &value.weight})),
        qkv_bias(pack({query.bias, key.bias, value.bias})) {}

  Tensor operator()(const Tensor& x) const {
    Tensor qkv = linear(x, qkv_weight.value, qkv_bias.value);  // [B, T, 3C]
    Tensor context = flash_attention(
        split_heads(qkv, heads, 0, 3 * heads), split_heads(qkv, heads, heads, 3 * heads),
        split_heads(qkv, heads, 2 * heads, 3 * heads), {.causal = false});
    Tensor h = norm1(add(x, output(context)));
    return norm2(add(h, fc2(gelu(fc1(h)))));
  }

  int64_t heads;
  nn::Linear &query, &key, &value, &output, &fc1, &fc2;
  nn::LayerNorm &norm1, &norm2;
  nn::Packed &qkv_weight, &qkv_bias;
};

BenchRow bench_bert_layer() {
  const int64_t B = sized(8, 1), T = sized(256, 32), C = sized(768, 96), heads = 12;
  const int64_t inner = 4 * C;
  nn::Init init{.random = {.seed = 1}};
  BertLayer layer(init, C, heads, inner);
  nn::ParameterStore store(layer);
  nn::Adamw adamw(store, {.learning_rate = 1e-4, .clip = 0});
  Tensor x = noise({B, T, C}, 1), dy = noise({B, T, C}, 2), dx = Tensor::zeros_like(x);
  BenchRow row = step_row("encoder layer", join("[", B, ", ", T, ", ", C, "]"), B * T, [&] {
    store.zero_gradients();
    BRINE_CALL(dx, fill, dx, 0.0);
    backward(layer(require_grad(x, dx)), dy);
    adamw.step(1, 0);
  });
  const double flops = 6.0 * double(B * T) * double(4 * C * C + 2 * C * inner + 2 * T * C);
  row.notes.insert(row.notes.begin(), {"tokens_per_second", row.rate});
  row.rate = flops / row.ms / 1e6;
  row.unit = "GFLOP/s";
  row.share = share_of_peak(row.rate);
  return row;
}

BenchRow bench_distill() {
  const int64_t B = sized(4, 1), T = sized(512, 64);
  Student student(512);
  const distill::Batch batch = random_batch(B, T, student.config.shape().vocab_size);
  distill::OnlineTeacher beside(student.teacher);
  distill::Objective objective(*student.model, &beside, {});
  nn::Adamw adamw(*student.store, {});
  RandomStream random{.seed = 1, .stream = 2};
  return step_row("distil, online teacher", join("[", B, ", ", T, ", 256] x 4"), B * T, [&] {
    training_step(objective, batch, {.random = &random}, *student.store, adamw);
  });
}

}  // namespace

void bench_train(RowSink& rows) {
  rows.attempt("encoder layer", "", [&] { rows.add(bench_bert_layer()); });
  rows.attempt("distil, online teacher", "", [&] { rows.add(bench_distill()); });
  encoder_rows(rows);
  decoder_rows(rows);
}

}  // namespace brine::bench
