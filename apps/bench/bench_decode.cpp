// Decoding one token after a context: the attention step of every method that supports it, of a
// layer of OPT-125M's sizes.
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/bench/bench.h"
#include "apps/bench/parts/block.h"
#include "nn/models/model_config.h"
#include "nn/models/model_state.h"
#include "tensor/base/parallel.h"
#include "tensor/device/allocator.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

// Cheap pseudo-random numbers around 0, of about unit size times `scale`.
void fill_noise(const Tensor& t, float scale, uint64_t seed) {
  float* x = t.data<float>();
  parallel_for(t.numel(), 1 << 16, [=](int64_t begin, int64_t end) {
    uint64_t state = (seed + 1) * 0x9E3779B97F4A7C15u + uint64_t(begin) * 0xD1342543DE82EF95u;
    for (int64_t i = begin; i < end; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x[i] = scale * 3.4f * (float(state >> 40) / float(1 << 24) - 0.5f);
    }
  });
}

Tensor quick_noise(const Shape& shape, uint64_t seed) {
  Tensor t = Tensor::empty(shape);
  fill_noise(t, 1, seed);
  return t.to(default_device());
}

// Evicts the caches, as the weights of a model do between two uses of a layer: reads, and on a
// device writes.
double sweep() {
  if (default_device().is_cuda()) {
    static const Tensor buffer =
        Tensor::empty({sized(64 << 20, 1 << 10)}, Dtype::f32, default_device());
    BRINE_CALL(buffer, fill, buffer, 0.0);
    return 0;
  }
  static const Tensor block = Tensor::zeros({sized(24 << 20, 1 << 10)});
  const float* x = block.data<float>();
  const int64_t pieces = 64, piece = block.numel() / pieces;
  std::vector<double> sums(pieces, 0.0);
  parallel_for(pieces, 1, [&](int64_t p, int64_t) {
    for (int64_t i = p * piece; i < (p + 1) * piece; i += 16) sums[size_t(p)] += double(x[i]);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Median of f, each time after a sweep, which does not count.
double swept_time(const std::function<void()>& f) {
  std::vector<double> times;
  f();
  for (int run = 0; run < int(sized(101, 1)); ++run) {
    check(sweep() == 0, "bench: the sweep read something else");
    finish();
    const double start = now_ms();
    f();
    finish();
    times.push_back(now_ms() - start);
  }
  return median(times);
}

// `variant`: of SEA a decoder, or the preset light.
nn::ModelConfig config_of(const std::string& method, const std::string& variant,
                          int64_t positions) {
  const bool quick = is_quick();
  nn::ModelConfig config = nn::make_config("opt", {{"vocab_size", quick ? 300 : 50272},
                                                   {"hidden_size", kHeads * kHeadSize},
                                                   {"num_hidden_layers", 1},
                                                   {"num_attention_heads", kHeads},
                                                   {"ffn_dim", quick ? 96 : 3072},
                                                   {"max_position_embeddings", positions}});
  config.attention = method;
  data::Schema keys = data::schema_of(config);
  std::map<std::string, std::string> settings;
  if (method.find("blocks") == method.npos)  // which have other numbers
    settings = {{"attention.k", "64"}, {"attention.columns", "64"}};
  settings[variant == "light" ? "attention.preset" : "attention.decoder"] = variant;
  for (const auto& [key, value] : settings) {
    if (keys.find(key)) keys.set_text(key, {value});
  }
  return config;
}

struct Made {
  std::unique_ptr<nn::Model> model;
  std::unique_ptr<nn::ParameterStore> store;
};

// Weights of about the usual size, without the time of the usual initialisation.
Made make(const std::string& method, const std::string& variant, int64_t positions) {
  Made m;
  m.model = nn::make_model(config_of(method, variant, positions),
                           nn::Init{.random = {.seed = 1}, .device = Device::meta});
  m.store = std::make_unique<nn::ParameterStore>(*m.model, nn::ParameterStore::Gradients::later);
  const Tensor& weights = m.store->values();
  const bool on_host = !weights.device().is_cuda();
  const Tensor values = on_host ? weights : Tensor::zeros(weights.shape());
  uint64_t seed = 0;
  for (const auto& entry : m.store->entries()) {
    const bool gain = entry.path.find("norm") != std::string::npos;
    fill_noise(values.slice(0, entry.offset, entry.size), 0.02f, ++seed);
    if (!gain) continue;
    float* x = values.data<float>() + entry.offset;
    for (int64_t i = 0; i < entry.size; ++i) x[i] += 1;
  }
  if (!on_host) assign(weights, values);
  m.model->attention(0).calibrate(quick_noise({1, kHeads, 64, kHeadSize}, 8), {});
  return m;
}

// A state with `context` tokens of noise in every slot.
void fill_state(const Made& m, nn::ModelState& state, int64_t context) {
  NoGrad off;
  nn::AttentionState& first = state.layer(0);
  if (nn::is_full_attention(m.model->attention_name())) {
    auto& cache = dynamic_cast<nn::KeyValueState&>(first);
    const Tensor rows = quick_noise({1, kHeads, context, kHeadSize}, 7);
    cache.fill(0, rows, rows, {});
  } else {
    const Shape heads{1, kHeads, context, kHeadSize};
    m.model->attention(0).forward({.q = quick_noise(heads, 7),
                                   .k = quick_noise(heads, 8),
                                   .v = quick_noise(heads, 9),
                                   .hidden = quick_noise({1, context, kHeads * kHeadSize}, 10),
                                   .visible = {},
                                   .options = state.options,
                                   .state = &first,
                                   .slot = 0});
    trim();
  }
  for (int64_t slot = 1; slot < state.batch(); ++slot) first.restore(slot, first.saved(0), "bench");
}

// Variants of a method that get a separate row.
std::vector<std::string> variants_of(const std::string& method) {
  if (method != "sea") return {""};
  return {"paper", "light"};
}

// One attention step of a layer, milliseconds.
double step_time(const Made& m, nn::ModelState& state) {
  NoGrad off;
  const Shape row{state.batch(), kHeads, 1, kHeadSize};
  const nn::AttentionInput in{.q = quick_noise(row, 1),
                              .k = quick_noise(row, 2),
                              .v = quick_noise(row, 3),
                              .hidden = quick_noise({state.batch(), 1, kHeads * kHeadSize}, 4),
                              .visible = {},
                              .options = state.options};
  return swept_time([&] { m.model->attention(0).step(in, state.layer(0)); });
}

}  // namespace

void bench_decode(RowSink& rows) {
  // The first is the one to which the others are compared.
  const std::vector<int64_t> contexts =
      is_quick() ? std::vector<int64_t>{96, 64} : std::vector<int64_t>{4096, 1024, 16384, 65536};
  std::map<int64_t, double> dense;
  const int64_t spare = 128;  // tokens that the runs add
  for (const auto& [method, factory] : nn::attention_methods()) {
    if (method == "dense") continue;  // decodes as flash does
    for (const std::string& variant : variants_of(method)) {
      const std::string name =
          join(method, variant.empty() ? "" : " ", variant, ", attention step");
      std::map<int64_t, double> each;
      for (int64_t context : contexts) {
        for (int64_t batch : {1, 16}) {
          if (batch > 1 && context != contexts[0]) continue;
          const std::string shape = join("context ", context, ", batch ", batch);
          rows.attempt(name, shape, [&] {
            const Made m = make(method, variant, context + spare);
            if (!m.model->attention_traits().incremental) return;
            nn::ModelState state(*m.model, {.batch = batch, .capacity = context + spare});
            fill_state(m, state, context);
            const double ms = step_time(m, state);
            BenchRow row{.name = name,
                         .shape = shape,
                         .ms = ms,
                         .rate = double(batch) / ms * 1e3,
                         .unit = "tokens/s",
                         .notes = {{"us_per_token", ms * 1e3 / double(batch)},
                                   {"state_bytes_per_token",
                                    double(state.bytes()) / double(batch * (context + spare))}}};
            if (batch == 1) each[context] = ms;
            if (batch == 1 && method == "flash") dense[context] = ms;
            if (batch == 1 && dense.count(context)) row.ratio = dense[context] / ms;
            if (batch == 1 && each.count(contexts[0]))  // how flat it is
              row.notes.push_back({join("to_context_", contexts[0]), ms / each[contexts[0]]});
            rows.add(row);
          });
        }
        trim();
      }
    }
  }
}

}  // namespace brine::bench
