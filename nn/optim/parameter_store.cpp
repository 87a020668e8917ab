// Flat buffers of parameters and gradients; state by name.
#include "nn/optim/parameter_store.h"

#include <algorithm>

#include "autograd/ops.h"

namespace brine::nn {
namespace {

// Every parameter starts on a 64-byte line, packed ones directly after each other.
constexpr int64_t kAlign = 16;

}  // namespace

void ParameterStore::list_entries(Module& root, const Trained& trained) {
  std::vector<Module::NamedParameter> all = root.named_parameters();
  std::unordered_set<const Parameter*> constant;
  if (trained) {
    std::erase_if(all, [&](const Module::NamedParameter& p) {
      if (trained(p)) return false;
      check(!p.parameter->value.device().is_meta(), "ParameterStore: ", p.path,
            " is not trained and has no value");
      p.parameter->value = p.parameter->value.detach();
      return constant.insert(p.parameter).second;
    });
  }
  check(!all.empty(), "ParameterStore: the module has no parameters", trained ? " to train" : "");
  Dtype dtype = all[0].parameter->value.dtype();
  std::unordered_map<Parameter*, Module::NamedParameter> by_parameter;
  for (auto& p : all) {
    check(p.parameter->value.dtype() == dtype, "ParameterStore: ", p.path, " is ",
          p.parameter->value.dtype(), ", others are ", dtype);
    by_parameter[p.parameter] = p;
  }
  std::unordered_map<Parameter*, Packed*> leads, follows;
  for (Packed* pack : root.packed()) {
    const int64_t left_out =
        std::count_if(pack->members.begin(), pack->members.end(),
                      [&](const Parameter* member) { return constant.contains(member); });
    check(left_out == 0 || left_out == int64_t(pack->members.size()), "ParameterStore: ", left_out,
          " of ", pack->members.size(), " packed parameters are constants, wanted all or none");
    if (left_out > 0) continue;
    for (size_t i = 0; i < pack->members.size(); ++i) {
      (i ? follows : leads)[pack->members[i]] = pack;
      check(!in_place_.contains(pack->members[i]),
            "ParameterStore: ", by_parameter.at(pack->members[i]).path,
            " is packed and cannot stay in place");
    }
  }
  auto add = [&](const Module::NamedParameter& p, bool follower) {
    entries_.push_back({p.path, p.group, p.parameter, -1, p.parameter->value.numel()});
    follows_.push_back(follower);
  };
  for (auto& p : all) {
    if (follows.count(p.parameter)) continue;
    add(p, false);
    auto lead = leads.find(p.parameter);
    if (lead == leads.end()) continue;
    const std::vector<Parameter*>& members = lead->second->members;
    Shape shape = members[0]->value.shape();
    packed_.push_back({lead->second, shape, entries_.size() - 1});
    for (size_t i = 1; i < members.size(); ++i) {
      add(by_parameter.at(members[i]), true);
      packed_.back().shape[0] += members[i]->value.dim(0);
    }
  }
}

int64_t ParameterStore::lay_out() {
  int64_t offset = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    e.offset = -1;
    if (in_place_.contains(e.parameter)) continue;
    if (!follows_[i]) offset = (offset + kAlign - 1) / kAlign * kAlign;
    e.offset = offset;
    offset += e.size;
  }
  return offset;
}

void ParameterStore::fill_buffer(Dtype dtype, Device device) {
  values_ = Tensor::zeros({lay_out()}, dtype, device);
  for (const Entry& e : entries_) {
    const Tensor before = e.parameter->value.detach();
    if (e.offset < 0 || before.device().is_meta()) continue;
    assign(view_of(before.shape(), e.offset), before);
  }
}

ParameterStore::ParameterStore(Module& root, Gradients gradients, Device device, InPlace in_place)
    : in_place_(std::move(in_place)) {
  list_entries(root);
  fill_buffer(entries_[0].parameter->value.dtype(), device);
  move_buffers(root, device);
  attach();
  if (gradients == Gradients::now) add_gradients();
}

ParameterStore::ParameterStore(Module& root, const Trained& trained) {
  list_entries(root, trained);
  fill_buffer(entries_[0].parameter->value.dtype(), default_device());
  move_buffers(root, default_device());
  attach();
  add_gradients();
}

void move_buffers(Module& root, Device device) {
  for (auto& b : root.named_buffers()) {
    const Tensor& x = b.buffer->value;
    b.buffer->value =
        x.device().is_meta() ? Tensor::zeros(x.shape(), x.dtype(), device) : x.to(device);
  }
}

Tensor ParameterStore::view_of(const Shape& shape, int64_t begin) const {
  Tensor value = values_.slice(0, begin, shape.numel()).view(shape);
  if (!gradients_.defined()) return value;
  return require_grad(value, gradients_.slice(0, begin, shape.numel()).view(shape));
}

void ParameterStore::attach() {
  for (const Entry& e : entries_) {
    if (e.offset >= 0) e.parameter->value = view_of(e.parameter->value.shape(), e.offset);
  }
  for (const PackedRange& p : packed_) {
    const int64_t offset = entries_[p.first].offset;
    if (offset >= 0) p.packed->value = view_of(p.shape, offset);
  }
}

void ParameterStore::narrow(Dtype dtype, const std::function<bool(const Parameter&)>& which) {
  check(!gradients_.defined(), "ParameterStore: parameters with gradients are not narrowed to ",
        dtype);
  check(item_size(dtype) == 2 && is_float(dtype), "ParameterStore: narrowed to ", dtype,
        ", wanted bf16 or f16");
  for (const PackedRange& p : packed_) {
    const std::vector<Parameter*>& members = p.packed->members;
    if (!std::all_of(members.begin(), members.end(), [&](auto* m) { return which(*m); })) continue;
    p.packed->value = p.packed->value.detach().to(dtype);
    int64_t row = 0;
    for (Parameter* member : members) {
      const int64_t rows = member->value.dim(0);
      member->value = p.packed->value.slice(0, row, rows);
      row += rows;
      in_place_.insert(member);
    }
  }
  for (const Entry& e : entries_) {
    Tensor& value = e.parameter->value;
    if (!which(*e.parameter) || value.dtype() == dtype) continue;
    value = value.detach().to(dtype);
    in_place_.insert(e.parameter);
  }
  narrowed_ = dtype;
  fill_buffer(values_.dtype(), values_.device());
  attach();
}

void ParameterStore::add_gradients() {
  if (gradients_.defined()) return;
  check(!narrowed_, "ParameterStore: weights in ", *narrowed_, " are for inference, not training");
  if (!in_place_.empty()) {
    in_place_.clear();
    fill_buffer(values_.dtype(), values_.device());
  }
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
  for (const NamedTensor& target : state_of(root)) {
    auto it = found.find(target.name);
    if (it == found.end()) {
      if (!may_be_missing || !may_be_missing(target.name)) missing += " " + target.name;
      continue;
    }
    used.insert(target.name);
    check(it->second.shape() == target.tensor.shape(), source, ": tensor ", target.name, " is ",
          it->second.shape(), ", the model needs ", target.tensor.shape());
  }
  for (const NamedTensor& t : tensors) {
    if (!used.count(t.name)) unknown += " " + t.name;
  }
  check(missing.empty(), source, ": missing tensors:", missing);
  check(unknown.empty(), source, ": unexpected tensors:", unknown);
  for (const NamedTensor& target : state_of(root)) {
    auto it = found.find(target.name);
    if (it == found.end()) continue;
    assign(target.tensor, it->second);
    target.tensor.bump_version();
  }
}

int64_t parameter_count(Module& root) {
  int64_t n = 0;
  for (auto& p : root.named_parameters()) n += p.parameter->value.numel();
  return n;
}

}  // namespace brine::nn
