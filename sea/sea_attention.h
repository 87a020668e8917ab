// SEA as an attention method: estimate, select, attend, mix (docs/method.md sections 1 to 3).
#pragma once

#include "nn/attention/attention.h"
#include "sea/base/config.h"
#include "sea/base/mask.h"
#include "sea/columns/decode_state.h"
#include "sea/columns/estimator.h"

namespace brine::sea {

// Its Tap entries, in addition to those of the model: "V_I", "C_perf" and "Z" where the settings
// have them, "scores" (S),
// "estimate", "n_sel", "selected", "row_pointers",
// "head_offsets", "columns", "probabilities" (of the path that ran), "gates" (before their
// sigmoid), "c_avg"; of forward() with widen = probabilities also "log_estimate" [B, H, T, K],
// which tells L_approx that every key of a column has its probability. It accepts a forced
// "selected" u8 [B, H, T, K].
class SeaAttention : public nn::Attention {
 public:
  SeaAttention(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);

  Tensor forward(const nn::AttentionInput& input) override;
  nn::AttentionTraits traits() const override;
  std::unique_ptr<nn::AttentionState> make_state(const nn::StateRequest& request) const override;
  Tensor step(const nn::AttentionInput& input, nn::AttentionState& state) const override;

 private:
  Mask select(const Estimate& e, const nn::AttentionInput& in, const Visibility& visible,
              int64_t keys) const;
  SeaState& state_of(const nn::AttentionInput& in, nn::AttentionState& state) const;
  Tensor go_on(const nn::AttentionInput& in) const;
  Tensor per_head(const Tensor& x) const;

  SeaConfig config_;
  nn::AttentionShape shape_;
  Estimator& estimator_;
};

}  // namespace brine::sea
