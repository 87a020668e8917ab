// Attention methods as their registry makes them, and a tiny model that learns and decodes.
#include <algorithm>
#include <memory>

#include "apps/selftest/cases.h"
#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "data/config/schema.h"
#include "nn/attention/attention.h"
#include "nn/models/model_config.h"
#include "nn/models/model_state.h"
#include "nn/models/opt/opt.h"
#include "nn/optim/parameter_store.h"

namespace brine::selftest {
namespace {

constexpr int64_t kHeads = 3, kSize = 8;

// While an object lives, modules are made on the device.
struct OnDefault {
  explicit OnDefault(Device device) : before(default_device()) { set_default_device(device); }
  ~OnDefault() { set_default_device(before); }
  OnDefault(const OnDefault&) = delete;
  Device before;
};

// Few keys, so that a mask leaves some out; or all of them: then nothing is selected, and a case is
// firm in f32. Of sea also blocks of keys, of two levels from 24 tokens on.
enum class Keys { few, all, blocks };

void set_keys(nn::AttentionMethod& method, Keys keys) {
  data::Schema schema;
  method.describe(schema);
  const char* k = keys == Keys::few ? "4" : "300";
  std::vector<std::pair<const char*, const char*>> settings = {
      {"k", k}, {"columns", "12"}, {"block", "2"}, {"tile", "2"}};
  if (keys == Keys::blocks) {
    settings = {{"preset", "blocks"}, {"k", "8"}, {"columns", "5"}, {"block", "4"}, {"tile", "2"}};
  }
  for (const auto& [key, value] : settings) {
    if (schema.find(key)) schema.set_text(key, {value});
  }
}

const char* name_of_keys(Keys keys) {
  return keys == Keys::few ? "" : keys == Keys::all ? " of every key" : " of blocks";
}

std::unique_ptr<nn::Attention> made_method(const std::string& name, bool causal, Dtype type,
                                           Keys keys) {
  const std::unique_ptr<nn::AttentionMethod> method = nn::attention_method(name);
  set_keys(*method, keys);
  nn::Init init{.random = {.seed = 5}, .dtype = type, .linear_std = 0.3};
  return method->make(
      init, {.heads = kHeads, .head_size = kSize, .max_positions = 300, .causal = causal});
}

std::vector<Tensor> run_method(const std::string& name, bool causal, Keys keys, const Place& p) {
  const OnDefault here(p.device);
  const std::unique_ptr<nn::Attention> method = made_method(name, causal, p.type, keys);
  std::unique_ptr<nn::ParameterStore> store;
  if (method->named_parameters().empty()) {
    nn::move_buffers(*method, p.device);
  } else {
    store = std::make_unique<nn::ParameterStore>(*method);
    store->zero_gradients();
  }
  const Shape heads{3, kHeads, 66, kSize};
  const Tensor q = require_grad(p.normal(heads, 1)), k = require_grad(p.normal(heads, 2));
  const Tensor v = require_grad(p.normal(heads, 3));
  const std::vector<int64_t> lengths = {66, 0, 41};
  const Tensor y =
      method->forward({.q = q,
                       .k = k,
                       .v = v,
                       .hidden = p.normal({3, 66, kHeads * kSize}, 4),
                       .visible = {.causal = causal, .lengths = Tensor::from(lengths, {3})}});
  backward(y, p.normal(y.shape(), 99));
  std::vector<Tensor> out = {y.detach()};
  for (const Tensor& x : {q, k, v}) out.push_back(has_grad(x) ? grad(x) : Tensor());
  if (store) out.push_back(store->gradients().clone());
  return out;
}

std::unique_ptr<nn::Model> tiny_model(const std::string& method, Dtype type, Keys keys) {
  nn::ModelConfig config;
  config.as<nn::OptConfig>() = {.vocab_size = 61,
                                .hidden_size = kHeads * kSize,
                                .num_hidden_layers = 2,
                                .num_attention_heads = kHeads,
                                .ffn_dim = 40,
                                .max_position_embeddings = 64,
                                .init_std = 0.15};
  config.attention = method;
  set_keys(config.method(), keys);
  return nn::make_model(config, 3, type);
}

// The loss of next tokens and its gradients.
std::vector<Tensor> train(const std::string& method, Keys keys, const Place& p) {
  const OnDefault here(p.device);
  const std::unique_ptr<nn::Model> model = tiny_model(method, p.type, keys);
  nn::ParameterStore store(*model);
  store.zero_gradients();
  const Tensor ids = p.ids({2, 40}, 7, 61);
  const Tensor hidden = model->hidden({.ids = ids});
  const Tensor logits = model->logits(reshape(hidden, {80, hidden.dim(2)}));
  const Tensor target = reshape(nn::next_tokens(ids, {}), {80});
  const Tensor loss = sum(cross_entropy(logits, target));
  backward(loss);
  return {loss.detach(), store.gradients().clone()};
}

// The logits after a prompt and after each of a few tokens.
std::vector<Tensor> decode(const std::string& method, Keys keys, const Place& p) {
  const NoGrad off;
  const OnDefault here(p.device);
  const std::unique_ptr<nn::Model> model = tiny_model(method, p.type, keys);
  const nn::ParameterStore store(*model, nn::ParameterStore::Gradients::later);
  nn::ModelState state(*model, {.batch = 2, .capacity = 64, .dtype = p.type});
  std::vector<Tensor> out;
  for (int64_t slot : {0, 1}) {
    out.push_back(model->logits(prefill(*model, state, slot, p.ids({20 + slot}, 8, 61))));
  }
  for (uint64_t i = 0; i < 12; ++i) {
    out.push_back(model->logits(step(*model, state, p.ids({2}, 20 + i, 61))));
  }
  return out;
}

// Methods that choose no keys by their scores: what they compute depends smoothly on rounding.
bool is_firm(const std::string& name) {
  constexpr const char* kFirm[] = {"dense",     "flash",       "recent",     "performer",
                                   "cosformer", "synthesizer", "longformer", "bigbird"};
  return std::find(std::begin(kFirm), std::end(kFirm), name) != std::end(kFirm);
}

}  // namespace

std::vector<Case> method_cases() {
  std::vector<Case> all;
  auto add = [&](const std::string& name, bool causal, Keys keys) {
    const bool firm = keys == Keys::all || is_firm(name);
    all.push_back({.name = join("attention ", name, name_of_keys(keys),
                                causal ? ", causal" : ", bidirectional"),
                   .f64 = 1e-9,
                   .f32 = firm ? 1e-4 : -1,
                   .run = [=](const Place& p) { return run_method(name, causal, keys, p); }});
  };
  for (const auto& [name, factory] : nn::attention_methods()) {
    for (bool causal : {true, false}) {
      try {
        made_method(name, causal, Dtype::f64, Keys::few);
      } catch (const Error&) {
        continue;  // for instance of a method that is for causal models alone
      }
      add(name, causal, Keys::few);
      if (name == "sea") add(name, causal, Keys::all);
      if (name == "sea" && causal) add(name, causal, Keys::blocks);
    }
  }
  return all;
}

std::vector<Case> model_cases() {
  std::vector<Case> all;
  auto add = [&](const std::string& method, Keys keys) {
    const bool selects = method == "sea" && keys != Keys::all;
    const std::string with = join("with ", method, name_of_keys(keys));
    const double f32 = selects ? -1 : 1e-4;
    all.push_back({.name = "training " + with, .f64 = 1e-9, .f32 = f32, .run = [=](const Place& p) {
                     return train(method, keys, p);
                   }});
    all.push_back({.name = "decoding " + with, .f64 = 1e-9, .f32 = f32, .run = [=](const Place& p) {
                     return decode(method, keys, p);
                   }});
    // Numbers at the border of two of 16 bits may be rounded to either: 0.040 and 0.012 were seen.
    for (Dtype type : {Dtype::bf16, Dtype::f16}) {
      if (selects || method == "dense") continue;
      all.push_back({.name = join("training ", with, " in ", type),
                     .f64 = -1,
                     .f32 = type == Dtype::bf16 ? 0.1 : 0.04,
                     .run = [=](const Place& p) {
                       const ComputeType rounded(type);
                       return train(method, keys, p);
                     }});
    }
  };
  for (const char* method : {"flash", "dense", "sea"}) add(method, Keys::few);
  add("sea", Keys::all);
  add("sea", Keys::blocks);
  return all;
}

}  // namespace brine::selftest
