// Flat buffers of parameters and gradients; state by name.
#include "nn/optim/parameter_store.h"

#include <unordered_set>

#include "autograd/ops.h"

namespace brine::nn {
namespace {

// Every parameter starts on a 64-byte line, packed ones right behind each other.
constexpr int64_t kAlign = 16;

}  // namespace

ParameterStore::ParameterStore(Module& root, Gradients gradients, Device device) {
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
  values_ = Tensor::zeros({offset}, dtype, device);
  std::unordered_map<Parameter*, int64_t> at;
  for (const Entry& e : entries_) {
    at[e.parameter] = e.offset;
    Tensor before = e.parameter->value.detach();
    if (Init::is_shape_only(before)) continue;
    assign(view_of(before.shape(), e.offset), before);
  }
  for (Packed* pack : root.packed()) {
    Shape shape = pack->members[0]->value.shape();
    shape[0] = 0;
    for (Parameter* member : pack->members) shape[0] += member->value.dim(0);
    packed_.push_back({pack, shape, at.at(pack->members[0])});
  }
  for (auto& b : root.named_buffers()) b.buffer->value = b.buffer->value.to(device);
  attach();
  if (gradients == Gradients::now) add_gradients();
}

Tensor ParameterStore::view_of(const Shape& shape, int64_t begin) const {
  Tensor value = values_.slice(0, begin, shape.numel()).view(shape);
  if (!gradients_.defined()) return value;
  return require_grad(value, gradients_.slice(0, begin, shape.numel()).view(shape));
}

void ParameterStore::attach() {
  for (const Entry& e : entries_) {
    e.parameter->value = view_of(e.parameter->value.shape(), e.offset);
  }
  for (const PackedRange& p : packed_) p.packed->value = view_of(p.shape, p.begin);
}

void ParameterStore::add_gradients() {
  if (gradients_.defined()) return;
  gradients_ = Tensor::zeros_like(values_);
  attach();
}

void ParameterStore::zero_gradients() {
  add_gradients();
  fill(gradients_, 0.0);
}

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
    assign(own.tensor, it->second);
    own.tensor.bump_version();
  }
}

int64_t parameter_count(Module& root) {
  int64_t n = 0;
  for (auto& p : root.named_parameters()) n += p.parameter->value.numel();
  return n;
}

}  // namespace brine::nn
