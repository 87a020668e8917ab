// Every registered attention method is a variant of the section [attention].
#include "apps/attention_choice.h"

#include "tensor/error.h"

namespace brine {

AttentionChoice::AttentionChoice(const std::string& method) : method_(method) {
  for (auto& [name, make] : nn::attention_methods()) methods_[name] = make();
}

void AttentionChoice::describe(nn::Schema& s) {
  std::vector<nn::Variant> variants;
  for (auto& [name, method] : methods_) {
    variants.push_back({name, [each = method.get()](nn::Schema& keys) { each->describe(keys); }});
  }
  s.variants("attention", "method", method_, variants, "Attention method of every layer");
}

nn::AttentionMethod& AttentionChoice::chosen() const {
  auto place = methods_.find(method_);
  check(place != methods_.end(), "attention: no method is named \"", method_, "\"");
  return *place->second;
}

}  // namespace brine
