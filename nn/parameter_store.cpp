// Flat buffers of parameters and gradients; state by name.
#include "nn/parameter_store.h"

#include <unordered_set>

#include "tensor/kernels.h"

namespace brine::nn {
namespace {

// Every parameter starts on a 64-byte line, packed ones right behind each other.
constexpr int64_t kAlign = 16;

}  // namespace

ParameterStore::ParameterStore(Module& root) {
  std::vector<Module::NamedParameter> all = root.named_parameters();
  check(!all.empty(), "ParameterStore: the module has no parameters");
  Dtype dtype = all[0].parameter->value.dtype();
  std::unordered_map<Parameter*, Module::NamedParameter> by_parameter;
  for (auto& p : all) {
    check(p.parameter->value.dtype() == dtype, "ParameterStore: ", p.path, " is ",
          p.parameter->value.dtype(), ", others are ", dtype);
    by_parameter[p.parameter] = p;
  }
  std::unordered_map<Parameter*, Packed*> leads, follows;
  for (Packed* pack : root.packed()) {
    for (size_t i = 0; i < pack->members.size(); ++i) {
      (i ? follows : leads)[pack->members[i]] = pack;
    }
  }
  int64_t offset = 0;
  auto place = [&](const Module::NamedParameter& p) {
    entries_.push_back({p.path, p.group, p.parameter, offset, p.parameter->value.numel()});
    offset += entries_.back().size;
  };
  for (auto& p : all) {
    if (follows.count(p.parameter)) continue;
    offset = (offset + kAlign - 1) / kAlign * kAlign;
    if (!leads.count(p.parameter)) {
      place(p);
      continue;
    }
    for (Parameter* member : leads[p.parameter]->members) place(by_parameter.at(member));
  }
  values_ = Tensor::zeros({offset}, dtype);
  gradients_ = Tensor::zeros({offset}, dtype);
  std::unordered_map<Parameter*, int64_t> at;
  for (Entry& e : entries_) {
    Tensor view = values_.slice(0, e.offset, e.size).view(e.parameter->value.shape());
    Tensor before = e.parameter->value.detach().contiguous();
    BRINE_CALL(view, copy, view, before);
    Tensor gradient = gradients_.slice(0, e.offset, e.size).view(view.shape());
    e.parameter->value = require_grad(view, gradient);
    at[e.parameter] = e.offset;
  }
  for (Packed* pack : root.packed()) {
    Shape shape = pack->members[0]->value.shape();
    int64_t rows = 0, size = 0;
    for (Parameter* member : pack->members) {
      rows += member->value.dim(0);
      size += member->value.numel();
    }
    shape[0] = rows;
    int64_t begin = at.at(pack->members[0]);
    pack->value = require_grad(values_.slice(0, begin, size).view(shape),
                               gradients_.slice(0, begin, size).view(shape));
  }
}

void ParameterStore::zero_gradients() { BRINE_CALL(gradients_, fill, gradients_, 0.0); }

std::vector<NamedTensor> state_of(Module& root) {
  std::vector<NamedTensor> out;
  for (auto& p : root.named_parameters()) out.push_back({p.path, p.parameter->value.detach()});
  for (auto& b : root.named_buffers()) out.push_back({b.path, b.buffer->value});
  return out;
}

void load_state(Module& root, const std::vector<NamedTensor>& tensors, const std::string& source,
                const std::function<bool(const std::string&)>& may_be_missing) {
  std::unordered_map<std::string, Tensor> found;
  for (const NamedTensor& t : tensors) found[t.name] = t.tensor;
  std::string missing, unknown;
  std::unordered_set<std::string> used;
  for (const NamedTensor& own : state_of(root)) {
    auto it = found.find(own.name);
    if (it == found.end()) {
      if (!may_be_missing || !may_be_missing(own.name)) missing += " " + own.name;
      continue;
    }
    used.insert(own.name);
    check(it->second.shape() == own.tensor.shape(), source, ": tensor ", own.name, " is ",
          it->second.shape(), ", the model wants ", own.tensor.shape());
  }
  for (const NamedTensor& t : tensors) {
    if (!used.count(t.name)) unknown += " " + t.name;
  }
  check(missing.empty(), source, ": missing tensors:", missing);
  check(unknown.empty(), source, ": tensors that the model does not know:", unknown);
  for (const NamedTensor& own : state_of(root)) {
    auto it = found.find(own.name);
    if (it == found.end()) continue;
    Tensor from = it->second.detach();
    BRINE_CALL(own.tensor, copy, own.tensor, from);
    own.tensor.bump_version();
  }
}

int64_t parameter_count(Module& root) {
  int64_t n = 0;
  for (auto& p : root.named_parameters()) n += p.parameter->value.numel();
  return n;
}

}  // namespace brine::nn
