// Synthesizer: attention maps that no product of queries and keys gives. Dense: a small network
// turns each query into the scores of all positions. Random: one trained table of scores for all
// inputs, or a product of two thin tables (Tay, Bahri, Metzler and others 2021, Synthesizer:
// Rethinking Self-Attention for Transformer Models). All heads share the parameters; quadratic in
// T.
#include <cmath>

#include "autograd/ops.h"
#include "nn/attention/attention.h"
#include "nn/layers/layers.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

enum class Scores : uint8_t { dense, random, factorized };
constexpr data::Named<Scores> kScores[] = {
    {Scores::dense, "dense"}, {Scores::random, "random"}, {Scores::factorized, "factorized"}};

struct SynthesizerConfig {
  Scores scores = Scores::dense;
  int64_t hidden = 64, rank = 8;
  double dropout = 0.1;

  void describe(data::Schema& s) {
    s.choice("scores", scores, kScores,
             "dense: from each query; random: a trained table; factorized: one of low rank");
    s.field("hidden", hidden, "Hidden features of the dense form", {.min = 1});
    s.field("rank", rank, "Rank of the factorized table", {.min = 1});
    s.field("dropout", dropout, "Dropout of the maps in training", {.min = 0, .below = 1});
  }
};

// The first n rows of a parameter.
Tensor first_rows(const Tensor& x, int64_t n) { return slice(x, 0, 0, n); }

class Synthesizer : public Attention {
 public:
  Synthesizer(Init& init, const AttentionShape& shape, const SynthesizerConfig& config)
      : shape_(shape), dropout_(config.dropout) {
    const int64_t P = shape.max_positions;
    if (config.scores == Scores::dense) {
      hidden_ = &child<Linear>("hidden", init, shape.head_size, config.hidden);
      positions_ = &child<Linear>("positions", init, config.hidden, P);
    } else if (config.scores == Scores::random) {
      table_ = &parameter("table", init.normal({P, P}, init.linear_std), false);
    } else {
      const double std = 1 / std::sqrt(double(config.rank));
      rows_ = &parameter("rows", init.normal({P, config.rank}, std), false);
      columns_ = &parameter("columns", init.normal({P, config.rank}, std), false);
    }
  }

  AttentionTraits traits() const override { return {.quadratic = true, .groups = true}; }

  Tensor forward(const AttentionInput& in) override {
    const int64_t T = in.q.dim(2);
    check(T <= shape_.max_positions, "synthesizer: ", T, " tokens, but its maps have ",
          shape_.max_positions, " positions");
    CostScope part("attention");
    return hidden_ ? attend_by_queries(in) : attend_by_table(in);
  }

 private:
  Tensor attend_by_queries(const AttentionInput& in) const {
    const int64_t T = in.q.dim(2);
    const Tensor scores = linear(relu((*hidden_)(in.q)), first_rows(positions_->weight, T),
                                 first_rows(*positions_->bias, T));  // [B, H, T, T]
    const Tensor p = softmax(scores, 1, in.visible);
    if (in.tap) in.tap->put("probabilities", p);
    return merge_heads(group_matmul(dropout_(p, in.random), in.v, false));
  }

  // One map for all heads, so their values are the columns of one product.
  Tensor attend_by_table(const AttentionInput& in) const {
    const int64_t B = in.q.dim(0), H = in.q.dim(1), T = in.q.dim(2), C = H * in.q.dim(3);
    const Tensor scores = broadcast_to(reshape(table_scores(T), {1, 1, T, T}), {B, 1, T, T});
    const Tensor p = softmax(scores, 1, in.visible);
    if (in.tap) in.tap->put("probabilities", repeat_heads(p, H));
    const Tensor v = merge_heads(repeat_heads(in.v, shape_.heads_per_group()));  // [B, T, C]
    const Tensor y =
        group_matmul(dropout_(p, in.random), reshape(v, {B, 1, T, C}), false);  // [B, 1, T, C]
    return reshape(y, {B, T, C});
  }

  Tensor table_scores(int64_t T) const {
    if (table_) return slice(first_rows(*table_, T), 1, 0, T);
    return matmul(first_rows(*rows_, T), first_rows(*columns_, T), false, true);
  }

  AttentionShape shape_;
  Dropout dropout_;
  // Null in the other forms.
  Linear *hidden_ = nullptr, *positions_ = nullptr;
  Parameter* table_ = nullptr;                      // [P, P]
  Parameter *rows_ = nullptr, *columns_ = nullptr;  // [P, rank]
};
const RegisterAttention<Synthesizer, SynthesizerConfig> registration("synthesizer");

}  // namespace
}  // namespace brine::nn
