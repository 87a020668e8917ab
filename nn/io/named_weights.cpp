// Finding a model's tensors in its files by name.
#include "nn/io/named_weights.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

namespace brine::nn {
namespace {

using Names = std::unordered_set<std::string>;

// `prefix` is taken from every name that begins with it.
void add_weights(std::vector<Weight>& weights, const ModelConfig& config,
                 const data::WeightFiles& files, const std::string& prefix) {
  std::unordered_map<std::string, std::string> seen;
  for (const Weight& w : weights) seen[w.name] = w.name_in_file;
  for (const data::WeightEntry& e : files.entries()) {
    const std::string& whole = e.entry->name;
    std::string name = config.family().tensor_name(
        whole.starts_with(prefix) ? whole.substr(prefix.size()) : whole);
    if (name.empty()) continue;
    auto [it, fresh] = seen.emplace(name, whole);
    check(fresh, files.source(), ": '", whole, "' and '", it->second, "' are the same tensor");
    weights.push_back({name, whole, e});
  }
}

std::string how_to_untie(const data::Json& json) {
  const auto key = json.find("tie_word_embeddings");
  return key == json.end() || key->is_null() ? "which are tied unless config.json says otherwise; "
                                               "add \"tie_word_embeddings\": false to "
                                               "config.json to use both"
                                             : "but config.json ties them (tie_word_embeddings is "
                                               "true); set it to false to use both";
}

// Removes tensors that repeat a tied one, after comparing their values.
void resolve_ties(std::vector<Weight>& weights, const ModelConfig& config, const data::Json& json,
                  const std::string& source) {
  for (const auto& [alias, original_name] : config.family().ties()) {
    auto find = [&](const std::string& name) {
      return std::find_if(weights.begin(), weights.end(),
                          [&](const Weight& w) { return w.name == name; });
    };
    auto copy = find(alias), original = find(original_name);
    if (copy == weights.end()) continue;
    if (original == weights.end()) {
      copy->name = original_name;
      continue;
    }
    // A bias is tied whatever config.json says.
    const bool table = alias.ends_with(".weight");
    check(data::equal(copy->from, original->from), source, ": ", copy->name_in_file,
          " differs from ", original->name_in_file, ", ",
          table ? how_to_untie(json) : "of which it must be a copy; remove one of them");
    weights.erase(copy);
  }
}

std::vector<std::string> names_of(const std::vector<Weight>& weights) {
  std::vector<std::string> out;
  out.reserve(weights.size());
  for (const Weight& w : weights) out.push_back(w.name);
  return out;
}

Names names_of(Model& model) {
  Names names;
  for (const NamedTensor& t : state_of(model)) names.insert(t.name);
  return names;
}

size_t count_known(const Plan& plan) {
  const Names known = names_of(*plan.model);
  const auto is_known = [&](const Weight& w) { return known.contains(w.name); };
  return size_t(std::count_if(plan.weights.begin(), plan.weights.end(), is_known));
}

// The beginnings of a name up to each of its dots, without its last part.
std::vector<std::string> beginnings(const std::string& name) {
  std::vector<std::string> out;
  for (size_t at = name.find('.'); at != name.npos; at = name.find('.', at + 1))
    out.push_back(name.substr(0, at + 1));
  return out;
}

// The beginnings that all names share.
std::vector<std::string> shared_beginnings(const data::WeightFiles& files) {
  if (files.entries().empty()) return {};
  std::vector<std::string> out = beginnings(files.entries().front().entry->name);
  for (const data::WeightEntry& e : files.entries()) {
    std::erase_if(out, [&](const std::string& b) { return !e.entry->name.starts_with(b); });
  }
  return out;
}

Plan plan_without(const std::string& prefix, const ModelConfig& config, const ModelFiles& files) {
  const std::string& source = files.weights.source();
  Plan plan{.config = config, .model = nullptr, .weights = {}, .prefix = prefix};
  if (files.base) add_weights(plan.weights, config, *files.base, prefix);
  add_weights(plan.weights, config, files.weights, files.base ? "" : prefix);
  plan.config.family().infer_from_tensors(names_of(plan.weights));
  resolve_ties(plan.weights, plan.config, files.config, source);
  // Every layer has tensors, so that a wrong number of layers is found before they are made.
  const int64_t layers = plan.config.shape().layers;
  check(layers <= int64_t(plan.weights.size()), files.config_path, ": ", layers, " layers, but ",
        source, " has ", plan.weights.size(), " tensors");
  plan.model =
      make_model(plan.config, Init{.random = {.seed = 0, .stream = 1}, .device = Device::meta});
  return plan;
}

// The prefix without which most of the unknown names are missing ones, and how many are.
std::pair<std::string, size_t> prefix_of_unknown(const ModelConfig& config,
                                                 const std::vector<std::string>& unknown,
                                                 const Names& missing) {
  std::map<std::string, size_t> counts;
  for (const std::string& name : unknown) {
    for (const std::string& prefix : beginnings(name)) {
      if (missing.contains(config.family().tensor_name(name.substr(prefix.size()))))
        ++counts[prefix];
    }
  }
  std::pair<std::string, size_t> best;
  for (const auto& [prefix, count] : counts) {
    if (count > best.second) best = {prefix, count};
  }
  return best;
}

// Weights that are no plain ones, by the names of their tensors.
void refuse_other_kinds(const std::vector<std::string>& unknown, const std::string& source) {
  for (const std::string& name : unknown) {
    auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    auto ends = [&](const char* part) { return name.ends_with(part); };
    check_format(
        !has(".base_layer.") && !has("lora_A") && !has("lora_B") && !has(".modules_to_save."),
        source, ": '", name,
        "' belongs to an adapter that is not merged; merge it into the model "
        "(merge_and_unload() in PEFT) and save the result");
    check_format(!ends(".scales") && !ends(".qweight") && !ends(".weight_scale") &&
                     !ends(".weight_scale_inv") && !ends(".weight_packed") && !ends(".SCB") &&
                     !ends(".absmax"),
                 source, ": '", name,
                 "' belongs to quantised weights (quantization), which are not "
                 "supported; give the model in f32, bf16 or f16, or a GGUF file");
  }
}

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMaxListed = 24;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) out += " " + names[i];
  if (names.size() > kMaxListed) out += join(" and ", names.size() - kMaxListed, " more");
  return out;
}

Plan plan_for(const ModelConfig& config, const ModelFiles& files) {
  Plan plan = plan_without("", config, files);
  size_t known = count_known(plan);
  if (known == plan.weights.size()) return plan;
  for (const std::string& prefix : shared_beginnings(files.base ? *files.base : files.weights)) {
    Plan other = plan_without(prefix, config, files);
    const size_t more = count_known(other);
    if (more <= known) continue;
    known = more;
    plan = std::move(other);
  }
  return plan;
}

void check_names(Model& model, const ModelConfig& config, const std::vector<Weight>& weights,
                 const data::WeightFiles& files) {
  const std::string& source = files.source();
  const Names known = names_of(model);
  Names missing = known;
  std::vector<std::string> unknown;
  for (const Weight& w : weights) {
    missing.erase(w.name);
    if (!known.contains(w.name)) unknown.push_back(w.name_in_file);
  }
  refuse_other_kinds(unknown, source);
  const auto [prefix, count] = prefix_of_unknown(config, unknown, missing);
  check(count == 0, source, ": ", count, " of ", weights.size(), " names begin with '", prefix,
        "', the others do not; remove it from these names");
  std::vector<std::string> lost;  // in the order of the model
  for (const NamedTensor& t : state_of(model)) {
    if (missing.contains(t.name)) lost.push_back(t.name);
  }
  std::vector<std::string> unnamed;
  for (const std::string& name : files.unnamed()) {
    if (missing.contains(config.family().tensor_name(name))) unnamed.push_back(name);
  }
  check(lost.empty(), source, ": missing tensors:", listed(lost),
        unnamed.empty() ? "" : "; shards have, but the index does not name:", listed(unnamed),
        unknown.empty() ? "" : "; tensors that the model does not know:", listed(unknown));
  check(unknown.empty(), source, ": tensors that the model does not know:", listed(unknown));
}

}  // namespace brine::nn
