// Attention to whole blocks of keys: a query keeps its local block, the one that contains it, and
// those blocks whose mean key has the largest score, so that it has about k keys. A score is
// q . mean key, which needs no training (Quest: Tang et al. 2024, "Query-Aware Sparsity for
// Efficient Long-Context LLM Inference"; MoBA: Lu et al. 2025, "Mixture of Block Attention for
// Long-Context LLMs"), or that of a gate, low-dimensional projections of queries and of mean keys,
// which learns the layer's dense attention summed over blocks (SeerAttention: Gao et al. 2024,
// "Learning Intrinsic Sparse Attention in Your LLMs"). Time O(T^2 / block + T k), memory O(T k).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "nn/attention/chosen_keys.h"
#include "nn/attention/rivals/row_tiles.h"
#include "tensor/base/parallel.h"
#include "tensor/functions/key_lists.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct BlockTopConfig {
  int64_t k = 64, block = 16;
  bool gate = false;
  int64_t gate_size = 32;
  double loss_weight = 1;

  void describe(data::Schema& s) {
    s.field("k", k, "Keys that a query sees, rounded to whole blocks", {.min = 1});
    s.field("block", block, "Keys of a block", {.min = 1});
    s.field("gate", gate, "Scores of a learned gate instead of q . mean key");
    s.field("gate_size", gate_size, "Numbers to which the gate projects queries and mean keys",
            {.min = 1});
    s.field("loss_weight", loss_weight, "Weight of the gate's loss while the model is trained",
            {.min = 0});
  }
};

// The blocks of a row that sees w keys: the local one, which contains the row and of which it sees
// local_keys, and others, of which it keeps `kept`.
struct BlockRow {
  int64_t local, local_keys, others, kept;

  BlockRow(int64_t t, int64_t w, int64_t k, int64_t size, bool causal)
      : local(t / size),
        local_keys(std::min(size, w - local * size)),
        others(causal ? local : (w + size - 1) / size - 1),
        kept(std::clamp<int64_t>((2 * (k - local_keys) + size) / (2 * size), 0, others)) {
    if (k < local_keys) kept = 0;
  }
  // Whether the row may keep block c, one of those that have a key that it sees.
  bool candidate(int64_t c) const { return c != local && c <= std::max(local, others); }
};

// The kept blocks of every row, ascending, without its local one.
struct KeptBlocks {
  int64_t capacity = 0;  // blocks of one row, at most
  int64_t first = 0;     // token of the first row
  Tensor ids;            // i32 [B, H, rows, capacity] on the CPU
  int32_t* row(int64_t b, int64_t h, int64_t t) const {
    return ids.data<int32_t>() + ((b * ids.dim(1) + h) * ids.dim(2) + t - first) * capacity;
  }
};

// Of the candidates those with the largest scores, of equal ones the later block. Without scores
// (null), which only counts the keys, the first ones, or the last ones in as many rows as would be
// by chance: an encoder's last block may be shorter.
template <class F>
void keep_largest(const F* scores, const BlockRow& row, bool last, std::vector<int32_t>& order,
                  int32_t* kept) {
  order.clear();
  for (int64_t c = 0; c <= std::max(row.local, row.others); ++c)
    if (row.candidate(c)) order.push_back(int32_t(c));
  auto before = [&](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a > b;
  };
  if (scores) {
    std::nth_element(order.begin(), order.begin() + row.kept, order.end(), before);
  } else if (last) {
    std::reverse(order.begin(), order.end());
  }
  std::copy_n(order.begin(), row.kept, kept);
  std::sort(kept, kept + row.kept);
}

// The keys of a row of w keys, from its kept blocks.
void list_keys(const BlockRow& row, const int32_t* kept, int64_t size, int64_t w,
               std::vector<int32_t>& keys) {
  auto append = [&](int64_t block) {
    const int64_t first = block * size, n = std::min(size, w - first), at = int64_t(keys.size());
    keys.resize(size_t(at + n));
    std::iota(keys.begin() + at, keys.end(), int32_t(first));
  };
  int64_t i = 0;
  for (; i < row.kept && kept[i] < row.local; ++i) append(kept[i]);
  append(row.local);
  for (; i < row.kept; ++i) append(kept[i]);
}

// Projections of the queries of a head and of the mean keys of a group.
struct BlockGate : Module {
  BlockGate(Init& init, const AttentionShape& shape, int64_t size)
      : query(parameter("query", init.normal({shape.heads, shape.head_size, size},
                                             1 / std::sqrt(double(shape.head_size))))),
        key(parameter("key", init.normal({shape.groups(), shape.head_size, size},
                                         1 / std::sqrt(double(shape.head_size))))) {}

  // q [1, H, n, d], mean keys [1, G, blocks, d] -> [1, H, n, blocks]
  Tensor operator()(const Tensor& q, const Tensor& means) const {
    const Tensor scores = group_matmul(project_heads(q, query), project_heads(means, key), true);
    return scale(scores, 1 / std::sqrt(double(query.value.dim(2))));
  }

  Parameter& query;  // [H, d, r]
  Parameter& key;    // [G, d, r]
};

// Keys and values of all tokens and the sums of the keys of each block.
class BlockState : public KeyValueState {
 public:
  BlockState(const StateRequest& r, const AttentionShape& shape, int64_t size)
      : KeyValueState(r, shape),
        size(size),
        sums(part("block_sums",
                  {r.batch, shape.groups(), (r.capacity + size - 1) / size, shape.head_size},
                  r.dtype, 2, [size](int64_t tokens) { return (tokens + size - 1) / size; })) {}

  void fill_sums(int64_t slot, const Tensor& k) {
    for (int64_t b = 0; b < k.dim(0); ++b) {
      const Tensor sequence_keys = one_sequence(k, b);
      for (int64_t t = 0; t < length(slot + b); t += size) {
        const int64_t n = std::min(size, length(slot + b) - t);
        copy_into(sums.slice(0, slot + b, 1).slice(2, t / size, 1),
                  sum(sequence_keys.slice(2, t, n).contiguous(), {2}, true));
      }
    }
  }

  // k [batch, G, 1, d] of tokens that were appended.
  void add_to_sums(const Tensor& k) {
    for (int64_t b = 0; b < batch(); ++b) {
      const int64_t at = length(b) - 1;
      const Tensor to = sums.slice(0, b, 1).slice(2, at / size, 1), new_key = one_sequence(k, b);
      copy_into(to, at % size ? add(to.contiguous(), new_key.contiguous()) : new_key);
    }
  }

  int64_t size;
  Tensor& sums;  // [batch, G, blocks, d]
};

class BlockTop : public CachedAttention {
 public:
  BlockTop(Init& init, const AttentionShape& shape, const BlockTopConfig& config)
      : CachedAttention(shape),
        config_(config),
        gate_(config.gate ? &child<BlockGate>("gate", init, shape, config.gate_size) : nullptr) {}

  Tensor forward(const AttentionInput& in) override {
    fill(in);
    if (in.state) dynamic_cast<BlockState&>(*in.state).fill_sums(in.slot, in.k);
    std::optional<CostScope> part(std::in_place, "mask");
    const FlatCsr mask = choose(in);
    Tensor loss;
    if (gate_ && learns_selection(in)) loss = gate_loss(in);
    part.reset();
    return with_selection_loss(in, attend_on(in, mask), loss, config_.loss_weight);
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    return std::make_unique<BlockState>(r, shape_, config_.block);
  }

  Tensor step(const AttentionInput& in, AttentionState& any) const override {
    NoGrad off;
    auto& state = dynamic_cast<BlockState&>(any);
    state.append(in.k, in.v);
    state.add_to_sums(in.k);
    return attend_cached(in, state, [&](int64_t b, const AttentionInput& one) {
      return choose_step(one, one_sequence(state.sums, b), state.length(b), kept_keys(in.options));
    });
  }

 private:
  // BlockRow and room() double k, which would overflow near 2^63.
  int64_t kept_keys(const RuntimeOptions& options) const {
    return std::min<int64_t>(options.kept(config_.k), INT32_MAX);
  }
  BlockRow row_of(int64_t t, int64_t w, int64_t k) const {
    return {t, w, k, config_.block, shape_.causal};
  }

  // Room for the blocks of rows that see at most w keys.
  KeptBlocks room(int64_t B, int64_t H, int64_t rows, int64_t w, int64_t k) const {
    const int64_t size = config_.block, blocks = (w + size - 1) / size;
    KeptBlocks kept;
    kept.capacity = std::clamp<int64_t>((2 * (k - 1) + size) / (2 * size), 0, blocks);
    kept.ids = Tensor::zeros({B, H, rows, kept.capacity}, Dtype::i32);
    return kept;
  }

  // Mean keys of the blocks of k [1, G, w, d]; the last block may be shorter.
  Tensor means_of(const Tensor& k) const {
    const int64_t G = k.dim(1), w = k.dim(2), d = k.dim(3), size = config_.block;
    const int64_t whole = w / size;
    std::vector<Tensor> parts;
    if (whole > 0) {
      const Tensor x = k.slice(2, 0, whole * size).contiguous();
      parts.push_back(mean(x.view({1, G, whole, size, d}), {3}));
    }
    if (w % size) parts.push_back(mean(k.slice(2, whole * size, w % size).contiguous(), {2}, true));
    return parts.size() == 1 ? parts[0] : concat(parts, 2);
  }

  // Of q [1, H, n, d] and mean keys [1, G, blocks, d].
  Tensor scores_of(const Tensor& q, const Tensor& means) const {
    return gate_ ? (*gate_)(q, means) : group_matmul(q, means, true);
  }

  FlatCsr choose(const AttentionInput& in) const {
    NoGrad off;
    const int64_t B = in.q.dim(0), H = in.q.dim(1), T = in.q.dim(2), k = kept_keys(in.options);
    const RowWidths widths(in.visible, T);
    const KeptBlocks kept = room(B, H, T, T, k);
    const std::vector<RowTile> tiles = row_tiles(in.visible, B, T, H);
    Tensor means;
    for (size_t i = 0; kept.capacity > 0 && i < tiles.size(); ++i) {
      const RowTile& tile = tiles[i];
      if (tile.first == 0) {
        means =
            means_of(one_sequence(in.k, tile.sequence).slice(2, 0, widths.valid(tile.sequence)));
      }
      const Tensor scores = scores_of(rows_of(in.q, tile), means);
      keep(
          scores, tile, kept, [&](int64_t t) { return widths(tile.sequence, t); }, k);
    }
    return mask_of({B, H, T, T}, in.q.device(), kept, widths, k);
  }

  // Writes the blocks of a tile's rows.
  template <class Widths>
  void keep(const Tensor& scores, const RowTile& tile, const KeptBlocks& kept, Widths width,
            int64_t k) const {
    const int64_t H = scores.dim(1), blocks = scores.dim(3);
    const Tensor x = scores.device().is_meta() ? scores : scores.to(Device{}).contiguous();
    dispatch_float(x.dtype(), [&]<class F>() {
      const F* values = x.device().is_meta() ? nullptr : x.data<F>();
      parallel_for(H * tile.rows, 64, [&](int64_t begin, int64_t end) {
        std::vector<int32_t> order;
        for (int64_t r = begin; r < end; ++r) {
          const int64_t t = tile.first + r % tile.rows;
          const BlockRow row = row_of(t, width(t), k);
          keep_largest(values ? values + r * blocks : values, row,
                       t % std::max<int64_t>(row.others, 1) < row.kept, order,
                       kept.row(tile.sequence, r / tile.rows, t));
        }
      });
    });
  }

  FlatCsr mask_of(const Shape& s, Device device, const KeptBlocks& kept, const RowWidths& widths,
                  int64_t k) const {
    return key_lists({.batch = s[0],
                      .heads = s[1],
                      .rows = s[2],
                      .keys = s[3],
                      .lists = shape_.causal ? HeadLists::of_one_length : HeadLists::separate},
                     device, [&](int64_t b, int64_t h, int64_t t, std::vector<int32_t>& keys) {
                       const int64_t w = widths(b, t);
                       if (w == 0) return;
                       list_keys(row_of(t, w, k), kept.row(b, h, t), config_.block, w, keys);
                     });
  }

  // The mask of the newest query of one sequence of w tokens.
  FlatCsr choose_step(const AttentionInput& one, const Tensor& sums, int64_t w, int64_t k) const {
    const int64_t H = one.q.dim(1), t = w - 1, past = t / config_.block;
    KeptBlocks kept = room(1, H, 1, w, k);
    kept.first = t;
    if (kept.capacity > 0 && past > 0) {
      const Tensor means = scale(sums.slice(2, 0, past).contiguous(), 1 / double(config_.block));
      keep(
          scores_of(one.q.contiguous(), means), {0, t, 1, w}, kept, [&](int64_t) { return w; }, k);
    }
    return key_lists({.batch = 1, .heads = H, .rows = 1, .keys = one.k.dim(2)}, one.q.device(),
                     [&](int64_t, int64_t h, int64_t, std::vector<int32_t>& keys) {
                       list_keys(row_of(t, w, k), kept.row(0, h, t), config_.block, w, keys);
                     });
  }

  // Mean over the rows and heads of KL(attention summed over blocks || softmax of the gate), both
  // over the blocks of which the gate chooses: without the local one, the causal ones whole.
  Tensor gate_loss(const AttentionInput& in) const {
    const int64_t B = in.q.dim(0), H = in.q.dim(1), T = in.q.dim(2);
    const Visibility visible = in.visible;
    const std::vector<RowTile> tiles = row_tiles(visible, B, T, H);
    const Tensor q = in.q.detach(), k = in.k.detach();
    const Tensor sum = sum_over_tiles(tiles, {}, [=, this](const RowTile& tile, const auto&) {
      const RowTile all{tile.sequence, tile.first, tile.rows,
                        RowWidths(visible, T).valid(tile.sequence)};
      const Tensor keys = keys_of(k, all), queries = rows_of(q, all), means = means_of(keys);
      const Tensor target = attention_of_blocks(queries, keys, all, means.dim(2));
      const Tensor seen = candidates(all, means.dim(2), config_.block, q.device());
      return sum_of_kl(target, log_softmax_where((*gate_)(queries, means), seen));
    });
    return scale(sum, 1 / double(H * std::max<int64_t>(RowWidths(visible, T).valid_rows(B), 1)));
  }

  // u8 [rows, n]: whether the gate chooses of the block of each of n columns of so many keys.
  Tensor candidates(const RowTile& tile, int64_t n, int64_t keys, Device device) const {
    const int64_t block = config_.block;
    return Tensor::filled({tile.rows, n}, Dtype::u8, device, [&](const Tensor& x) {
      uint8_t* seen = x.data<uint8_t>();
      for (int64_t t = tile.first; t < tile.first + tile.rows; ++t) {
        const BlockRow row = row_of(t, shape_.causal ? t + 1 : tile.keys, config_.k);
        for (int64_t j = 0; j < n; ++j) *seen++ = row.candidate(j * keys / block);
      }
    });
  }

  // The dense attention of a tile's rows to the candidates, summed over blocks: [1, H, rows, n].
  Tensor attention_of_blocks(const Tensor& q, const Tensor& k, const RowTile& tile,
                             int64_t n) const {
    NoGrad off;
    const int64_t block = config_.block, H = q.dim(1);
    const Tensor seen = candidates(tile, tile.keys, 1, q.device());
    Tensor p = exp_where(log_attention(q, k, seen), seen);
    if (const int64_t rest = n * block - tile.keys; rest > 0)
      p = concat({p, Tensor::zeros({1, H, tile.rows, rest}, p.dtype(), p.device())}, 3);
    return sum(p.view({1, H, tile.rows, n, block}), {4});
  }

  BlockTopConfig config_;
  BlockGate* gate_;
};
const RegisterAttention<BlockTop, BlockTopConfig> registration("block-topk");

}  // namespace
}  // namespace brine::nn
