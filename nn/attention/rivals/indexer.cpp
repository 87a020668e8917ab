// Attention to the k keys that a small indexer chooses for each token, the same for all heads: its
// score of a key is sum_j w_j ReLU(q_j . k) over a few heads j, whose queries, weights w and one
// shared key are projections of the layer's input (DeepSeek-AI 2025, "DeepSeek-V3.2-Exp: Boosting
// Long-Context Efficiency with DeepSeek Sparse Attention"). It learns the layer's dense attention,
// summed over heads. The scores take O(T^2) time in a few dimensions; memory is O(T k) and a tile.
#include <cmath>
#include <optional>

#include "nn/attention/chosen_keys.h"
#include "nn/attention/rivals/row_tiles.h"
#include "nn/layers/layers.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct IndexerConfig {
  int64_t k = 64, index_heads = 4, index_size = 32, dense_warmup = 0;
  double loss_weight = 1;

  void describe(data::Schema& s) {
    s.field("k", k, "Keys that a query sees, chosen by the indexer for all heads", {.min = 1});
    s.field("index_heads", index_heads, "Heads of the indexer", {.min = 1});
    s.field("index_size", index_size, "Size of the indexer's heads", {.min = 4});
    s.field("dense_warmup", dense_warmup,
            "Optimizer steps in which training attends to all keys while the indexer learns",
            {.min = 0});
    s.field("loss_weight", loss_weight, "Weight of the indexer's loss while the model is trained",
            {.min = 0});
  }
};

// What the indexer makes of tokens; J heads of size r.
struct IndexFeatures {
  Tensor q, k, w;  // [B, J, T, r], [B, 1, T, r], [B, J, T, 1]
};

struct Index : Module {
  Index(Init& init, const AttentionShape& shape, const IndexerConfig& config)
      : heads(config.index_heads),
        size(config.index_size),
        rotary(shape.rotary),
        query(child<Linear>("query", init, shape.channels(), heads * size, false)),
        key(child<Linear>("key", init, shape.channels(), size, false)),
        key_norm(child<LayerNorm>("key_norm", init, size)),
        weight(child<Linear>("weight", init, shape.channels(), heads, false)) {}

  // Of hidden [B, T, C], whose first token is at position `first`, i64 [B] or undefined. In a model
  // with rotary positions half of the features are rotated.
  IndexFeatures operator()(const Tensor& hidden, const Tensor& first = {}) const {
    IndexFeatures f{split_heads(query(hidden), heads), split_heads(key_norm(key(hidden)), 1),
                    scale(split_heads(weight(hidden), heads), 1 / std::sqrt(double(heads * size)))};
    if (!rotary) return f;
    const Tensor frequencies = rotary_frequencies(size / 4 * 2, 10000);
    return {brine::rotary(f.q, frequencies, first), brine::rotary(f.k, frequencies, first), f.w};
  }

  int64_t heads, size;
  bool rotary;
  Linear &query, &key;
  LayerNorm& key_norm;
  Linear& weight;
};

// Features of queries [1, J, n, .] and keys [1, 1, m, r] -> [1, 1, n, m].
Tensor index_scores(const Tensor& q, const Tensor& w, const Tensor& k) {
  return sum(relu(group_matmul(q, k, true)) * w, {1}, true);
}

class Indexer : public CachedAttention {
 public:
  Indexer(Init& init, const AttentionShape& shape, const IndexerConfig& config)
      : CachedAttention(shape),
        config_(config),
        index_(child<Index>("indexer", init, shape, config)),
        warming_(config.dense_warmup > 0) {}

  void on_step(int64_t steps_done) override { warming_ = steps_done < config_.dense_warmup; }

  Tensor forward(const AttentionInput& in) override {
    std::optional<CostScope> part(std::in_place, "mask");
    const bool learns = learns_selection(in);
    const IndexFeatures f = features_of(in, learns);
    if (in.state) dynamic_cast<FeatureState&>(*in.state).fill(in, f.k);
    const bool dense = in.random && warming_;
    FlatCsr mask;
    if (!dense || in.tap) mask = choose(in, f);
    Tensor loss;
    if (learns) loss = index_loss(in, f);
    part.reset();
    if (dense) show_mask(in, mask);
    const Tensor y = dense ? flash_attention(in.q, in.k, in.v, in.visible) : attend_on(in, mask);
    return with_selection_loss(in, y, loss, config_.loss_weight);
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    return std::make_unique<FeatureState>(r, shape_, "index_keys", 1, config_.index_size);
  }

  Tensor step(const AttentionInput& in, AttentionState& any) const override {
    NoGrad off;
    check_hidden(in);
    auto& state = dynamic_cast<FeatureState&>(any);
    const Tensor at = state.lengths().clone();
    state.append(in.k, in.v);
    return attend_cached(in, state, [&](int64_t b, const AttentionInput&) {
      const Tensor position = one_sequence(at, b), keys = one_sequence(state.features, b);
      const IndexFeatures f = index_(one_sequence(in.hidden, b).contiguous(), position);
      append_row(keys, f.k, position);
      const Tensor scores = index_scores(f.q, f.w, keys.slice(2, 0, state.length(b)).contiguous());
      return largest_cached_scores(scores, in.q.dim(1), in.options.kept(config_.k),
                                   state.keys.dim(2));
    });
  }

 private:
  void check_hidden(const AttentionInput& in) const {
    check(in.hidden.defined() && in.hidden.dim(-1) == shape_.channels(),
          "indexer: needs the layer's input [B, T, ", shape_.channels(), "]");
  }

  // Off the tape unless the indexer learns; its input never gets a gradient.
  IndexFeatures features_of(const AttentionInput& in, bool learns) const {
    check_hidden(in);
    std::optional<NoGrad> off;
    if (!learns) off.emplace();
    return index_(in.hidden.detach());
  }

  FlatCsr choose(const AttentionInput& in, const IndexFeatures& f) const {
    auto scores = [&](int64_t b, int64_t first, int64_t rows, int64_t keys) {
      const RowTile tile{b, first, rows, keys};
      return index_scores(rows_of(f.q, tile), rows_of(f.w, tile), keys_of(f.k, tile));
    };
    return largest_scores(in.q.shape(), in.q.device(), scores, in.options.kept(config_.k),
                          in.visible);
  }

  // Mean over the rows of KL(attention summed over heads, normalised || softmax of the scores).
  Tensor index_loss(const AttentionInput& in, const IndexFeatures& f) const {
    const int64_t B = in.q.dim(0), T = in.q.dim(2);
    const std::vector<RowTile> tiles =
        row_tiles(in.visible, B, T, in.q.dim(1) + config_.index_heads);
    const Tensor q = in.q.detach(), k = in.k.detach();
    const bool causal = in.visible.causal;
    const Tensor total = sum_over_tiles(
        tiles, {f.q, f.w, f.k}, [=](const RowTile& tile, const std::vector<Tensor>& x) {
          auto part = [&](const Tensor& all, int64_t from, int64_t n) {
            return slice(slice(all, 0, tile.sequence, 1), 2, from, n);
          };
          const Tensor seen = seen_keys(tile, causal, q.device());
          const Tensor target = attention_of_heads(rows_of(q, tile), keys_of(k, tile), seen);
          const Tensor scores =
              index_scores(part(x[0], tile.first, tile.rows), part(x[1], tile.first, tile.rows),
                           part(x[2], 0, tile.keys));
          return sum_of_kl(target, log_softmax_where(scores, seen));
        });
    const int64_t rows = RowWidths(in.visible, T).valid_rows(B);
    return scale(total, 1 / double(std::max<int64_t>(rows, 1)));
  }

  // The mean of the heads' dense attention, [1, 1, rows, keys].
  static Tensor attention_of_heads(const Tensor& q, const Tensor& k, const Tensor& seen) {
    NoGrad off;
    return mean(exp_where(log_attention(q, k, seen), seen), {1}, true);
  }

  IndexerConfig config_;
  Index& index_;
  bool warming_;
};
const RegisterAttention<Indexer, IndexerConfig> registration("indexer");

}  // namespace
}  // namespace brine::nn
