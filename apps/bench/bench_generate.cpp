// Reading a text and continuing it with a whole model, its own attention against full attention.
#include <algorithm>

#include "apps/bench/bench.h"
#include "apps/bench/parts/trained_layer.h"
#include "nn/io/extend.h"
#include "nn/models/model_state.h"
#include "tensor/device/allocator.h"

namespace brine::bench {
namespace {

constexpr int64_t kSteps = 24;  // tokens that a row takes the median of

nn::LoadedModel long_enough(nn::LoadedModel model, int64_t positions) {
  if (model.config.shape().max_positions >= positions) return model;
  return nn::extend_positions(model, positions);
}

struct Times {
  double prefill = 0, step = 0, attention = 0;  // milliseconds
  int64_t bytes = 0;                            // of the state
};

// One prompt, then tokens one by one; then the attention of all layers alone, on the same states.
Times times_of(nn::Model& model, const std::vector<int32_t>& ids) {
  NoGrad off;
  const int64_t context = int64_t(ids.size()), steps = sized(kSteps, 2);
  nn::ModelState state(model, {.capacity = context + 2 * steps});
  Times out{.bytes = state.bytes()};
  const double start = now_ms();
  nn::prefill(model, state, 0, Tensor::from(ids, {context}));
  finish();
  out.prefill = now_ms() - start;
  std::vector<double> each;
  auto timed = [&](const std::function<void()>& f) {
    each.clear();
    for (int64_t i = 0; i < steps; ++i) {
      const double before = now_ms();
      f();
      finish();
      each.push_back(now_ms() - before);
    }
    return median(each);
  };
  const Tensor next = Tensor::from(std::vector<int32_t>{ids.front()}, {1});
  out.step = timed([&] { model.logits(nn::step(model, state, next)); });
  const nn::AttentionShape shape = model.shape().attention();
  auto row = [&](int64_t heads, uint64_t seed) {
    return noise({1, heads, 1, shape.head_size}, seed);
  };
  const nn::AttentionInput in{.q = row(shape.heads, 1),
                              .k = row(shape.groups(), 2),
                              .v = row(shape.groups(), 3),
                              .q_content = row(shape.heads, 4),
                              .k_content = row(shape.groups(), 5),
                              .hidden = Tensor(),
                              .visible = {},
                              .options = state.options};
  out.attention = timed([&] {
    for (int64_t l = 0; l < model.shape().layers; ++l) model.attention(l).step(in, state.layer(l));
  });
  return out;
}

}  // namespace

std::vector<BenchRow> bench_generate(const std::string& path, const std::string& data,
                                     std::vector<int64_t> contexts) {
  if (contexts.empty()) {
    contexts = is_quick() ? std::vector<int64_t>{48} : std::vector<int64_t>{1024, 4096, 8192};
  }
  const int64_t longest = *std::max_element(contexts.begin(), contexts.end());
  const std::vector<int32_t> ids = text_tokens(path, data, longest);
  const nn::LoadedModel own = long_enough(nn::load_model(path), longest + 2 * kSteps);
  nn::ModelConfig full_config = own.config;
  full_config.attention = "flash";
  const std::unique_ptr<nn::Model> full = nn::make_student(full_config, *own.model, 0);
  std::vector<BenchRow> rows;
  for (int64_t context : contexts) {
    const std::vector<int32_t> text(ids.begin(), ids.begin() + context);
    const Times dense = times_of(*full, text);
    trim();
    auto add = [&](const std::string& name, const Times& t) {
      const double tokens = double(context);
      auto row = [&](const char* what, double ms, double reference, double count) {
        rows.push_back({.name = join(name, ", ", what),
                        .shape = join("context ", context),
                        .ms = ms,
                        .rate = count / ms * 1e3,
                        .unit = "tokens/s",
                        .ratio = reference / ms,
                        .peak = t.bytes});
      };
      row("prompt", t.prefill, dense.prefill, tokens);
      row("token", t.step, dense.step, 1);
      row("attention of a token", t.attention, dense.attention, 1);
      rows.back().notes = {{"state_to_full", double(t.bytes) / double(dense.bytes)}};
    };
    add("flash", dense);
    if (own.config.attention != "flash") add(own.config.attention, times_of(*own.model, text));
    trim();
  }
  return rows;
}

}  // namespace brine::bench
