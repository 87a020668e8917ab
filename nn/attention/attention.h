// The interface of attention methods. One method = one file, nn/attention/<name>.cpp or, of those
// that others published, nn/attention/rivals/<name>.cpp (SEA: sea/), that ends in a registration;
// its name is then valid in configs, in the bench and in the tests.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "nn/attention/attention_state.h"
#include "nn/attention/observer.h"
#include "nn/layers/module.h"
#include "tensor/mask/csr.h"
#include "tensor/types.h"

namespace brine::nn {

// The properties that the surrounding model fixes.
struct AttentionShape {
  int64_t heads = 1, head_size = 64;
  int64_t max_positions = 2048;
  bool causal = true;
  int64_t kv_heads = 0;  // of keys and values, divides heads; 0 = heads
  bool rotary = false;   // q and k are rotated by their positions: there is a q_content, k_content
  int64_t hidden_size = 0;  // C of the layer's input; 0 = heads x head_size

  int64_t groups() const { return kv_heads ? kv_heads : heads; }
  int64_t heads_per_group() const { return heads / groups(); }
  int64_t channels() const { return hidden_size ? hidden_size : heads * head_size; }
};

// Settings that may change from call to call without retraining.
struct RuntimeOptions {
  int64_t k = 0;            // kept keys per query and head; 0 = as configured
  int64_t query_skip = 1;   // the estimator runs on every f-th query (docs/method.md section 5)
  bool dense_path = false;  // the T x T reference of a sparse method

  int64_t kept(int64_t configured) const { return k ? k : configured; }
};

struct AttentionInput {
  Tensor q;     // [B, H, T, d]
  Tensor k, v;  // [B, G, T, d]; head h of q attends to the group h G / H
  // q and k before the rotation of rotary positions; undefined under other positions.
  Tensor q_content = {};  // [B, H, T, d]
  Tensor k_content = {};  // [B, G, T, d]
  Tensor hidden;          // [B, T, C] the layer's normed input
  Visibility visible = {};
  RuntimeOptions options = {};
  Tap* tap = nullptr;              // null: the layer is not observed
  RandomStream* random = nullptr;  // null: evaluation
  // Factor of the method's auxiliary loss, if it has one, in the backward pass.
  double aux_loss_weight = 1;
  // The auxiliary loss is put into the tap as "selection_loss" and not attached to the output: the
  // caller adds it to the total loss.
  bool returns_aux_loss = false;
  // In forward(): adds these tokens, the prompts of sequences slot, slot + 1..., which must be
  // empty, or the next part of the prompt of one sequence (AttentionTraits::part_step); requires
  // that there is no tape.
  AttentionState* state = nullptr;
  int64_t slot = 0;
  bool more = false;  // a further part of the prompt follows
};

// The requirements of a decoding state.
struct StateRequest {
  int64_t batch = 1;
  int64_t capacity = 0;  // tokens of a sequence
  Dtype dtype = Dtype::f32;
  // Type of the cached keys, values and features of tokens: 16 bits (dtype f32), or dtype for all
  // of them. None: keys and values in dtype, features as the method does without loss of quality.
  std::optional<Dtype> cache = {};
  bool coded = false;  // keys and values of complete blocks in 8 bits, `cache` is of their steps
  Device device = default_device();
  // query_skip is fixed; k may decrease from step to step, not increase.
  RuntimeOptions options = {};

  Dtype cached() const { return cache.value_or(dtype); }
};

// The properties that a method claims; the contract test verifies them.
struct AttentionTraits {
  bool quadratic = false;    // memory quadratic in T, as of a T x T map or a mask of a share of it
  bool sparse = false;       // leaves keys out, by the options k and dense_path
  bool query_skip = false;   // uses the option query_skip
  bool incremental = false;  // make_state() and step() work
  bool groups = false;       // accepts fewer heads of keys and values than of queries
  bool estimates = false;    // its scores learn from a teacher's attention (the loss approx)
  bool calibrates = false;   // calibrate() sets what it has instead of parameters
  int64_t k_step = 1;        // the option k is rounded up to multiples of it
  bool codes = false;        // a state may be coded (StateRequest)
  int64_t part_step = 0;     // prompts are read in parts that begin at multiples of it; 0: whole
  int64_t part_numbers = 0;  // kept of every token until the last part is read
  // AttentionInput::hidden; q_content and k_content.
  bool reads_hidden = true, reads_content = true;
};

class Attention : public Module {
 public:
  std::optional<ParameterGroup> group() const override { return ParameterGroup::attention; }
  // -> [B, T, H d], heads concatenated; 0 at padded queries.
  virtual Tensor forward(const AttentionInput& input) = 0;
  virtual AttentionTraits traits() const { return {}; }
  // Decoding. A state is valid for the parameters at the time of its creation.
  virtual std::unique_ptr<AttentionState> make_state(const StateRequest& request) const;
  // The next token of every sequence: q, k and v [batch, H, 1, d] -> [batch, 1, H d], the result of
  // forward() for it after the tokens in the state. lengths and dense_path are ignored here.
  virtual Tensor step(const AttentionInput& input, AttentionState& state) const;
  // Sets what the method derives from a text's keys [B, G, T, d], without a gradient. A method that
  // does not calibrate (AttentionTraits) ignores it.
  virtual void calibrate(const Tensor& /*keys*/, const Visibility& /*visible*/) {}
  // Called before every optimizer step with the number of steps done so far.
  virtual void on_step(int64_t /*steps_done*/) {}
};

// The settings of masks that methods share, by field; empty where a method has none.
struct MaskSettings {
  std::optional<std::string> preset = {};  // of SEA
  std::optional<int64_t> k = {};           // kept keys of a row and head
  std::optional<int64_t> block = {};       // keys of a block
  std::optional<int64_t> columns = {};     // of an estimate, or of best columns
  std::optional<SelectMode> mode = {};     // which rows share one budget of columns
};

inline constexpr data::Named<SelectMode> kSelectModes[] = {
    {SelectMode::per_query, "per-query"},
    {SelectMode::per_head, "per-head"},
    {SelectMode::per_batch, "per-batch"},
    {SelectMode::causal_per_batch, "causal-per-batch"}};

// The configuration of a method, which can be checked and printed without making the method.
class AttentionMethod {
 public:
  virtual ~AttentionMethod() = default;
  virtual std::string name() const = 0;
  virtual void describe(data::Schema& schema) = 0;
  virtual MaskSettings mask() const = 0;
  // The block of a layer; its values are drawn also where the base's are not (Init::base_values).
  // Throws an Error when the method does not accept the shape or its configuration, for groups of
  // heads too if it does not claim support for them.
  std::unique_ptr<Attention> make(Init& init, const AttentionShape& shape) const;

 private:
  virtual std::unique_ptr<Attention> make_block(Init& init, const AttentionShape& shape) const = 0;
};

using AttentionMethodFactory = std::unique_ptr<AttentionMethod> (*)();
std::map<std::string, AttentionMethodFactory>& attention_methods();
// The methods of their presets, whose names stand for the method with that key `preset`.
std::map<std::string, std::string>& attention_presets();
// Throws, listing the known names.
std::unique_ptr<AttentionMethod> attention_method(const std::string& name);
// Softmax over all visible keys, in either form ("flash", "dense"): the attention of teachers and
// of the bases of adapters.
bool is_full_attention(const std::string& method);

// Those of a configuration: what its mask_settings() returns, or its fields of these names.
template <class Config>
MaskSettings mask_settings_of(const Config& c) {
  if constexpr (requires { c.mask_settings(); }) {
    return c.mask_settings();
  } else {
    MaskSettings out;
    if constexpr (requires { out.k = c.k; }) out.k = c.k;
    if constexpr (requires { out.block = c.block; }) out.block = c.block;
    if constexpr (requires { out.columns = c.columns; }) out.columns = c.columns;
    if constexpr (requires { out.mode = c.mode; }) out.mode = c.mode;
    return out;
  }
}

// Method(Init&, const AttentionShape&, const Config&); Config has describe(Schema&).
template <class Method, class Config>
struct RegisterAttention {
  explicit RegisterAttention(const char* name, const std::vector<std::string>& presets = {}) {
    static const char* registered = name;
    for (const std::string& preset : presets) attention_presets()[preset] = name;
    struct Entry : AttentionMethod {
      Config config;
      std::string name() const override { return registered; }
      void describe(data::Schema& schema) override { config.describe(schema); }
      MaskSettings mask() const override { return mask_settings_of(config); }
      std::unique_ptr<Attention> make_block(Init& init,
                                            const AttentionShape& shape) const override {
        return std::make_unique<Method>(init, shape, config);
      }
    };
    attention_methods()[name] = []() -> std::unique_ptr<AttentionMethod> {
      return std::make_unique<Entry>();
    };
  }
};

// For methods without settings.
struct NoSettings {
  void describe(data::Schema&) {}
};

}  // namespace brine::nn
