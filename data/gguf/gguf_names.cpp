// The architectures of GGUF that Brine reads, with the names of their tensors.
#include "data/gguf/gguf_names.h"

#include <string_view>

#include "data/io/printable.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

using Layout = GgufLayout;

// `pairs`: whether the converter orders the rows of queries and keys by pairs of rotary features.
GgufArchitecture llama_like(const char* name, const char* hf_class, bool pairs) {
  return {
      name,
      hf_class,
      "model.layers.",
      {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}},
      {{"attn_norm", "input_layernorm"},
       {"attn_q", "self_attn.q_proj", pairs ? Layout::query_pairs : Layout::same},
       {"attn_k", "self_attn.k_proj", pairs ? Layout::key_pairs : Layout::same},
       {"attn_v", "self_attn.v_proj"},
       {"attn_output", "self_attn.o_proj"},
       {"attn_q_norm", "self_attn.q_norm"},
       {"attn_k_norm", "self_attn.k_norm"},
       {"ffn_norm", "post_attention_layernorm"},
       {"ffn_gate", "mlp.gate_proj"},
       {"ffn_up", "mlp.up_proj"},
       {"ffn_down", "mlp.down_proj"}}};
}

GgufArchitecture gpt2() {
  return {"gpt2",
          "GPT2LMHeadModel",
          "transformer.h.",
          {{"token_embd", "transformer.wte"},
           {"position_embd", "transformer.wpe"},
           {"output_norm", "transformer.ln_f"},
           {"output", "lm_head"}},
          {{"attn_norm", "ln_1"},
           {"attn_qkv", "attn.c_attn", Layout::transposed},
           {"attn_output", "attn.c_proj", Layout::transposed},
           {"ffn_norm", "ln_2"},
           {"ffn_up", "mlp.c_fc", Layout::transposed},
           {"ffn_down", "mlp.c_proj", Layout::transposed}}};
}

const std::vector<GgufArchitecture>& architectures() {
  static const std::vector<GgufArchitecture> all = {
      gpt2(),
      llama_like("llama", "LlamaForCausalLM", true),
      llama_like("qwen2", "Qwen2ForCausalLM", false),
      llama_like("qwen3", "Qwen3ForCausalLM", false),
  };
  return all;
}

// The number and the rest of "blk.N.rest"; nothing for other names.
bool split_block(std::string_view name, std::string& number, std::string_view& rest) {
  if (!name.starts_with("blk.")) return false;
  const size_t dot = name.find('.', 4);
  if (dot == name.npos || dot == 4) return false;
  number = name.substr(4, dot - 4);
  rest = name.substr(dot + 1);
  return number.find_first_not_of("0123456789") == number.npos;
}

}  // namespace

const GgufArchitecture& gguf_architecture(const std::string& file, const std::string& name) {
  std::string known;
  for (const GgufArchitecture& a : architectures()) {
    if (a.name == name) return a;
    known += (known.empty() ? "" : ", ") + a.name;
  }
  throw Error(
      join(file, ": general.architecture '", shown(name), "' is not supported, only ", known),
      ErrorKind::format);
}

HfName hf_name(const GgufArchitecture& architecture, const std::string& name) {
  std::string number;
  std::string_view rest = name;
  const bool block = split_block(name, number, rest);
  const size_t dot = rest.rfind('.');
  if (dot == rest.npos) return {name};
  const std::string_view stem = rest.substr(0, dot), kind = rest.substr(dot);
  for (const auto& known : block ? architecture.inner : architecture.outer) {
    if (stem != known.gguf || (kind != ".weight" && kind != ".bias")) continue;
    std::string out = block ? architecture.blocks + number + "." : "";
    const bool turned = known.layout == Layout::transposed && kind == ".bias";
    return {out.append(known.hf).append(kind), turned ? Layout::same : known.layout};
  }
  return {name};
}

}  // namespace brine::data
