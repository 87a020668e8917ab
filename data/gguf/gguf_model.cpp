// Reading a GGUF file's configuration, and its weights in the order of Hugging Face's checkpoints.
#include "data/gguf/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string_view>

#include "data/io/utf8.h"
#include "tensor/base/error.h"
#include "tensor/base/parallel.h"

namespace brine::data {
namespace {

constexpr int64_t kValuesAtOnce = 1 << 16;  // that a thread dequantises
constexpr int64_t kRowsAtOnce = 32;         // that are transposed together

// The row in the file that becomes row `row`: of each head, row 2 i + j is feature i + j d / 2.
int64_t row_in_file(int64_t row, int64_t head_size) {
  const int64_t head = row / head_size, feature = row % head_size, half = head_size / 2;
  return head * head_size + 2 * (feature % half) + feature / half;
}

using Layout = GgufLayout;

// `pairs`: whether the converter orders the rows of queries and keys by pairs of rotary features.
GgufArchitecture llama_like(const char* name, const char* hf_class, bool pairs) {
  return {
      name,
      hf_class,
      "model.layers.",
      {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}},
      {{"attn_norm", "input_layernorm"},
       {"attn_q", "self_attn.q_proj", pairs ? Layout::query_pairs : Layout::same},
       {"attn_k", "self_attn.k_proj", pairs ? Layout::key_pairs : Layout::same},
       {"attn_v", "self_attn.v_proj"},
       {"attn_output", "self_attn.o_proj"},
       {"attn_q_norm", "self_attn.q_norm"},
       {"attn_k_norm", "self_attn.k_norm"},
       {"ffn_norm", "post_attention_layernorm"},
       {"ffn_gate", "mlp.gate_proj"},
       {"ffn_up", "mlp.up_proj"},
       {"ffn_down", "mlp.down_proj"}}};
}

GgufArchitecture gpt2() {
  return {"gpt2",
          "GPT2LMHeadModel",
          "transformer.h.",
          {{"token_embd", "transformer.wte"},
           {"position_embd", "transformer.wpe"},
           {"output_norm", "transformer.ln_f"},
           {"output", "lm_head"}},
          {{"attn_norm", "ln_1"},
           {"attn_qkv", "attn.c_attn", Layout::transposed},
           {"attn_output", "attn.c_proj", Layout::transposed},
           {"ffn_norm", "ln_2"},
           {"ffn_up", "mlp.c_fc", Layout::transposed},
           {"ffn_down", "mlp.c_proj", Layout::transposed}}};
}

const std::vector<GgufArchitecture>& architectures() {
  static const std::vector<GgufArchitecture> all = {
      gpt2(),
      llama_like("llama", "LlamaForCausalLM", true),
      llama_like("qwen2", "Qwen2ForCausalLM", false),
      llama_like("qwen3", "Qwen3ForCausalLM", false),
  };
  return all;
}

// The number and the rest of "blk.N.rest"; nothing for other names.
bool split_block(std::string_view name, std::string& number, std::string_view& rest) {
  if (!name.starts_with("blk.")) return false;
  const size_t dot = name.find('.', 4);
  if (dot == name.npos || dot == 4) return false;
  number = name.substr(4, dot - 4);
  rest = name.substr(dot + 1);
  return number.find_first_not_of("0123456789") == number.npos;
}

// An Error starting with `file` for a name that is not supported.
const GgufArchitecture& architecture_of(const std::string& file, const std::string& name) {
  for (const GgufArchitecture& a : architectures()) {
    if (a.name == name) return a;
  }
  throw Error(join(file, ": general.architecture '", shown(name), "' is not supported, only ",
                   names_of(architectures())),
              ErrorKind::format);
}

struct HfName {
  std::string name;
  GgufLayout layout = GgufLayout::same;
};
// Hugging Face's name of a tensor; an unknown one stays as it is.
HfName hf_name(const GgufArchitecture& architecture, const std::string& name) {
  std::string number;
  std::string_view rest = name;
  const bool block = split_block(name, number, rest);
  const size_t dot = rest.rfind('.');
  if (dot == rest.npos) return {name};
  const std::string_view stem = rest.substr(0, dot), kind = rest.substr(dot);
  for (const auto& known : block ? architecture.inner : architecture.outer) {
    if (stem != known.gguf || (kind != ".weight" && kind != ".bias")) continue;
    std::string out = block ? architecture.blocks + number + "." : "";
    const bool transposed = known.layout == Layout::transposed && kind == ".bias";
    return {out.append(known.hf).append(kind), transposed ? Layout::same : known.layout};
  }
  return {name};
}

// Keys with other neutral values than 0 or false: with one of these a model computes what it
// computes without the key.
struct Neutral {
  const char* key;
  std::vector<double> values;
};
const std::vector<Neutral>& neutral_values() {
  static const std::vector<Neutral> all = {{"attention.causal", {1}},
                                           {"attention.output_scale", {0, 1}},
                                           {"logit_scale", {0, 1}},
                                           {"residual_scale", {0, 1}},
                                           {"embedding_scale", {0, 1}},
                                           {"full_attention_interval", {0, 1}},
                                           {"rope.scaling.attn_factor", {1}},
                                           {"rope.scaling.alpha", {0, 1}},
                                           {"rope.scaling.yarn_attn_factor", {1}},
                                           {"rope.scaling.yarn_ext_factor", {0, -1}},
                                           {"rope.scaling.yarn_beta_fast", {32}},
                                           {"rope.scaling.yarn_beta_slow", {1}}};
  return all;
}

// The keys of an architecture, without its name in front.
class Keys {
 public:
  Keys(const GgufMetadata& metadata, const std::string& architecture)
      : all_(metadata), prefix_(architecture + ".") {}

  int64_t integer(const char* key) const {
    return all_.required(prefix_ + key, &GgufMetadata::integer);
  }
  int64_t integer(const char* key, int64_t otherwise) const {
    return all_.integer(prefix_ + key).value_or(otherwise);
  }
  double number(const char* key) const {
    return all_.required(prefix_ + key, &GgufMetadata::number);
  }
  double number(const char* key, double otherwise) const {
    return all_.number(prefix_ + key).value_or(otherwise);
  }
  std::string string(const char* key, const char* otherwise) const {
    return all_.string(prefix_ + key).value_or(otherwise);
  }
  const std::string& file() const { return all_.file(); }
  std::string name(const char* key) const { return prefix_ + key; }

  // Refuses keys that are neither in `known` nor neutral: they may change the results.
  // `size_dependent` are neutral values that depend on the sizes.
  void refuse_others(const std::set<std::string>& known,
                     const std::vector<Neutral>& size_dependent) const {
    const bool experts = integer("expert_count", 0) != 0;
    for (const auto& [name, value] : all_.values()) {
      if (!name.starts_with(prefix_)) continue;
      const std::string key = name.substr(prefix_.size());
      if (known.contains(key) || (key.starts_with("expert_") && !experts)) continue;
      check_format(is_neutral(key, name, size_dependent), file(), ": ", shown(name), " = ",
                   all_.text(value), " is not supported");
    }
  }

 private:
  bool is_neutral(const std::string& key, const std::string& name,
                  const std::vector<Neutral>& size_dependent) const {
    const std::optional<double> value = all_.single_number(name);
    if (!value) return false;
    std::vector<double> neutral = {0};
    for (const std::vector<Neutral>& table : {size_dependent, neutral_values()}) {
      for (const Neutral& row : table) {
        if (row.key == key) neutral = row.values;
      }
    }
    return std::any_of(neutral.begin(), neutral.end(),
                       [&](double x) { return std::abs(*value - x) <= 1e-6 * std::abs(x); });
  }

  const GgufMetadata& all_;
  std::string prefix_;
};

// Tokens that end a text by their spelling, as in llama.cpp.
constexpr std::string_view kEnds[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>",         "<|return|>",        "<|call|>",
    "<|flush|>",  "<|calls|>",  "<|endoftext|>",   "<end_of_turn>",     "<|eom_id|>",
    "<EOT>",      "_<EOT>",     "<|end_of_text|>", "<end_of_utterance>"};

// A text ends at the end of text, of a turn or of a message, as in llama.cpp.
void add_special_ids(Json& config, const GgufMetadata& metadata) {
  for (const auto& [key, name] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token_id"),
                                  std::pair("tokenizer.ggml.padding_token_id", "pad_token_id")}) {
    if (const auto id = metadata.integer(key)) config[name] = *id;
  }
  std::vector<int64_t> ends;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    const auto id = metadata.integer(key);
    if (id && std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
  }
  const std::vector<std::string> tokens = metadata.strings("tokenizer.ggml.tokens");
  auto has = [&](std::string_view text) {
    return std::find(tokens.begin(), tokens.end(), text) != tokens.end();
  };
  const bool harmony = has("<|return|>") && has("<|call|>");  // there <|end|> ends a message only
  for (size_t id = 0; id < tokens.size(); ++id) {
    const bool is_end =
        std::find(std::begin(kEnds), std::end(kEnds), tokens[id]) != std::end(kEnds);
    const bool known = std::find(ends.begin(), ends.end(), int64_t(id)) != ends.end();
    if (is_end && !known && !(harmony && tokens[id] == "<|end|>")) ends.push_back(int64_t(id));
  }
  if (ends.size() == 1) config["eos_token_id"] = ends.front();
  if (ends.size() > 1) config["eos_token_id"] = ends;
}

// A part of a model, or weights in an old order of quantised values.
void check_general(const GgufMetadata& m) {
  const std::string type = m.string("general.type").value_or("model");
  check_format(type == "model", m.file(), ": general.type '", shown(type),
               "' is not supported, only 'model'");
  const int64_t parts = m.integer("split.count").value_or(1);
  check_format(parts <= 1, m.file(), ": is one of ", parts,
               " files of a model, which is not supported; merge them first");
  const int64_t version = m.integer("general.quantization_version").value_or(2);
  check_format(version == 2, m.file(), ": general.quantization_version is ", version, ", wanted 2");
}

// "rope_scaling": null, linear, or Llama 3's. As in llama.cpp a scaling without a type is linear,
// the older key counts where the newer is missing, a factor of 0 is none, and "none" never scales.
Json scaling(const Keys& keys, const GgufFacts& facts, double theta) {
  const std::string type = keys.string("rope.scaling.type", "linear");
  const int64_t context = keys.integer("rope.scaling.original_context_length", 0);
  check_format(type == "none" || type == "linear" || (type == "llama3" && facts.has_factors()),
               keys.file(), ": ", keys.name("rope.scaling.type"), " '", shown(type),
               "' is not supported, only none, linear and Llama 3's rope_freqs.weight");
  double factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1));
  if (factor == 0 || type != "linear") factor = 1;
  if (!facts.has_factors()) {
    if (factor == 1) return nullptr;
    return {{"rope_type", "linear"}, {"factor", factor}};
  }
  check_format(factor == 1, keys.file(), ": rope_freqs.weight and a linear scaling by ", factor,
               " together are not supported");
  return llama3_scaling(keys.file(), facts.rope_factors, theta, context);
}

// Neutral values that follow from the sizes: the usual scale of scores, and a width that is kept.
std::vector<Neutral> sized_values(const Keys& keys, const GgufHeads& heads) {
  return {{"attention.scale", {0, 1 / std::sqrt(double(heads.size))}},
          {"embedding_length_out", {0, double(keys.integer("embedding_length"))}}};
}

Json llama_like_config(const Keys& keys, const GgufArchitecture& architecture,
                       const GgufFacts& facts, const GgufHeads& heads) {
  keys.refuse_others({"block_count",
                      "context_length",
                      "embedding_length",
                      "feed_forward_length",
                      "attention.head_count",
                      "attention.head_count_kv",
                      "attention.key_length",
                      "attention.value_length",
                      "attention.layer_norm_rms_epsilon",
                      "attention.sliding_window",
                      "attention.sliding_window_pattern",
                      "rope.freq_base",
                      "rope.dimension_count",
                      "rope.scaling.type",
                      "rope.scaling.factor",
                      "rope.scale_linear",
                      "rope.scaling.original_context_length",
                      "rope.scaling.finetuned",
                      "vocab_size",
                      "tensor_data_layout"},
                     sized_values(keys, heads));
  const int64_t hidden = keys.integer("embedding_length"), context = keys.integer("context_length");
  const int64_t rotated = keys.integer("rope.dimension_count", heads.size);
  check_format(rotated == heads.size, keys.file(), ": ", keys.name("rope.dimension_count"), " is ",
               rotated, ", only all ", heads.size, " features of a head are supported");
  const int64_t window = keys.integer("attention.sliding_window", 0);
  check_format(window == 0 || window >= context, keys.file(), ": ",
               keys.name("attention.sliding_window"), " of ", window, " is below the context of ",
               context, ", which is not supported");
  const double theta = keys.number("rope.freq_base", 10000);
  auto has = [&](const char* name) { return facts.tensors.contains(name); };
  Json config = {{"architectures", {architecture.hf_class}},
                 {"model_type", architecture.name},
                 {"vocab_size", facts.vocabulary},
                 {"hidden_size", hidden},
                 {"intermediate_size", keys.integer("feed_forward_length")},
                 {"num_hidden_layers", keys.integer("block_count")},
                 {"num_attention_heads", heads.queries},
                 {"num_key_value_heads", heads.keys},
                 {"max_position_embeddings", context},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", keys.number("attention.layer_norm_rms_epsilon")},
                 {"rope_theta", theta},
                 {"rope_scaling", scaling(keys, facts, theta)},
                 {"tie_word_embeddings", facts.tied}};
  if (architecture.name != "qwen2" || heads.size * heads.queries != hidden)
    config["head_dim"] = heads.size;
  if (architecture.name != "qwen2") config["attention_bias"] = has("blk.0.attn_q.bias");
  if (architecture.name == "llama") config["mlp_bias"] = has("blk.0.ffn_gate.bias");
  return config;
}

Json gpt2_config(const Keys& keys, const GgufArchitecture& architecture, const GgufFacts& facts,
                 const GgufHeads& heads) {
  keys.refuse_others({"block_count", "context_length", "embedding_length", "feed_forward_length",
                      "attention.head_count", "attention.head_count_kv",
                      "attention.layer_norm_epsilon", "vocab_size"},
                     sized_values(keys, heads));
  check_format(heads.keys == heads.queries, keys.file(), ": ", keys.name("attention.head_count_kv"),
               " is ", heads.keys, ", only ", heads.queries, " is supported, the number of heads");
  return {{"architectures", {architecture.hf_class}},
          {"model_type", architecture.name},
          {"vocab_size", facts.vocabulary},
          {"n_positions", keys.integer("context_length")},
          {"n_embd", keys.integer("embedding_length")},
          {"n_layer", keys.integer("block_count")},
          {"n_head", heads.queries},
          {"n_inner", keys.integer("feed_forward_length")},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", keys.number("attention.layer_norm_epsilon")},
          {"tie_word_embeddings", facts.tied}};
}

// Llama 3's factor for a frequency: 1 for short waves, `factor` for long ones, between by the
// share of the original context that a wave takes.
double llama3_factor(double wave, double context, double factor, double low, double high) {
  if (wave < context / high) return 1;
  if (wave > context / low) return factor;
  const double smooth = (context / wave - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

GgufHeads heads_of(const GgufMetadata& metadata, const std::string& architecture) {
  const Keys keys(metadata, architecture);
  GgufHeads heads{};
  heads.queries = keys.integer("attention.head_count");
  heads.keys = keys.integer("attention.head_count_kv", heads.queries);
  const int64_t hidden = keys.integer("embedding_length");
  check_format(heads.queries > 0 && heads.keys > 0, keys.file(), ": has ", heads.queries,
               " heads and ", heads.keys, " of keys, wanted at least 1");
  check_format(hidden % heads.queries == 0 || metadata.has(keys.name("attention.key_length")),
               keys.file(), ": embedding_length ", hidden, " is not a multiple of ", heads.queries,
               " heads");
  heads.size = keys.integer("attention.key_length", hidden / heads.queries);
  const int64_t values = keys.integer("attention.value_length", heads.size);
  check_format(heads.size > 0 && values == heads.size, keys.file(), ": heads of ", heads.size,
               " features for keys and ", values, " for values are not supported");
  return heads;
}

}  // namespace

Json llama3_scaling(const std::string& file, const std::vector<float>& factors, double theta,
                    int64_t context) {
  constexpr double kLow = 1, kHigh = 4;
  const int64_t original = context > 0 ? context : 8192;
  const double factor = *std::max_element(factors.begin(), factors.end());
  if (std::all_of(factors.begin(), factors.end(), [](float x) { return x == 1; })) return nullptr;
  for (size_t i = 0; i < factors.size(); ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(theta, double(i) / double(factors.size()));
    const double wanted = llama3_factor(wave, double(original), factor, kLow, kHigh);
    check_format(std::abs(factors[i] - wanted) <= 1e-4 * wanted, file, ": rope_freqs.weight[", i,
                 "] is ", factors[i], ", Llama 3's scaling by ", factor, " has ", wanted,
                 "; other scalings are not supported");
  }
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLow},
          {"high_freq_factor", kHigh},
          {"original_max_position_embeddings", original}};
}

GgufModel::GgufModel(const Path& path)
    : WeightFile(path),
      header_(path, file()),
      architecture_(architecture_of(
          path.string(), header_.metadata.required("general.architecture", &GgufMetadata::string))),
      heads_(heads_of(header_.metadata, architecture_.name)) {
  for (const GgufTensor& t : header_.tensors) {
    facts_.tensors.insert(t.name);
    if (t.name == "token_embd.weight") facts_.vocabulary = t.shape.front();
  }
  check_format(facts_.vocabulary > 0, path.string(), ": has no tensor 'token_embd.weight'");
  facts_.tied = true;
  for (const GgufTensor& t : header_.tensors) add_tensor(t);
  sort_entries();
}

void GgufModel::add_tensor(const GgufTensor& t) {
  if (t.name == "rope_freqs.weight") return read_rope_factors(t);
  if (t.name == "output.weight") {
    if (repeats_embedding(t)) return;
    facts_.tied = false;
  }
  const HfName to = hf_name(architecture_, t.name);
  WeightInfo info{to.name, t.type->name, t.shape, file().data() + t.begin, t.size};
  const std::string where = join(path().string(), ": tensor '", shown(t.name), "'");
  if (to.layout == GgufLayout::transposed) {
    check_format(t.shape.size() == 2, where, ": has ", t.shape.size(), " axes, wanted 2");
    std::swap(info.shape[0], info.shape[1]);
  } else if (to.layout != GgufLayout::same) {
    const int64_t heads = to.layout == GgufLayout::query_pairs ? heads_.queries : heads_.keys;
    const uint64_t size = t.shape.front() / uint64_t(heads);
    check_format(t.shape.size() <= 2 && t.shape.front() % uint64_t(heads) == 0 && size % 2 == 0,
                 where, ": ", t.shape.front(), " rows are not ", heads,
                 " heads of an even number of features");
  }
  const bool fresh = stored_.emplace(to.name, Stored{t.type, to.layout}).second;
  check_format(fresh, where, ": another tensor is '", shown(to.name), "', too");
  add(std::move(info));
}

void GgufModel::read_rope_factors(const GgufTensor& t) {
  const std::string where = join(path().string(), ": tensor '", t.name, "'");
  check_format(t.type->dtype == Dtype::f32 && !t.type->dequantise && t.shape.size() == 1 &&
                   int64_t(t.shape[0]) == heads_.size / 2,
               where, ": has ", t.shape[0], " values of type ", t.type->name, ", wanted ",
               heads_.size / 2, " of F32");
  facts_.rope_factors.resize(t.shape[0]);
  std::memcpy(facts_.rope_factors.data(), file().data() + t.begin, t.size);
}

bool GgufModel::repeats_embedding(const GgufTensor& head) const {
  const auto embedding = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                                      [](auto& t) { return t.name == "token_embd.weight"; });
  return head.type == embedding->type && head.shape == embedding->shape &&
         std::memcmp(file().data() + head.begin, file().data() + embedding->begin, head.size) == 0;
}

Json GgufModel::config() const {
  check_general(header_.metadata);
  const Keys keys(header_.metadata, architecture_.name);
  Json config = (architecture_.name == "gpt2" ? gpt2_config : llama_like_config)(
      keys, architecture_, facts_, heads_);
  add_special_ids(config, header_.metadata);
  return config;
}

Dtype GgufModel::dtype_of(const WeightInfo& e) const { return stored_.at(e.name).type->dtype; }

bool GgufModel::in_order(const WeightInfo& e) const {
  const Stored& stored = stored_.at(e.name);
  return !stored.type->dequantise && stored.layout == GgufLayout::same;
}

void GgufModel::gather(const WeightInfo& e, const Tensor& to) const {
  const Stored& stored = stored_.at(e.name);
  if (stored.layout == GgufLayout::transposed) {
    gather_columns(e, stored, to);
  } else {
    gather_rows(e, stored, to);
  }
}

void GgufModel::gather_rows(const WeightInfo& e, const Stored& stored, const Tensor& to) const {
  const bool pairs = stored.layout != GgufLayout::same;
  const bool bias = e.shape.size() == 1;
  // A row of the file; one value of a bias in pairs, which is then not quantised.
  const int64_t n = bias && pairs ? 1 : int64_t(e.shape.back()), rows = to.numel() / n;
  check_format(n % stored.type->values == 0, path().string(), ": tensor '", shown(e.name),
               "' is a bias of type ", stored.type->name, ", which is not supported");
  const int64_t heads = stored.layout == GgufLayout::key_pairs ? heads_.keys : heads_.queries;
  const uint64_t bytes = uint64_t(n) / stored.type->values * stored.type->bytes;
  const size_t width = item_size(to.dtype());
  parallel_for(rows, std::max<int64_t>(1, kValuesAtOnce / n), [&](int64_t begin, int64_t end) {
    std::vector<float> values(to.dtype() == Dtype::f32 ? 0 : size_t(n));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = pairs ? row_in_file(row, rows / heads) : row;
      unsigned char* out = to.raw() + size_t(row * n) * width;
      float* y = values.empty() ? reinterpret_cast<float*>(out) : values.data();
      read_gguf_row(*stored.type, e.bytes + uint64_t(from) * bytes, n, y);
      if (!values.empty())
        convert_values(out, to.dtype(), reinterpret_cast<unsigned char*>(y), Dtype::f32, n);
    }
  });
}

void GgufModel::gather_columns(const WeightInfo& e, const Stored& stored, const Tensor& to) const {
  const int64_t n = int64_t(e.shape[0]), rows = int64_t(e.shape[1]);  // of a row, in the file
  const uint64_t bytes = uint64_t(n) / stored.type->values * stored.type->bytes;
  const size_t width = item_size(to.dtype());
  parallel_for(rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    std::vector<float> values(size_t(count * n)), column(static_cast<size_t>(count));
    for (int64_t r = 0; r < count; ++r) {
      read_gguf_row(*stored.type, e.bytes + uint64_t(begin + r) * bytes, n, &values[size_t(r * n)]);
    }
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < count; ++r) column[size_t(r)] = values[size_t(r * n + c)];
      convert_values(to.raw() + size_t(c * rows + begin) * width, to.dtype(),
                     reinterpret_cast<unsigned char*>(column.data()), Dtype::f32, count);
    }
  });
}

}  // namespace brine::data
