// Whole steps: an encoder layer of BERT's size, and a distillation step of a small decoder.
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "distill/losses/losses.h"
#include "nn/io/model_io.h"
#include "nn/models/model_config.h"
#include "nn/optim/optimizer.h"
#include "nn/optim/parameter_store.h"
#include "tensor/base/random.h"
#include "tensor/device/allocator.h"
#include "tensor/functions/transfer.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

// Medians of a step, and its system calls for memory after the third; on a device how often it
// waits for it.
BenchRow step_row(const std::string& name, const std::string& shape, int64_t tokens,
                  const std::function<void()>& step) {
  for (int i = 0; i < 3; ++i) step();
  const int64_t calls = allocator_stats().system_calls;
  reset_peak();
  int64_t runs = 0, waits = 0;
  const double ms = median_time(
      [&] {
        const int64_t waits_before = cuda::waits();
        step();
        waits += cuda::waits() - waits_before;
        ++runs;
      },
      3);
  const AllocatorStats memory = allocator_stats();
  BenchRow row{.name = name,
               .shape = shape,
               .ms = ms,
               .rate = double(tokens) / ms * 1e3,
               .unit = "tokens/s",
               .peak = memory.peak_live};
  if (default_device().is_cuda())
    row.notes.push_back({"waits_per_step", double(waits) / double(runs)});
  row.notes.push_back({"system_allocations_after_third_step", double(memory.system_calls - calls)});
  row.notes.push_back({"steps", double(runs)});
  return row;
}

distill::Batch random_batch(int64_t B, int64_t T, int64_t vocab) {
  distill::Batch batch;
  batch.ids = Tensor::empty({B, T}, Dtype::i32);
  batch.tokens = B * T;
  const RandomSlice slice{3, 0, 0};
  for (int64_t i = 0; i < B * T; ++i) {
    batch.ids.data<int32_t>()[i] = int32_t(slice.uniform(uint64_t(i) * 4) * double(vocab));
  }
  return batch;
}

// Post-LN, GELU with erf, full attention without causality, no dropout.
BenchRow bench_bert_layer() {
  const int64_t B = sized(8, 1), T = sized(256, 32), C = sized(768, 96), heads = 12;
  const int64_t inner = 4 * C;
  nn::ModelConfig config = nn::make_config("bert", {{"vocab_size", 8},
                                                    {"hidden_size", C},
                                                    {"num_hidden_layers", 1},
                                                    {"num_attention_heads", heads},
                                                    {"intermediate_size", inner},
                                                    {"max_position_embeddings", T},
                                                    {"hidden_dropout_prob", 0}});
  config.attention = "flash";
  const std::shared_ptr<nn::Model> model = nn::make_model(config, 1);
  nn::ParameterStore store(*model);
  nn::Adamw adamw(store, {.learning_rate = 1e-4, .clip = 0});
  Tensor x = noise({B, T, C}, 1), dy = noise({B, T, C}, 2), dx = Tensor::zeros_like(x);
  const Tensor ids = random_batch(B, T, 8).ids;
  BenchRow row = step_row("encoder layer", join("[", B, ", ", T, ", ", C, "]"), B * T, [&] {
    store.zero_gradients();
    BRINE_CALL(dx, fill, dx, 0.0);
    backward(model->layer(0, require_grad(x, dx), {.ids = ids}, nullptr), dy);
    adamw.step(1, 0);
  });
  const double flops = 6.0 * double(B * T) * double(4 * C * C + 2 * C * inner + 2 * T * C);
  row.notes.insert(row.notes.begin(), {"tokens_per_second", row.rate});
  row.rate = flops / row.ms / 1e6;
  row.unit = "GFLOP/s";
  return row;
}

// A teacher of 4 layers x 256 with 8 heads (configs/small-teacher.toml) and a student with its
// weights, SEA `paper` with k = 16 and 64 columns. Random weights, no dropout. A step is that of
// the trainer, which waits for a device once.
BenchRow bench_distill() {
  const int64_t B = sized(4, 1), T = sized(512, 64);
  nn::ModelConfig config = nn::make_config("opt", {{"vocab_size", 4096},
                                                   {"hidden_size", 256},
                                                   {"num_hidden_layers", 4},
                                                   {"num_attention_heads", 8},
                                                   {"ffn_dim", 1024},
                                                   {"max_position_embeddings", 512}});
  config.attention = "flash";
  const std::shared_ptr<nn::Model> teacher = nn::make_model(config, 1);
  const nn::ParameterStore teacher_store(*teacher);
  config.attention = "sea";
  data::Schema keys;
  config.describe_attention(keys);
  keys.set_all({{"attention", {{"method", "sea"}, {"k", 16}, {"decoder", "paper"}}}});
  const std::unique_ptr<nn::Model> student = nn::make_student(config, *teacher, 2);
  nn::ParameterStore store(*student);
  const distill::Batch batch = random_batch(B, T, config.shape().vocab_size);
  distill::OnlineTeacher beside(teacher);
  distill::Objective objective(*student, &beside, {});
  nn::Adamw adamw(store, {});
  RandomStream random{.seed = 1, .stream = 2};
  return step_row("distil, online teacher", join("[", B, ", ", T, ", 256] x 4"), B * T, [&] {
    store.zero_gradients();
    const distill::PendingTerms pending = objective.accumulate(batch, {.random = &random});
    distill::LossTerms terms;
    adamw.step(1, std::sqrt(distill::read_terms({pending}, {adamw.gradient_squares()}, terms)[0]));
  });
}

}  // namespace

void bench_train(const BenchRequest&, RowSink& rows) {
  rows.attempt("encoder layer", "", [&] { rows.add(bench_bert_layer()); });
  rows.attempt("distil, online teacher", "", [&] { rows.add(bench_distill()); });
}

}  // namespace brine::bench
