// The registry of model families.
#include "nn/models/family.h"

namespace brine::nn {

std::map<std::string, FamilyFactory>& families() {
  static std::map<std::string, FamilyFactory> all;
  return all;
}

void FamilyConfig::set_class_head(const ClassHead&) {
  throw Error(name() + ": has no classification head");
}

FamilyConfigs::FamilyConfigs() {
  for (auto& [name, factory] : families()) all_[name] = factory();
}

FamilyConfigs::FamilyConfigs(const FamilyConfigs& other) {
  for (auto& [name, family] : other.all_) all_[name] = family->clone();
}

FamilyConfigs& FamilyConfigs::operator=(const FamilyConfigs& other) {
  if (this == &other) return *this;
  for (auto& [name, family] : other.all_) at(name).assign(*family);
  return *this;
}

FamilyConfig& FamilyConfigs::at(const std::string& name) const {
  auto it = all_.find(name);
  if (it != all_.end()) return *it->second;
  std::string known;
  for (auto& [other, family] : all_) {
    if (family->is_whole()) known += " " + other;
  }
  throw Error(join("config: model_type '", name, "' is unknown; known:", known));
}

}  // namespace brine::nn
