// Attention methods as their registry makes them, and a tiny model that learns and decodes.
#include <memory>

#include "apps/selftest/cases.h"
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

// Few keys, so that a mask leaves some out.
void set_few_keys(nn::AttentionMethod& method) {
  data::Schema schema;
  method.describe(schema);
  for (const auto& [key, value] : {std::pair{"k", "4"}, {"columns", "12"}, {"block", "2"}}) {
    if (schema.find(key)) schema.set_text(key, {value});
  }
}

std::unique_ptr<nn::Attention> made(const std::string& name, bool causal, Dtype type) {
  const std::unique_ptr<nn::AttentionMethod> method = nn::attention_method(name);
  set_few_keys(*method);
  nn::Init init{.random = {.seed = 5}, .dtype = type, .linear_std = 0.3};
  return method->make(
      init, {.heads = kHeads, .head_size = kSize, .max_positions = 300, .causal = causal});
}

std::vector<Tensor> run_method(const std::string& name, bool causal, const Place& p) {
  const OnDefault here(p.device);
  const std::unique_ptr<nn::Attention> method = made(name, causal, p.type);
  std::unique_ptr<nn::ParameterStore> store;
  if (method->named_parameters().empty()) {
    nn::move_buffers(*method, p.device);
  } else {
    store = std::make_unique<nn::ParameterStore>(*method);
    store->zero_gradients();
  }
  const Shape heads{3, kHeads, 75, kSize};
  const Tensor q = require_grad(p.normal(heads, 1)), k = require_grad(p.normal(heads, 2));
  const Tensor v = require_grad(p.normal(heads, 3));
  const std::vector<int64_t> lengths = {75, 0, 41};
  const Tensor y =
      method->forward({.q = q,
                       .k = k,
                       .v = v,
                       .hidden = p.normal({3, 75, kHeads * kSize}, 4),
                       .visible = {.causal = causal, .lengths = Tensor::from(lengths, {3})}});
  backward(y, p.normal(y.shape(), 99));
  std::vector<Tensor> out = {y.detach()};
  for (const Tensor& x : {q, k, v}) out.push_back(has_grad(x) ? grad(x) : Tensor());
  if (store) out.push_back(store->gradients().clone());
  return out;
}

std::unique_ptr<nn::Model> tiny_model(const std::string& method, Dtype type) {
  nn::ModelConfig config;
  config.as<nn::OptConfig>() = {.vocab_size = 61,
                                .hidden_size = kHeads * kSize,
                                .num_hidden_layers = 2,
                                .num_attention_heads = kHeads,
                                .ffn_dim = 40,
                                .max_position_embeddings = 64,
                                .init_std = 0.15};
  config.attention = method;
  set_few_keys(config.method());
  return nn::make_model(config, 3, type);
}

// The loss of next tokens, its gradient, and the weights after a step.
std::vector<Tensor> train(const std::string& method, const Place& p) {
  const OnDefault here(p.device);
  const std::unique_ptr<nn::Model> model = tiny_model(method, p.type);
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
std::vector<Tensor> decode(const std::string& method, const Place& p) {
  const NoGrad off;
  const OnDefault here(p.device);
  const std::unique_ptr<nn::Model> model = tiny_model(method, p.type);
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

}  // namespace

std::vector<Case> method_cases() {
  std::vector<Case> all;
  for (const auto& [name, factory] : nn::attention_methods()) {
    for (bool causal : {true, false}) {
      try {
        made(name, causal, Dtype::f64);
      } catch (const Error&) {
        continue;  // for instance of a method that is for causal models alone
      }
      all.push_back(
          {.name = join("attention ", name, causal ? ", causal" : ", bidirectional"),
           .f64 = 1e-9,
           .f32 = -1,
           .run = [name = name, causal](const Place& p) { return run_method(name, causal, p); }});
    }
  }
  return all;
}

std::vector<Case> model_cases() {
  std::vector<Case> all;
  for (const char* method : {"flash", "dense", "sea"}) {
    const std::string name = method;
    const double f32 = name == "sea" ? -1 : 1e-3;
    all.push_back(
        {.name = "training with " + name, .f64 = 1e-9, .f32 = f32, .run = [name](const Place& p) {
           return train(name, p);
         }});
    all.push_back(
        {.name = "decoding with " + name, .f64 = 1e-9, .f32 = f32, .run = [name](const Place& p) {
           return decode(name, p);
         }});
  }
  return all;
}

}  // namespace brine::selftest
