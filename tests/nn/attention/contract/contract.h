// What the contract tests of attention methods share: a small block of every registered method.
#pragma once

#include <cstdlib>
#include <optional>

#include "autograd/ops.h"
#include "nn/attention/attention.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"

namespace brine::test {

inline constexpr int64_t kHeads = 3, kSize = 8;

struct Block {
  std::string name;
  bool causal;
  std::unique_ptr<nn::Attention> module;
  std::unique_ptr<nn::ParameterStore> store;  // null without parameters
  std::map<std::string, std::string> settings = {};
};

// The method with few keys, and with those of the settings that it has.
inline std::unique_ptr<nn::AttentionMethod> method_with(
    const std::string& name, const std::map<std::string, std::string>& settings) {
  std::unique_ptr<nn::AttentionMethod> method = nn::attention_method(name);
  data::Schema schema;
  method->describe(schema);
  std::map<std::string, std::string> all = {
      {"k", "4"}, {"columns", "12"}, {"block", "2"}, {"tile", "2"}};
  for (const auto& [key, value] : settings) all[key] = value;
  for (const auto& [key, value] : all) {
    if (schema.find(key)) schema.set_text(key, {value});
  }
  return method;
}

// A block with few keys and random parameters. Rethrows the errors of the method's constructor.
inline Block make_block(const std::string& name, bool causal, Dtype dtype, uint64_t seed = 5,
                        int64_t positions = 300,
                        const std::map<std::string, std::string>& settings = {}) {
  nn::Init init{.random = {.seed = seed}, .dtype = dtype, .linear_std = 0.3};
  nn::AttentionShape shape{
      .heads = kHeads, .head_size = kSize, .max_positions = positions, .causal = causal};
  Block block{name, causal, method_with(name, settings)->make(init, shape), nullptr, settings};
  uint64_t n = 100 * seed;
  for (const auto& p : block.module->named_parameters()) {  // biases away from 0, gains from 1
    Tensor value = p.parameter->value.detach();
    Tensor noise = normal(value.shape(), ++n, dtype, 0, 0.1);
    dispatch_float(dtype, [&]<class T>() {
      for (int64_t i = 0; i < value.numel(); ++i) value.data<T>()[i] += noise.data<T>()[i];
    });
  }
  if (!block.module->named_parameters().empty()) {
    block.store = std::make_unique<nn::ParameterStore>(*block.module);
  } else {
    nn::move_buffers(*block.module, default_device());
  }
  return block;
}

// The same block on the meta device, without a gradient buffer.
inline Block make_meta_block(const Block& real, int64_t positions = 300) {
  nn::Init init{.random = {}, .device = Device::meta};
  nn::AttentionShape shape{
      .heads = kHeads, .head_size = kSize, .max_positions = positions, .causal = real.causal};
  Block block{real.name, real.causal, method_with(real.name, real.settings)->make(init, shape),
              nullptr, real.settings};
  if (!block.module->named_parameters().empty()) {
    block.store = std::make_unique<nn::ParameterStore>(
        *block.module, nn::ParameterStore::Gradients::later, Device::meta);
  }
  return block;
}

// Settings under which a method is another one to the contract.
inline std::vector<std::map<std::string, std::string>> variants(const std::string& name,
                                                                bool causal) {
  if (name == "best-blocks") {
    return {{{"k", "10"}}, {{"k", "12"}, {"block", "4"}, {"sinks", "0"}, {"local", "0"}}};
  }
  if (name == "blocks") {  // a window, chosen blocks, three levels from 30 keys on
    return {{},
            {{"k", "10"}, {"candidates", "3"}},
            {{"k", "10"}, {"candidates", "3"}, {"columns", "4"}, {"tile", "1"}},
            {{"k", "12"}, {"block", "4"}, {"sinks", "0"}, {"local", "0"}, {"candidates", "2"}}};
  }
  if (name == "recent") return {{}, {{"sinks", "1"}, {"block", "1"}}};
  if (name == "block-topk") return {{}, {{"gate", "true"}}};
  if (name == "performer") return {{}, {{"features", "relu"}, {"feature_count", "5"}}};
  if (name == "cosformer") return {{}, {{"projections", "true"}}};
  if (name == "longformer") return {{}, {{"dilation", "3"}}};
  if (name == "bigbird") return {{}, {{"block", "3"}, {"random_blocks", "2"}}};
  if (name == "synthesizer") return {{}, {{"scores", "random"}}, {{"scores", "factorized"}}};
  if (name != "sea") return {{}};
  std::vector<std::map<std::string, std::string>> all = {
      {}, {{"preset", "light"}}, {{"prior", "learned"}}};
  if (!causal) all.push_back({{"features", "softmax"}});
  if (!causal) all.push_back({{"identity_interpolation", "nearest"}, {"widen", "probabilities"}});
  // Units of keys double at 32, 64, 128... keys.
  if (causal) all.push_back({{"preset", "light"}, {"columns", "4"}});
  return all;
}

// The mask that a method showed: u8 [B, H, T, T], 1 where it keeps a key.
inline Tensor observed_mask(const nn::Tap& tap, int64_t B, int64_t H, int64_t T) {
  return csr_to_mask({.row_pointers = tap.get("row_pointers"),
                      .head_offsets = tap.get("head_offsets"),
                      .columns = tap.get("columns"),
                      .batch = B,
                      .heads = H,
                      .length = T,
                      .keys = T});
}

// The methods to test: all that are registered, or the one of the environment variable
// BRINE_METHOD.
inline std::vector<std::string> methods_to_test() {
  const char* one = std::getenv("BRINE_METHOD");
  if (one && *one) nn::attention_method(one);  // throws for an unknown one
  std::vector<std::string> names;
  for (const auto& [name, factory] : nn::attention_methods())
    if (!one || !*one || name == one) names.push_back(name);
  return names;
}

// Whether so many were tested; of one method it may be any number.
inline bool enough(int tested, int of_all) {
  return std::getenv("BRINE_METHOD") || tested >= of_all;
}

// Whether a decoding state is sums over tokens: its size and type depend neither on the capacity
// nor on the type of a cache.
inline bool decodes_by_sums(const Block& block) {
  return block.name == "performer" || block.name == "cosformer";
}

// Calls f(block) for every method, causal and not; refusals are printed.
template <class F>
void each_block(Dtype dtype, F f, int64_t positions = 300) {
  int made = 0;
  for (const std::string& name : methods_to_test()) {
    for (bool causal : {true, false}) {
      for (const auto& settings : variants(name, causal)) {
        std::string what = name + (causal ? ", causal" : ", bidirectional");
        for (const auto& [key, value] : settings) what += ", " + key + " = " + value;
        std::optional<Block> block;
        try {
          block = make_block(name, causal, dtype, 5, positions, settings);
        } catch (const Error& refusal) {
          MESSAGE(join(what, ", refuses: ", refusal.what()));
          continue;
        }
        INFO(what);
        f(*block);
        ++made;
      }
    }
  }
  CHECK(enough(made, 6));
}

struct Inputs {
  Tensor q, k, v, hidden;
};

inline Inputs inputs(int64_t B, int64_t T, Dtype dtype, uint64_t seed = 40) {
  Shape heads{B, kHeads, T, kSize};
  return {normal(heads, seed, dtype), normal(heads, seed + 1, dtype),
          normal(heads, seed + 2, dtype), normal({B, T, kHeads * kSize}, seed + 3, dtype)};
}

struct Passed {
  Tensor y, q, k, v;  // output and gradients
  Tensor parameters;  // flat gradient; undefined without parameters
};

// Forward, and backward with the cotangent `dy` (default: random).
inline Passed pass(Block& block, const Inputs& in, const Tensor& lengths = {}, Tensor dy = {},
                   const nn::RuntimeOptions& options = {}, nn::Tap* tap = nullptr) {
  if (block.store) block.store->zero_gradients();
  Tensor q = require_grad(in.q.clone()), k = require_grad(in.k.clone());
  Tensor v = require_grad(in.v.clone());
  Tensor y = block.module->forward({.q = q,
                                    .k = k,
                                    .v = v,
                                    .hidden = in.hidden,
                                    .visible = {.causal = block.causal, .lengths = lengths},
                                    .options = options,
                                    .tap = tap});
  backward(y, dy.defined() ? dy : cotangent(y));
  auto of = [](const Tensor& x) { return has_grad(x) ? grad(x) : Tensor::zeros_like(x); };
  return {y.detach(), of(q), of(k), of(v),
          block.store ? block.store->gradients().clone() : Tensor()};
}

// Rows [from, from + n) of axis `axis`.
inline Tensor rows(const Tensor& x, int axis, int64_t from, int64_t n) {
  return x.detach().slice(axis, from, n).contiguous();
}

inline void check_same_bits(const Passed& a, const Passed& b, const std::string& what) {
  CHECK_MESSAGE(same_bits(a.y, b.y), what << ": outputs differ");
  CHECK_MESSAGE(same_bits(a.q, b.q), what << ": gradients of q differ");
  CHECK_MESSAGE(same_bits(a.k, b.k), what << ": gradients of k differ");
  CHECK_MESSAGE(same_bits(a.v, b.v), what << ": gradients of v differ");
  if (a.parameters.defined()) {
    CHECK_MESSAGE(same_bits(a.parameters, b.parameters), what << ": parameter gradients differ");
  }
}

}  // namespace brine::test
