// An encoder of MiniLM's size (6 layers x 384, 12 heads) on batches of 32 x 128 tokens: forward and
// a training step of a classifier, with full attention and with SEA. tests/peer/minilm.py runs the
// same.
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/bench/parts/step.h"
#include "distill/losses/losses.h"
#include "nn/models/model_config.h"
#include "nn/optim/optimizer.h"
#include "tensor/device/allocator.h"

namespace brine::bench {
namespace {

nn::ModelConfig config_of(const std::string& attention) {
  nn::ModelConfig c = nn::make_config("bert", {{"vocab_size", sized(30522, 100)},
                                               {"hidden_size", sized(384, 48)},
                                               {"num_hidden_layers", sized(6, 1)},
                                               {"num_attention_heads", 12},
                                               {"intermediate_size", sized(1536, 96)},
                                               {"max_position_embeddings", 512},
                                               {"hidden_dropout_prob", 0}});
  c.attention = attention;
  c.family().set_class_head({.labels = 2});
  data::Schema keys;
  c.describe_attention(keys);
  if (attention == "sea") {
    keys.set_all({{"attention", {{"method", "sea"}, {"k", 13}, {"mode", "per-batch"}}}});
  }
  return c;
}

void bench_model(const std::string& attention, RowSink& rows) {
  const int64_t B = sized(32, 2), T = sized(128, 16);
  nn::ModelConfig config = config_of(attention);
  auto model = nn::make_model(config, 1);
  nn::ParameterStore store(*model);
  distill::Batch batch = random_batch(B, T, config.shape().vocab_size);
  batch.classes = Tensor::zeros({B}, Dtype::i32);
  const std::string shape = join("[", B, ", ", T, "]"), name = "encoder, " + attention;
  rows.add(step_row(name + ": forward", shape, B * T, [&] {
    NoGrad off;
    model->class_logits(model->hidden({.ids = batch.ids}));
  }));
  trim();
  distill::Objective objective(*model, nullptr, distill::task_only());
  nn::Adamw adamw(store, {});
  RandomStream random{.seed = 1, .stream = 2};
  rows.add(step_row(name + ": training step", shape, B * T,
                    [&] { training_step(objective, batch, {.random = &random}, store, adamw); }));
  trim();
}

}  // namespace

void encoder_rows(RowSink& rows) {
  for (const std::string attention : {"flash", "sea"})
    rows.attempt("encoder, " + attention, "", [&] { bench_model(attention, rows); });
}

}  // namespace brine::bench
