// The interface of a model for training, evaluation, dumps and export: a stack of layers that runs
// one layer at a time, and heads. Families: family.h.
#pragma once

#include <algorithm>
#include <string>

#include "nn/attention/attention.h"
#include "nn/layers/positions.h"
#include "nn/layers/projections.h"

namespace brine::nn {

// Sizes that all families have.
struct ModelShape {
  int64_t vocab_size = 0, hidden_size = 0;
  int64_t layers = 0, heads = 1;
  int64_t inner_size = 0;  // of the MLP
  int64_t max_positions = 0;
  bool causal = true;      // false: an encoder
  int64_t kv_heads = 0;    // of keys and values; 0 = heads
  int64_t head_width = 0;  // 0 = hidden_size / heads
  bool rotary = false;     // positions rotate q and k

  int64_t head_size() const { return head_width ? head_width : hidden_size / heads; }
  AttentionShape attention() const {
    return {.heads = heads,
            .head_size = head_size(),
            .max_positions = max_positions,
            .causal = causal,
            .kv_heads = kv_heads,
            .rotary = rotary,
            .hidden_size = hidden_size};
  }
};

// Called by every layer with the input of its attention method and the result [B, T, H d], while
// both are alive: what another method needs to learn to give the same result.
struct AttentionObserver {
  virtual ~AttentionObserver() = default;
  virtual void observe(const AttentionInput& input, const Tensor& output) = 0;
};

// One forward pass. Padding is given as `lengths` when it is on the right, else as a mask.
struct ModelCall {
  Tensor ids;                  // i32 [B, T]
  Tensor lengths = {};         // i64 [B]; undefined = all T
  Tensor attention_mask = {};  // u8 [B, T], 1 = token, 0 = padding, anywhere; needs no lengths
  Tensor type_ids = {};        // i32 [B, T] segments, for encoders; undefined = all 0
  Tensor positions = {};       // i32 [B, T], set by pack_rows()
  RuntimeOptions options = {};
  LayerObserver* observer = nullptr;
  AttentionObserver* attention_observer = nullptr;
  RandomStream* random = nullptr;  // null: evaluation, no dropout
  double aux_loss_weight = 1;      // AttentionInput::aux_loss_weight
  bool recompute = false;          // keep only layer inputs, run layers again in backward
  // Decoding, set by ModelState for each layer: see AttentionInput. With token_positions, i64 [B],
  // the ids are the tokens from these positions of their sequences on: one of each in a step, those
  // of a part of a prompt with `prompt`.
  AttentionState* state = nullptr;
  int64_t slot = 0;
  Tensor token_positions = {};
  bool prompt = false, more = false;
  bool is_step() const { return token_positions.defined() && !prompt; }
};

// The same call with every sequence's tokens moved to the front, in order: lengths replace its
// mask, and positions[b, t] is the earlier position of token t. A call without a mask is packed
// already.
ModelCall pack_rows(const ModelCall& call);
// Rows x [B, T, C] of a packed call at the positions of the mask, 0 at padding.
Tensor unpack_rows(const Tensor& x, const ModelCall& packed_call);

class Model : public Module {
 public:
  // One layer at a time, for a teacher that runs in lockstep: x = embed(call), x = layer(0, x,
  // call, tap), ..., finish(x). The call is packed; the tap's tensors and x are packed too.
  virtual Tensor embed(const ModelCall& call) = 0;  // [B, T, C]
  virtual Tensor layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) = 0;
  virtual Tensor finish(const Tensor& x) = 0;  // the part after the last layer
  // The whole model; calls call.observer after every layer. Rows are at the positions of the call's
  // ids.
  Tensor hidden(const ModelCall& call);  // [B, T, C]; where a model projects, [B, T, its width]

  // Heads; a model without the head throws.
  // hidden [R..., C] -> [R..., V]: next tokens of a causal model, masked tokens of an encoder.
  virtual Tensor logits(const Tensor& hidden) const = 0;
  virtual bool has_logits() const { return true; }
  // Rows of hidden for which logits are computed at once by those who need each row once: of 50,000
  // words these are 64 MiB for 330 rows.
  int64_t rows_of_logits() const {
    return std::max<int64_t>(1, (int64_t(1) << 24) / std::max<int64_t>(1, shape_.vocab_size));
  }
  // hidden [B, T, C] of a packed call -> [B, labels].
  virtual Tensor class_logits(const Tensor& hidden, RandomStream* random = nullptr) const;
  virtual int64_t labels() const { return 0; }  // 0: no classification head

  virtual Attention& attention(int64_t i) const = 0;
  AttentionTraits attention_traits() const { return attention(0).traits(); }
  // Path of layer i's attention method: "model.decoder.layers.0.self_attn.sea.".
  virtual std::string attention_prefix(int64_t i) const = 0;
  // Rotary positions of all layers; null under other kinds.
  virtual const Positions* rotary_positions() const { return nullptr; }
  // True for the names of tensors that belong to an attention method.
  bool is_attention_tensor(const std::string& name) const;

  const ModelShape& shape() const { return shape_; }
  const std::string& attention_name() const { return attention_name_; }

 protected:
  Model(const ModelShape& shape, std::string attention_name)
      : shape_(shape), attention_name_(std::move(attention_name)) {}
  // Throws when the ids are not [B, T] or longer than the positions; `family` starts the message.
  void check_ids(const ModelCall& call, const char* family) const;

 private:
  ModelShape shape_;
  std::string attention_name_;
};

// The attention of one layer, composed of its parts.
struct AttentionParts {
  AttentionShape shape;
  Projections projections;
  Attention& method;
  const Positions* positions = nullptr;  // rotary positions rotate q and k; null: none
  // Over the features of each head of q and k, before the rotation; null: none.
  const Norm* query_norm = nullptr;
  const Norm* key_norm = nullptr;
};
// x [B, T, C], the layer's normed input -> the attention output [B, T, H d], before the output
// projection.
Tensor attend(const AttentionParts& parts, const Tensor& x, const ModelCall& call, Tap* tap);

// The activation of a model's MLP, by its name in config.json.
inline constexpr data::Named<Activation> kRelu{Activation::relu, "relu"};
inline constexpr data::Named<Activation> kGelu{Activation::gelu, "gelu"};
inline constexpr data::Named<Activation> kSilu{Activation::silu, "silu"};
inline constexpr data::Named<Activation> kGeluNew{Activation::gelu_tanh, "gelu_new"};
inline constexpr data::Named<Activation> kActivations[] = {kRelu, kGelu, kSilu, kGeluNew};

// Targets of next-token prediction: ids [B, T] -> i32 [B, T], the target of position t is token t +
// 1; the last one of a sequence (t + 1 >= L) and all before `loss_from` have none (-1).
Tensor next_tokens(const Tensor& ids, const Tensor& lengths, int64_t loss_from = 0);

}  // namespace brine::nn
