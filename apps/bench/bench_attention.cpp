// The attention block, q, k, v to context, of every causal method: how its cost grows with T.
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/terminal.h"
#include "nn/attention.h"
#include "nn/parameter_store.h"
#include "tensor/allocator.h"

namespace brine::bench {
namespace {

constexpr int64_t kHeads = 12, kHeadSize = 64, kKept = 64, kColumns = 64;
// A T x T method stops where its maps would take more than this.
constexpr double kMostMapBytes = 6e9;

Tensor noise(const Shape& shape, uint64_t seed) {
  Tensor x = Tensor::empty(shape);
  const RandomSlice slice{seed, 0, 0};
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = float(slice.normal(uint64_t(i)));
  return x;
}

struct Block {
  std::string name;  // "sea lean"
  std::unique_ptr<nn::Attention> attention;
  std::unique_ptr<nn::ParameterStore> store;
};

// Sets those of the common keys that the method has. Null when it refuses a causal model.
Block make_block(const std::string& method, const nn::Json& settings) {
  std::unique_ptr<nn::AttentionMethod> made = nn::attention_method(method);
  nn::Schema keys;
  made->describe(keys);
  for (const auto& [key, value] : settings.items()) {
    if (keys.find(key)) keys.set(key, value);
  }
  nn::Init init{.random = {.seed = 1}};
  Block block;
  block.name = method;
  if (keys.find("decoder")) block.name += " " + settings["decoder"].get<std::string>();
  try {
    block.attention = made->make(
        init, {.heads = kHeads, .head_size = kHeadSize, .max_positions = 16384, .causal = true});
  } catch (const Error& refusal) {
    log_info(block.name, ": ", refusal.what());
    return block;
  }
  if (!block.attention->named_parameters().empty()) {
    block.store = std::make_unique<nn::ParameterStore>(*block.attention);
  }
  return block;
}

struct Inputs {
  explicit Inputs(int64_t T)
      : hidden(noise({1, T, kHeads * kHeadSize}, 4)), dy(noise({1, T, kHeads * kHeadSize}, 5)) {
    for (uint64_t i = 0; i < 3; ++i) {
      Tensor x = noise({1, kHeads, T, kHeadSize}, i + 1);
      leaves.push_back(require_grad(x, Tensor::zeros_like(x)));
    }
  }
  nn::AttentionInput input() const {
    return {.q = leaves[0], .k = leaves[1], .v = leaves[2], .hidden = hidden};
  }

  std::vector<Tensor> leaves;
  Tensor hidden, dy;
};

BenchRow measure(const Block& block, const Inputs& in, int64_t T, bool train) {
  auto run = [&] {
    if (train) {
      backward(block.attention->forward(in.input()), in.dy);
    } else {
      NoGrad off;
      block.attention->forward(in.input());
    }
  };
  run();
  const int64_t before = allocator_stats().live;
  reset_peak();
  const double ms = median_time(run, 0.5);
  const int64_t peak = allocator_stats().peak_live;
  return {.name = block.name + (train ? ", forward + backward" : ", forward"),
          .shape = join("[1, ", kHeads, ", ", T, ", ", kHeadSize, "]"),
          .ms = ms,
          .rate = double(T) / ms * 1e3,
          .unit = "tokens/s",
          .peak = peak,
          .notes = {{"us_per_token", ms * 1e3 / double(T)},
                    {"block_bytes_per_token", double(peak - before) / double(T)}}};
}

void bench_block(const Block& block, std::vector<BenchRow>& rows) {
  double first[2] = {0, 0};
  for (int64_t T : token_counts()) {
    const double maps = 4.0 * 3 * double(kHeads) * double(T) * double(T);
    if (!block.attention->traits().linear && maps > kMostMapBytes) {
      log_info(block.name, ": left out at T = ", T, ", its maps would take ", human_bytes(maps));
      continue;
    }
    const Inputs in(T);
    for (bool train : {false, true}) {
      BenchRow row = measure(block, in, T, train);
      const double each = row.ms / double(T);
      if (first[train] == 0) first[train] = each;
      row.ratio = each / first[train];
      rows.push_back(row);
    }
    trim();
  }
}

}  // namespace

std::vector<BenchRow> bench_attention() {
  std::vector<BenchRow> rows;
  for (const auto& [method, factory] : nn::attention_methods()) {
    for (const char* decoder : {"lean", "paper"}) {
      const Block block =
          make_block(method, {{"k", kKept}, {"columns", kColumns}, {"decoder", decoder}});
      if (block.attention) bench_block(block, rows);
      if (block.name == method) break;  // it has no decoder
    }
  }
  return rows;
}

}  // namespace brine::bench
