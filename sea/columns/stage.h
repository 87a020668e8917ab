// The stages of an estimator: what each reads and writes in a pass over whole sequences and, of
// causal models, for one new token of every sequence.
#pragma once

#include <memory>
#include <vector>

#include "nn/layers/module.h"
#include "sea/base/config.h"

namespace brine::sea {

// Queries and keys of a layer, as the projections and the positions give them: q is not scaled.
struct LayerTokens {
  Tensor q;     // [B, H, T, d]
  Tensor k, v;  // [B, G, T, d]; head h has the group h G / H
  // q and k before the rotation of rotary positions, undefined under other positions.
  Tensor q_content = {}, k_content = {};
};

// The tensors of an estimator for a batch, in the order of computation; those of stages that the
// settings leave out are undefined.
struct Estimate {
  Tensor phi_q, phi_k;       // [B, H, T, m], [B, G, T, m] random features; m is padded on a GPU
  Tensor performer_context;  // C_perf [B, H, T, 2d]
  Tensor features;           // Z [B, H, T, 2d]
  Tensor identity_rows;      // V_I [B, T, d], 0 at padding; with Wanted::scores
  Tensor psi_q, psi_k;       // [B, H, T, m], [B, G, T, m] features of the prior
  Tensor scores;             // S [B, H, T, K], including the priors
  Tensor estimate;           // [B, H, T, K], rows sum to 1 over the columns that contain a key
  Tensor gates;              // [B, H, T, 2] (s_prob, s_mix) before their sigmoid
  // If requested, what every convolution reads, with the rows and columns of zeros.
  std::vector<Tensor> decoder_images;
};

// What a caller reads: the estimate, the features of keys and the gates; or the scores, too; or the
// images of the decoder, too. What is not wanted may be undefined.
enum class Wanted : uint8_t { estimate, scores, images };

// A pass over whole sequences.
struct Pass {
  const LayerTokens& x;
  const Visibility& visible;
  int64_t query_skip = 1;
  Wanted wanted = Wanted::scores;

  int64_t batch() const { return x.q.dim(0); }
  int64_t tokens() const { return x.q.dim(2); }
  // Rows whose scores are computed.
  int64_t rows() const { return (tokens() + query_skip - 1) / query_skip; }
};

// Prompts whose estimate `e` was computed, for the sequences first, first + 1...; after earlier
// parts, e.psi_k is of all tokens so far.
struct Prompts {
  int64_t first;
  const LayerTokens& x;
  const Visibility& visible;
  const Estimate& e;
  bool more = false;  // a further part follows
};

class SeaState;

// What a stage keeps of the tokens so far: parts of the block's state.
struct StageState {
  virtual ~StageState() = default;
};

// One new token of every sequence.
struct NewTokens {
  const LayerTokens& x;  // T = 1
  const SeaState& state;
  Tensor at;  // i64 [B] its position
};

class Stage : public nn::Module {
 public:
  virtual std::unique_ptr<StageState> make_state(SeaState& /*state*/,
                                                 const nn::StateRequest& /*request*/) const {
    return std::make_unique<StageState>();
  }
  virtual void fill(StageState& /*kept*/, const SeaState& /*state*/,
                    const Prompts& /*prompts*/) const {}
};

// Writes tensors of every token into an estimate.
class TokenStage : public Stage {
 public:
  virtual void run(Estimate& e, const Pass& pass) const = 0;
  virtual void step(Estimate& e, const NewTokens& tokens, StageState& kept) const = 0;
};

// Computes scores [B, H, rows, K], or adds to those of the stages before it.
class ScoreStage : public Stage {
 public:
  virtual Tensor run(const Tensor& scores, Estimate& e, const Pass& pass) const = 0;
  // What later tokens need of this one, whether or not its scores are computed.
  virtual void append(const Estimate& /*e*/, const NewTokens& /*tokens*/,
                      StageState& /*kept*/) const {}
  // The sequences first .. first + count.
  virtual Tensor step(const Tensor& scores, const Estimate& e, const NewTokens& tokens,
                      int64_t first, int64_t count, StageState& kept) const = 0;
};

}  // namespace brine::sea
