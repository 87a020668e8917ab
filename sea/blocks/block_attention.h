// SEA with a mask of key blocks (docs/method.md section 8): score mean keys, choose blocks, attend,
// mix. Causal models only.
#pragma once

#include "autograd/ops_blocks.h"
#include "nn/attention/attention.h"
#include "sea/base/config.h"
#include "sea/base/prior.h"

namespace brine::sea {

// A factor for each head, [H], that starts at 1: parameter `name`.
struct HeadGain : nn::Module {
  HeadGain(nn::Init& init, const std::string& name, int64_t heads)
      : gain(parameter(name, init.full({heads}, 1), false)) {}
  nn::Parameter& gain;
};

// Its Tap entries: "gates"; if "scores" are requested, those of each level z of the sampled rows:
// "block_scores_z" [B, H, rows, blocks] (-1e4 where a row does not have the block) with their
// "block_rows_z" i64 [rows] and "block_tiles_z" i32; "block_sizes" i64 [3] = block, tile, columns;
// "kept_keys" if requested. Without such a request, or if "mask" is requested too, all of
// nn::show_blocks().
class BlockAttention : public nn::Attention {
 public:
  BlockAttention(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);

  Tensor forward(const nn::AttentionInput& input) override;
  nn::AttentionTraits traits() const override;
  std::unique_ptr<nn::AttentionState> make_state(const nn::StateRequest& request) const override;
  Tensor step(const nn::AttentionInput& input, nn::AttentionState& state) const override;

 private:
  friend class BlockState;
  void show_scores(const nn::AttentionInput& in, const Tensor& tiles,
                   const std::vector<KeyParts>& parts, const Tensor& psi_k) const;

  SeaConfig config_;
  nn::AttentionShape shape_;
  nn::Parameter& gates_;  // [H, 2]
  // Of the learned prior, where the settings have it.
  std::optional<std::reference_wrapper<HeadGain>> prior_gain_;
  HeadGain& mean_gain_;  // of the products with mean keys
  std::optional<std::reference_wrapper<PriorPair>> prior_;
};

// The decoding state: keys and values, mean keys of parts of blocks and sums of features by blocks
// of every level, the blocks of the newest row's tile, the sum of the values.
class BlockState : public nn::KeyValueState {
 public:
  BlockState(const BlockAttention& block, const nn::StateRequest& request);
  // Prompts k, v [B, G, T, d] with their parts of some levels, features psi_k (undefined without a
  // learned prior) and their mask.
  void fill(int64_t first, const Tensor& k, const Tensor& v, std::vector<KeyParts> parts,
            const Tensor& psi_k, const Visibility& visible, const BlockMask& mask);
  // One token of every sequence.
  void append(const Tensor& k, const Tensor& v, const Tensor& psi_k);

  BlockScores scores() const;  // means and sums; q and features are the caller's
  BlockMask mask() const;      // of the newest row's tile

 private:
  // A part of level z, [B, G, rows, width], or without a width [B, G, rows]; a saved state has the
  // rows of complete blocks alone.
  Tensor& rows_of_level(const std::string& name, int64_t z, int64_t parts, int64_t width,
                        const nn::StateRequest& request);
  void fill_sums(int64_t first, const Tensor& psi_k);
  void append_parts(int64_t sequence);

  BlockConfig config_;
  int64_t groups_, levels_;
  std::vector<Tensor*> means_, logs_;  // [B, G, P blocks, d], [B, G, P blocks]
  std::vector<Tensor*> sums_, open_;   // of features [B, G, blocks, m], f64 [B, G, m]; or none
  Tensor &value_sums_, &counts_, &entries_;  // f64 [B, G, d]; as in BlockMask

  friend class BlockAttention;
};

}  // namespace brine::sea
