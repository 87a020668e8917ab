// Blocks and inputs of the attention benches.
#include "apps/bench/parts/block.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/terminal/terminal.h"

namespace brine::bench {

Block make_block(const std::string& method, const data::Json& settings,
                 const nn::AttentionShape& shape, const std::string& variant) {
  std::unique_ptr<nn::AttentionMethod> made = nn::attention_method(method);
  data::Schema keys;
  made->describe(keys);
  for (const auto& [key, value] : settings.items()) {
    if (keys.find(key)) keys.set(key, value);
  }
  nn::Init init{.random = {.seed = 1}};
  Block block;
  block.name = variant.empty() ? method : method + " " + variant;
  try {
    block.attention = made->make(init, shape);
  } catch (const Error& refusal) {
    log_info(block.name, ": ", refusal.what());
    return block;
  }
  if (!block.attention->named_parameters().empty()) {
    block.store = std::make_unique<nn::ParameterStore>(*block.attention);
  } else {
    nn::move_buffers(*block.attention, default_device());
  }
  return block;
}

std::string block_shape(BlockKind kind, int64_t T) {
  const std::string groups = kind.kv_heads ? join(" over ", kind.kv_heads) : "";
  return join("[1, ", kind.heads, groups, ", ", T, ", ", kind.head_size, "]");
}

void pass(nn::Attention& attention, const nn::AttentionInput& in, const Tensor& dy, bool train) {
  if (train) return backward(attention.forward(in), dy);
  NoGrad off;
  attention.forward(in);
}

void each_block(RowSink& rows, int64_t positions, const std::vector<std::string>& only,
                BlockKind kind, const std::function<void(Block&)>& f) {
  const nn::AttentionShape shape{.heads = kind.heads,
                                 .head_size = kind.head_size,
                                 .max_positions = positions,
                                 .causal = kind.causal,
                                 .kv_heads = kind.kv_heads};
  auto asked = [&](const std::string& name) {
    return std::find(only.begin(), only.end(), name) != only.end();
  };
  auto add = [&](const std::string& method, data::Json settings, const std::string& variant) {
    if (!only.empty() && !asked(method) && !asked(method + " " + variant)) return;
    const bool blocks = method.find("blocks") != method.npos;  // which have other numbers
    if (kind.k > 0 || !blocks) settings["k"] = kind.k > 0 ? kind.k : kKept;
    if (!blocks && !settings.contains("columns")) settings["columns"] = kind.columns;
    rows.attempt(variant.empty() ? method : method + " " + variant, "", [&] {
      Block block = make_block(method, settings, shape, variant);
      if (block.attention) return f(block);
      check(only.empty(), "cannot have this shape");
    });
  };
  for (const auto& [method, factory] : nn::attention_methods()) {
    data::Schema keys;
    const std::unique_ptr<nn::AttentionMethod> made = factory();
    made->describe(keys);
    if (!keys.find("preset")) {  // the method has no decoder
      add(method, data::Json::object(), "");
      continue;
    }
    add(method, {{"decoder", "paper"}}, "paper");
    add(method, {{"preset", "light"}}, "light");
    const std::string wide = join("light, ", kWideColumns, " columns");
    add(method, {{"preset", "light"}, {"columns", kWideColumns}}, wide);
  }
}

namespace {

// x [1, H, T, d] with rows that are alike the rows before them, at the same variance: blocks then
// keep 1,316 keys a tile of 8,192 tokens, in SmolLM2-135M 1,257 (n = 15).
Tensor alike(const Tensor& x) {
  const double keep = 0.98, rest = std::sqrt(1 - keep * keep);
  const Tensor host = x.to(Device{}).clone();
  const int64_t d = x.dim(3);
  for (int64_t h = 0; h < x.dim(1); ++h) {
    float* rows = host.data<float>() + h * x.dim(2) * d;
    for (int64_t i = d; i < x.dim(2) * d; ++i) rows[i] = float(keep * rows[i - d] + rest * rows[i]);
  }
  return host.to(x.device());
}

}  // namespace

Inputs::Inputs(int64_t T, int64_t heads, int64_t head_size, bool causal, int64_t kv_heads)
    : hidden(noise({1, T, heads * head_size}, 4)),
      dy(noise({1, T, heads * head_size}, 5)),
      causal(causal) {
  for (uint64_t i = 0; i < 3; ++i) {
    const int64_t tensor_heads = i == 0 || kv_heads == 0 ? heads : kv_heads;
    Tensor x = noise({1, tensor_heads, T, head_size}, i + 1);
    if (i == 0) x = alike(x);
    leaves.push_back(require_grad(x, Tensor::zeros_like(x)));
  }
}

}  // namespace brine::bench
