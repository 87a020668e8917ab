// Weights of a run: trained ones are read, constants compared.
#include "distill/ranks/run_weights.h"

#include <cstring>
#include <unordered_map>

namespace brine::distill {
namespace {

bool equal_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw(), b.raw(), size_t(a.numel()) * item_size(a.dtype())) == 0;
}

}  // namespace

void load_weights(const data::Safetensors& file, nn::Model& model, const nn::ParameterStore& store,
                  const std::function<bool(const std::string&)>& may_be_missing) {
  std::unordered_map<std::string, Tensor> constants;
  for (const auto& p : model.named_parameters()) constants[p.path] = p.parameter->value.detach();
  for (const auto& e : store.entries()) constants.erase(e.path);
  std::vector<NamedTensor> tensors;
  for (const auto& e : file.entries()) {
    Tensor saved = file.tensor(e.name);
    const auto constant = constants.find(e.name);
    if (constant == constants.end()) {
      tensors.push_back({e.name, saved});
      continue;
    }
    check(equal_bits(constant->second.to(Device{}).contiguous(), saved), file.path().string(), ": ",
          e.name, " differs from the teacher's, which this run does not train");
  }
  nn::load_state(model, tensors, file.path().string(), [&](const std::string& name) {
    return constants.count(name) > 0 || (may_be_missing && may_be_missing(name));
  });
}

}  // namespace brine::distill
