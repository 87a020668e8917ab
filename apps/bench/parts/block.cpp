// Blocks and inputs of the attention benches.
#include "apps/bench/parts/block.h"

#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/cli/terminal.h"

namespace brine::bench {

Block make_block(const std::string& method, const data::Json& settings,
                 const nn::AttentionShape& shape) {
  std::unique_ptr<nn::AttentionMethod> made = nn::attention_method(method);
  data::Schema keys;
  made->describe(keys);
  for (const auto& [key, value] : settings.items()) {
    if (keys.find(key)) keys.set(key, value);
  }
  nn::Init init{.random = {.seed = 1}};
  Block block;
  block.name = method;
  if (keys.find("decoder")) block.name += " " + settings["decoder"].get<std::string>();
  try {
    block.attention = made->make(init, shape);
  } catch (const Error& refusal) {
    log_info(block.name, ": ", refusal.what());
    return block;
  }
  if (!block.attention->named_parameters().empty()) {
    block.store = std::make_unique<nn::ParameterStore>(*block.attention);
  }
  return block;
}

std::vector<Block> every_block(int64_t positions) {
  std::vector<Block> blocks;
  for (const auto& [method, factory] : nn::attention_methods()) {
    for (const char* decoder : {"lean", "paper"}) {
      Block block = make_block(
          method, {{"k", kKept}, {"columns", kColumns}, {"decoder", decoder}},
          {.heads = kHeads, .head_size = kHeadSize, .max_positions = positions, .causal = true});
      const bool has_decoders = block.name != method;
      if (block.attention) blocks.push_back(std::move(block));
      if (!has_decoders) break;
    }
  }
  return blocks;
}

Inputs::Inputs(int64_t T, int64_t heads, int64_t head_size)
    : hidden(noise({1, T, heads * head_size}, 4)), dy(noise({1, T, heads * head_size}, 5)) {
  for (uint64_t i = 0; i < 3; ++i) {
    Tensor x = noise({1, heads, T, head_size}, i + 1);
    leaves.push_back(require_grad(x, Tensor::zeros_like(x)));
  }
}

}  // namespace brine::bench
