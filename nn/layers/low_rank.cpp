// Low-rank additions: which maps have them, their initial values, and merging them.
#include "nn/layers/low_rank.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <unordered_map>

namespace brine::nn {
namespace {

constexpr const char* kNames[] = {"lora_a", "lora_b"};

// Whether a component of a dotted path is a number: "model.layers.3.mlp.up_proj.weight".
bool in_numbered_layer(const std::string& path) {
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('.', at), path.size());
    auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    if (end > at && std::all_of(path.begin() + int64_t(at), path.begin() + int64_t(end), is_digit))
      return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

void Linear::add_low_rank(Init& init, int64_t rank) {
  check(rank >= 1, "lora: the rank is ", rank, ", must be at least 1");
  check(layout == WeightLayout::out_in, "lora: a map whose weight is stored as [in, out] has none");
  check(!lora_a, "lora: a linear map has a low-rank addition already");
  const int64_t out = weight.value.dim(0), in = weight.value.dim(1);
  lora_a = &parameter(kNames[0], init.normal({rank, in}, 1 / std::sqrt(double(in))));
  lora_b = &parameter(kNames[1], init.zeros({out, rank}));
}

void add_low_rank(Module& root, int64_t rank, Init& init) {
  std::unordered_map<const Parameter*, Module::NamedParameter> named;
  for (const auto& p : root.named_parameters()) named[p.parameter] = p;
  int64_t count = 0;
  root.visit([&](Module& m) {
    auto* map = dynamic_cast<Linear*>(&m);
    if (!map) return;
    const Module::NamedParameter& weight = named.at(&map->weight);
    if (weight.group != ParameterGroup::base || !in_numbered_layer(weight.path)) return;
    map->add_low_rank(init, rank);
    ++count;
  });
  check(count > 0, "lora: the model has no linear maps in numbered layers");
}

bool is_low_rank(const std::string& path) {
  const std::string last = path.substr(path.rfind('.') + 1);
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const char* name) { return last == name; });
}

std::vector<NamedTensor> merge_low_rank(const std::vector<NamedTensor>& tensors) {
  NoGrad off;
  std::unordered_map<std::string, Tensor> factors;
  for (const NamedTensor& t : tensors) {
    if (is_low_rank(t.name)) factors[t.name] = t.tensor;
  }
  std::vector<NamedTensor> out;
  for (const NamedTensor& t : tensors) {
    if (is_low_rank(t.name)) continue;
    out.push_back(t);
    const size_t dot = t.name.rfind('.') + 1;
    const auto a = factors.find(t.name.substr(0, dot) + kNames[0]);
    if (a == factors.end() || t.name.substr(dot) != "weight") continue;
    const Tensor b = factors.at(t.name.substr(0, dot) + kNames[1]);
    out.back().tensor = add(t.tensor, matmul(b, a->second)).detach();
  }
  return out;
}

}  // namespace brine::nn
