// The tree of modules.
#include "nn/layers/module.h"

#include <algorithm>

namespace brine::nn {
namespace {

std::string dotted(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : name.empty() ? prefix : prefix + "." + name;
}

}  // namespace

Parameter& Module::parameter(std::string name, Tensor value, bool decay) {
  parameters_.push_back(
      std::make_unique<Parameter>(Parameter{std::move(name), require_grad(value), decay}));
  return *parameters_.back();
}

Buffer& Module::buffer(std::string name, Tensor value) {
  buffers_.push_back(std::make_unique<Buffer>(Buffer{std::move(name), std::move(value)}));
  return *buffers_.back();
}

Packed& Module::pack(std::vector<Parameter*> members) {
  const int64_t given =
      std::count_if(members.begin(), members.end(), [](Parameter* p) { return p != nullptr; });
  check(given == 0 || given == int64_t(members.size()), "pack: ", given, " of ", members.size(),
        " parameters given, wanted all or none");
  if (given == 0) members.clear();
  packed_.push_back(std::make_unique<Packed>(Packed{std::move(members), {}}));
  return *packed_.back();
}

void Module::visit(const std::function<void(Module&)>& f) {
  f(*this);
  for (auto& [name, module] : children_) module->visit(f);
}

void Module::collect(const std::string& prefix, ParameterGroup above,
                     std::vector<NamedParameter>& out) {
  const ParameterGroup local_group = group().value_or(above);
  for (auto& p : parameters_) out.push_back({dotted(prefix, p->name), local_group, p.get()});
  for (auto& [name, module] : children_) module->collect(dotted(prefix, name), local_group, out);
}

void Module::collect(const std::string& prefix, std::vector<NamedBuffer>& out) {
  for (auto& b : buffers_) out.push_back({dotted(prefix, b->name), b.get()});
  for (auto& [name, module] : children_) module->collect(dotted(prefix, name), out);
}

std::vector<Module::NamedParameter> Module::named_parameters() {
  std::vector<NamedParameter> out;
  collect("", ParameterGroup::base, out);
  return out;
}

std::vector<Module::NamedBuffer> Module::named_buffers() {
  std::vector<NamedBuffer> out;
  collect("", out);
  return out;
}

std::vector<Packed*> Module::packed() {
  std::vector<Packed*> out;
  visit([&out](Module& m) {
    for (auto& p : m.packed_) out.push_back(p.get());
  });
  return out;
}

}  // namespace brine::nn
