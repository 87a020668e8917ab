// Attention over blocks of keys that 4-bit copies of the keys choose (docs/method.md section 8);
// registers "blocks". Causal models only; nothing is trained.
#pragma once

#include "autograd/ops_blocks.h"
#include "nn/attention/attention.h"

namespace brine::sea {

struct BlocksConfig {
  static constexpr int64_t kDefaultK = 576;

  int64_t k = kDefaultK;  // keys that a row keeps by itself, fixed blocks included
  int64_t block = 32, tile = 32, sinks = 1, local = 1, candidates = 96, columns = 1024;

  void describe(data::Schema& s);
  // Throws an Error that says what is valid.
  void validate(const nn::AttentionShape& shape) const;
  // The blocks of k keys, 0 = as configured, rounded up to whole blocks; a k of at most the fixed
  // blocks is a window.
  BlockConfig blocks(int64_t k = 0) const;
  // Without the columns, which are not those of an estimate.
  nn::MaskSettings mask_settings() const { return {.k = k, .block = block}; }
};

// Its Tap entries: those of nn::show_blocks(); of the mask by keys only if "mask" is requested or
// "kept_keys" is not.
class BlockAttention : public nn::Attention {
 public:
  BlockAttention(nn::Init& init, const nn::AttentionShape& shape, const BlocksConfig& config);

  Tensor forward(const nn::AttentionInput& input) override;
  nn::AttentionTraits traits() const override;
  void calibrate(const Tensor& keys, const Visibility& visible) override;
  std::unique_ptr<nn::AttentionState> make_state(const nn::StateRequest& request) const override;
  Tensor step(const nn::AttentionInput& input, nn::AttentionState& state) const override;

 private:
  friend class BlockState;
  // forward() for the next part of a prompt.
  Tensor go_on(const nn::AttentionInput& in, const BlockConfig& config) const;
  // Of a call; throws for a k beyond the positions.
  BlockConfig blocks_of(const nn::RuntimeOptions& options) const;

  BlocksConfig config_;
  nn::AttentionShape shape_;
  nn::Buffer& key_scale_;  // [G, d]
};

// The decoding state: keys and values, their copies and moments of complete blocks, the blocks of
// the newest row's tile. With a cache of 16 bits steps and moments have its type.
class BlockState : public nn::KeyValueState {
 public:
  BlockState(const BlockAttention& attention, const nn::StateRequest& request);
  // Prompts k, v [B, G, T, d] with the copies of their keys and their mask.
  void fill(int64_t first, const Tensor& k, const Tensor& v, KeyCodes copies,
            const Visibility& visible, const BlockMask& mask);
  // One token of every sequence.
  void append(const Tensor& k, const Tensor& v);
  // The next tokens k and v [1, G, n, d] of one sequence, from the beginning of a block on.
  void extend(int64_t slot, const Tensor& k, const Tensor& v);
  // The last tile's blocks of sequence b of a mask are those of the newest row of a slot.
  void keep_last(int64_t slot, const BlockMask& mask, int64_t tile, int64_t b);

  KeyCodes copies() const;
  KeyCodes copies(int64_t slot, Dtype dtype) const;  // of one sequence, in a type
  BlockMask mask() const;                            // of the newest row's tile

 private:
  void check_values(const std::vector<NamedTensor>& tensors, int64_t tokens,
                    const std::string& source) const override;
  // Copies into block `block` of `count` of the sequences from `first` on, and into the
  // super-blocks that these complete.
  void store(int64_t first, int64_t count, int64_t block, const KeyCodes& copies);

  BlockConfig config_;
  const Tensor& key_scale_;
  Tensor *codes_ = nullptr, *steps_ = nullptr;  // null: a window has no copies
  std::vector<Tensor*> moments_;
  Tensor &counts_, &entries_;  // as in BlockMask

  friend class BlockAttention;
};

}  // namespace brine::sea
