// The registry of attention methods.
#include "nn/attention/attention.h"

#include <utility>

namespace brine::nn {

std::map<std::string, AttentionMethodFactory>& attention_methods() {
  static std::map<std::string, AttentionMethodFactory> methods;
  return methods;
}

std::map<std::string, std::string>& attention_presets() {
  static std::map<std::string, std::string> presets;
  return presets;
}

std::unique_ptr<AttentionState> Attention::make_state(const StateRequest&) const {
  throw Error("attention: this method cannot be decoded token by token");
}

Tensor Attention::step(const AttentionInput&, AttentionState&) const {
  throw Error("attention: this method cannot be decoded token by token");
}

std::unique_ptr<Attention> AttentionMethod::make(Init& init, const AttentionShape& shape) const {
  const bool base_values = std::exchange(init.base_values, true);
  std::unique_ptr<Attention> made = make_block(init, shape);
  init.base_values = base_values;
  check(shape.groups() >= 1 && shape.heads % shape.groups() == 0, name(), ": kv_heads ",
        shape.groups(), " do not divide ", shape.heads, " heads");
  check(shape.groups() == shape.heads || made->traits().groups, name(), ": kv_heads ",
        shape.groups(), " of ", shape.heads, " heads is not supported");
  return made;
}

std::unique_ptr<AttentionMethod> attention_method(const std::string& name) {
  auto it = attention_methods().find(name);
  if (it == attention_methods().end()) {
    std::string known;
    for (auto& [known_name, factory] : attention_methods()) known += " " + known_name;
    check(false, "attention: no method named '", name, "'; known:", known);
  }
  return it->second();
}

bool is_full_attention(const std::string& method) { return method == "flash" || method == "dense"; }

}  // namespace brine::nn
