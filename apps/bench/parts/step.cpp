// Training steps of the bench, with the product timer on.
#include "apps/bench/parts/step.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "nn/io/model_io.h"
#include "tensor/base/random.h"
#include "tensor/device/allocator.h"
#include "tensor/functions/transfer.h"
#include "tensor/meter/product_timer.h"

namespace brine::bench {

BenchRow step_row(const std::string& name, const std::string& shape, int64_t tokens,
                  const std::function<void()>& step) {
  for (int i = 0; i < 3; ++i) step();
  const int64_t calls = allocator_stats().system_calls;
  reset_peak();
  int64_t runs = 0, waits = 0;
  const double before = ProductTimer::total_ms();
  double all = 0;
  ProductTimer::enable(true);
  const double ms = median_time(
      [&] {
        const double start = now_ms();
        const int64_t waits_before = cuda::waits();
        step();
        waits += cuda::waits() - waits_before;
        all += now_ms() - start;
        ++runs;
      },
      3);
  ProductTimer::enable(false);
  const AllocatorStats memory = allocator_stats();
  const double products = ProductTimer::total_ms() - before;
  BenchRow row{.name = name,
               .shape = shape,
               .ms = ms,
               .rate = double(tokens) / ms * 1e3,
               .unit = "tokens/s",
               .peak = memory.peak_live};
  // Products are timed when the CPU computes them.
  row.notes.push_back(default_device().is_cuda()
                          ? std::pair{"waits_per_step", double(waits) / double(runs)}
                          : std::pair{"share_in_products", products / all});
  row.notes.push_back({"system_allocations_after_third_step", double(memory.system_calls - calls)});
  row.notes.push_back({"steps", double(runs)});
  return row;
}

Student::Student(int64_t positions) {
  config = nn::make_config("opt", {{"vocab_size", 4096},
                                   {"hidden_size", 256},
                                   {"num_hidden_layers", 4},
                                   {"num_attention_heads", 8},
                                   {"ffn_dim", 1024},
                                   {"max_position_embeddings", positions}});
  config.attention = "flash";
  teacher = nn::make_model(config, 1);
  teacher_store = std::make_unique<nn::ParameterStore>(*teacher);
  config.attention = "sea";
  data::Schema keys;
  config.describe_attention(keys);
  keys.set_all({{"attention", {{"method", "sea"}, {"k", 16}, {"decoder", "lean"}}}});
  model = nn::make_student(config, *teacher, 2);
  store = std::make_unique<nn::ParameterStore>(*model);
}

void training_step(distill::Objective& objective, const distill::Batch& batch,
                   const distill::Objective::Call& call, nn::ParameterStore& store,
                   nn::Adamw& adamw) {
  store.zero_gradients();
  const distill::PendingTerms pending = objective.accumulate(batch, call);
  distill::LossTerms terms;
  adamw.step(1, std::sqrt(distill::read_terms({pending}, {adamw.gradient_squares()}, terms)[0]));
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

}  // namespace brine::bench
