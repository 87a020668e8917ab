// Loading a model from a directory: configuration, names, values directly from the mapped files.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "data/checkpoint/weights.h"
#include "data/gguf/gguf_model.h"
#include "data/io/json.h"
#include "nn/io/model_io.h"
#include "nn/layers/layers.h"
#include "nn/models/hf_config.h"
#include "nn/models/model_config.h"
#include "nn/optim/parameter_store.h"

namespace brine::nn {

namespace {

// The tensors of a model's files under Brine's names: spellings, wrappers, ties, and what to say
// when names do not fit.

// In the order of their data on the disk.
struct Weight {
  std::string name, name_in_file;
  data::WeightEntry from;
};

// A model on the meta device with the tensors that its files have for it.
struct Plan {
  ModelConfig config;  // with the heads that the files have
  std::unique_ptr<Model> model;
  std::vector<Weight> weights;
  // What a wrapper put before every name, such as "module." or "_orig_mod."; the weights have names
  // without it.
  std::string prefix;
};

struct ModelFiles {
  std::string config_path;  // for messages
  const data::Json& config;
  const data::WeightFiles* base;  // of an adapter, otherwise null
  const data::WeightFiles& weights;
};

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
    auto copy = std::ranges::find(weights, alias, &Weight::name),
         original = std::ranges::find(weights, original_name, &Weight::name);
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

// Names with a space before each; of many the first.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMaxListed = 24;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) out += " " + names[i];
  if (names.size() > kMaxListed) out += join(" and ", names.size() - kMaxListed, " more");
  return out;
}

// Throws when two tensors are the same one, when a tied tensor differs, and for more layers than
// tensors.
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

// Throws when a tensor of the model is missing or the files have an unknown one.
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
        unknown.empty() ? "" : "; unexpected tensors:", listed(unknown));
  check(unknown.empty(), source, ": unexpected tensors:", listed(unknown));
}

}  // namespace

namespace fs = std::filesystem;
namespace {

// The file with a model's configuration: a GGUF file itself.
std::string config_file(const std::string& model) {
  return data::is_gguf(model) ? model : (fs::path(model) / "config.json").string();
}

data::Json read_config(const std::string& file) {
  if (data::is_gguf(file)) return data::GgufModel(file).config();
  data::Json json = parse_json_or_discard(data::read_file(file, 16 << 20), file);
  check(!json.is_discarded(), file, ": not JSON");
  return json;
}

ModelConfig config_of(const data::Json& json, const std::string& directory) {
  return from_hf_config(json, config_file(directory));
}

// generation_config.json next to a model; empty when there is none.
std::string generation_config_of(const std::string& directory) {
  const fs::path file = fs::path(directory) / kGenerationConfig;
  return fs::is_regular_file(file) ? data::read_file(file, 16 << 20) : std::string();
}

// Uses f32 weights in mapped files as the values of their parameters and returns these. Packed
// parameters are left out. The weights have been checked.
ParameterStore::InPlace map_weights(Model& model, const std::vector<Weight>& weights) {
  std::unordered_map<std::string, Parameter*> parameters;
  for (const auto& p : model.named_parameters()) parameters[p.path] = p.parameter;
  ParameterStore::InPlace packed, mapped;
  for (const Packed* pack : model.packed()) {
    packed.insert(pack->members.begin(), pack->members.end());
  }
  for (const Weight& w : weights) {
    auto found = parameters.find(w.name);
    if (found == parameters.end() || packed.contains(found->second)) continue;
    Parameter& parameter = *found->second;
    const data::WeightFile& file = *w.from.file;
    if (w.from.entry->dtype != "F32" || parameter.value.dtype() != Dtype::f32 ||
        !file.in_order(*w.from.entry) || file.shape_of(*w.from.entry) != parameter.value.shape()) {
      continue;
    }
    const Tensor value = file.mapped(*w.from.entry);
    if (value.raw() != w.from.entry->bytes) continue;  // not aligned: a copy
    parameter.value = value;
    mapped.insert(&parameter);
  }
  return mapped;
}

std::unordered_map<std::string, Tensor> targets_of(Model& model) {
  std::unordered_map<std::string, Tensor> targets;
  for (const NamedTensor& t : state_of(model)) targets[t.name] = t.tensor;
  return targets;
}

// Compares shapes and types; the names have been checked. The model may be on the meta device: its
// sizes are unchecked until this has been called.
void check_shapes(Model& model, const std::vector<Weight>& weights) {
  std::unordered_map<std::string, Tensor> targets = targets_of(model);
  for (const Weight& w : weights) {
    Shape shape = w.from.file->shape_of(*w.from.entry);
    Dtype type = w.from.file->dtype_of(*w.from.entry);
    check(shape == targets[w.name].shape(), w.from.file->path().string(), ": tensor ",
          w.name_in_file, " is ", shape, ", the model needs ", targets[w.name].shape());
    check(is_float(type), w.from.file->path().string(), ": tensor ", w.name_in_file, " is ", type,
          ", wanted f32, f16 or bf16");
  }
}

void read_weights(Model& model, const std::vector<Weight>& weights) {
  std::unordered_map<std::string, Tensor> targets = targets_of(model);
  for (const Weight& w : weights) {
    const Tensor& target = targets[w.name];
    if (!target.device().is_cuda() && target.raw() == w.from.entry->bytes) continue;  // mapped
    if (!target.device().is_cuda()) {
      w.from.file->read(*w.from.entry, target);
      continue;
    }
    const Tensor host = Tensor::empty(target.shape(), target.dtype());
    w.from.file->read(*w.from.entry, host);
    assign(target, host);
  }
}

// The location of an adapter's base.
std::string find_base(const std::string& adapter, const std::string& base) {
  fs::path beside = fs::path(adapter) / base;
  if (is_model_path(beside.string())) return beside.string();
  check(is_model_path(base), adapter, ": its base_model ", base,
        " is neither next to it nor in the working directory");
  return base;
}

struct Base {
  std::string directory, hash;
  std::unique_ptr<data::WeightFiles> files;
};

// The base that an adapter names, checked to be of the same sizes.
Base open_base(const std::string& adapter, const data::Json& json, const ModelConfig& config) {
  const std::string file = config_file(adapter);
  const data::Json& path = json["base_model"];
  check(path.is_string(), file, ": base_model = ", json_text(path), " is not a path");
  Base base;
  base.directory = resolve_model(find_base(adapter, path.get<std::string>()));
  const data::Json ours = json.value("brine", data::Json::object());
  check(ours.contains("base_hash") && ours["base_hash"].is_string(), file,
        ": has a base_model, but its section \"brine\" no base_hash");
  base.hash = ours["base_hash"].get<std::string>();
  data::Json theirs = read_config(config_file(base.directory));
  check(!theirs.contains("base_model"), adapter, ": its base ", base.directory,
        " is an adapter itself");
  ModelConfig of_base = config_of(theirs, base.directory);
  check(is_full_attention(of_base.attention), adapter, ": its base ", base.directory,
        " has attention '", of_base.attention, "', not 'flash' or 'dense'");
  std::string list;
  for (const std::string& d : data::differences(sizes_to_json(of_base), sizes_to_json(config))) {
    list += "; " + d;
  }
  check(list.empty(), adapter, ": its base ", base.directory, " has other sizes", list);
  base.files = std::make_unique<data::WeightFiles>(base.directory);
  return base;
}

// A key_scale that was damaged would choose blocks at random.
void check_key_scales(Model& model, const std::string& source) {
  for (const auto& b : model.named_buffers()) {
    if (!b.path.ends_with(".key_scale")) continue;
    for (const double x : b.buffer->value.to(Device{}).to_vector()) {
      check(std::isfinite(x) && x > 0, source, ": tensor ", b.path, " contains ", x,
            ", must be finite and above 0; calibrate the attention again (brine distill "
            "--attention blocks)");
    }
  }
}

// Hash of the tensors that do not belong to the attention method: that of the base.
std::string base_hash(Model& model) {
  std::vector<NamedTensor> base;
  for (NamedTensor& t : tensors_of(model)) {
    if (!model.is_attention_tensor(t.name)) base.push_back(std::move(t));
  }
  return tensor_hash(base);
}

}  // namespace

const std::string& LoadedModel::hash() const {
  if (hash_.empty()) hash_ = tensor_hash(tensors_of(*model));
  return hash_;
}

void hold_weights_in(Dtype dtype, LoadedModel& m) {
  if (dtype == Dtype::f32) return;
  std::unordered_set<const Parameter*> matrices;
  m.model->visit([&](Module& module) {
    // A product with a matrix that is stored [in, out] would copy it whole in f32 for every token.
    const auto* map = dynamic_cast<const Linear*>(&module);
    if (map && map->layout == WeightLayout::out_in) matrices.insert(&map->weight);
    if (const auto* table = dynamic_cast<const Embedding*>(&module)) {
      matrices.insert(&table->weight);
    }
  });
  for (const auto& p : m.model->named_parameters()) {
    if (p.group != ParameterGroup::base) matrices.erase(p.parameter);
  }
  m.store->narrow(dtype, [&](const Parameter& p) { return matrices.contains(&p); });
}

ModelConfig load_config(const std::string& path) {
  const std::string file = fs::is_regular_file(path) ? path : config_file(resolve_model(path));
  return from_hf_config(read_config(file), file);
}

LoadedModel load_model(const std::string& path, const LoadOptions& options) {
  auto start = std::chrono::steady_clock::now();
  LoadedModel m;
  m.directory = resolve_model(path, &m.notes);
  data::Json json = read_config(config_file(m.directory));
  m.config = config_of(json, m.directory);
  for (const std::string& line : contradictions(json))
    m.remarks.push_back(config_file(m.directory) + ": " + line);
  Base base;
  if (json.contains("base_model")) base = open_base(m.directory, json, m.config);
  std::string& generation = m.config.token_settings.generation_config;
  generation = generation_config_of(m.directory);
  if (generation.empty() && base.files) generation = generation_config_of(base.directory);
  data::WeightFiles files(m.directory);
  if (!files.unnamed().empty()) {
    m.remarks.push_back(files.source() + ": tensors that the index does not name are ignored:" +
                        listed(files.unnamed()));
  }
  Plan plan = plan_for(m.config, {config_file(m.directory), json, base.files.get(), files});
  if (!plan.prefix.empty()) {
    m.remarks.push_back(
        join(files.source(), ": every name begins with '", plan.prefix, "', which is ignored"));
  }
  m.config = plan.config;
  m.model = std::move(plan.model);
  const std::vector<Weight>& weights = plan.weights;
  check(m.config.family().is_whole() || !m.model->named_parameters().empty(), m.directory, ": ",
        kBlocksAlone);
  check_names(*m.model, m.config, weights, files);
  check_shapes(*m.model, weights);
  const bool map = options.map && !options.gradients && !default_device().is_cuda();
  m.store = std::make_unique<ParameterStore>(
      *m.model, ParameterStore::Gradients::later, default_device(),
      map ? map_weights(*m.model, weights) : ParameterStore::InPlace());
  read_weights(*m.model, weights);
  check_key_scales(*m.model, m.directory);
  check(!base.files || base_hash(*m.model) == base.hash, m.directory, ": the weights in ",
        base.directory, " are not those of the base that it was made for");
  if (options.gradients) m.store->add_gradients();
  m.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return m;
}

}  // namespace brine::nn
