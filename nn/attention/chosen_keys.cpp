// Masks of the largest scores by tiles of rows, and attention on a mask.
#include "nn/attention/chosen_keys.h"

#include <algorithm>
#include <cmath>

#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

constexpr int64_t kTileScores = int64_t(1) << 20;  // of all heads

// Pointers and offsets of a mask in which every row and head has min(k, w) entries; no columns yet.
FlatCsr budgeted_rows(const Shape& q, int64_t k, const Visibility& visible, Device device) {
  const int64_t B = q[0], H = q[1], T = q[2];
  const RowWidths widths(visible, T);
  auto kept = [&](int64_t row) { return std::min(k, widths(row / T, row % T)); };
  FlatCsr csr{{}, {}, {}, B, H, T, T};
  check(H * T < int64_t(1) << 31, "attention: ", H, " heads x ", T, " keys do not fit 32 bits");
  csr.row_pointers = Tensor::filled({B, T + 1}, Dtype::i64, device, [&](const Tensor& x) {
    int64_t* pointer = x.data<int64_t>();
    int64_t entries = 0;
    for (int64_t b = 0; b < B; ++b) {
      *pointer++ = entries;
      for (int64_t t = 0; t < T; ++t) *pointer++ = entries += H * kept(b * T + t);
    }
  });
  csr.head_offsets = Tensor::filled({B, T, H + 1}, Dtype::i32, device, [&](const Tensor& x) {
    int32_t* offset = x.data<int32_t>();
    for (int64_t row = 0; row < B * T; ++row) {
      for (int64_t h = 0; h <= H; ++h) *offset++ = int32_t(h * kept(row));
    }
  });
  csr.columns = Tensor::empty({budgeted_entries(visible, k, B, H, T)}, Dtype::i32, device);
  return csr;
}

// The mask of the largest of scores [1, H, n, w]; every column of the selection is one key.
FlatCsr largest_of(const Tensor& scores, int64_t k, int64_t keys) {
  const int64_t H = scores.dim(1), n = scores.dim(2), w = scores.dim(3);
  const Visibility all{.causal = false, .lengths = Tensor::full({1}, double(w), Dtype::i64)};
  const Selection chosen = select_columns(scores, all, {.k = k, .mode = SelectMode::per_query});
  return build_csr(chosen.selected, all, k, keys, H * n * std::min(k, w));
}

// The columns of the largest of scores [1, H, n, w] for H heads, or of [1, 1, n, w] for every one
// of them: H n min(k, w) entries.
Tensor largest_columns(const Tensor& scores, int64_t H, int64_t k, int64_t keys) {
  const int64_t n = scores.dim(2), kept = std::min(k, scores.dim(3)), G = scores.dim(1);
  const Tensor columns = largest_of(scores, k, keys).columns.slice(0, 0, G * n * kept);
  if (G == H) return columns;
  const Tensor first = arange(H, Dtype::f64, columns.device()).view({1, H, 1}) * double(keys);
  const Tensor all = columns.contiguous().view({n, 1, kept}).to(Dtype::f64) + first;
  return all.to(Dtype::i32).view({n * H * kept});
}

// Fills the columns of one sequence, from `at` on; returns the position after them.
struct Filling {
  const TileScores& scores_of;
  const FlatCsr& csr;
  int64_t sequence, kept, length;  // length: tokens of the sequence
  bool causal;

  // Rows that see at most `kept` keys keep them all.
  int64_t whole_rows() const {
    if (causal) return std::min(kept, length);
    return length <= kept ? length : 0;
  }

  int64_t fill_whole(int64_t at) const {
    const int64_t H = csr.heads, rows = whole_rows();
    auto width = [&](int64_t t) { return causal ? t + 1 : length; };
    int64_t entries = 0;
    for (int64_t t = 0; t < rows; ++t) entries += H * width(t);
    const Tensor columns =
        Tensor::filled({entries}, Dtype::i32, csr.columns.device(), [&](const Tensor& x) {
          int32_t* column = x.data<int32_t>();
          for (int64_t t = 0; t < rows; ++t) {
            for (int64_t h = 0; h < H; ++h) {
              for (int64_t j = 0; j < width(t); ++j) *column++ = int32_t(h * csr.keys + j);
            }
          }
        });
    assign(csr.columns.slice(0, at, entries), columns);
    return at + entries;
  }

  // Rows [first, first + n), which see more than `kept` keys.
  int64_t fill_tile(int64_t at, int64_t first, int64_t n) const {
    Tensor scores = scores_of(sequence, first, n, causal ? first + n : length);
    if (causal) hide_later(scores.slice(3, first, n));
    const Tensor columns = largest_columns(scores, csr.heads, kept, csr.keys);
    assign(csr.columns.slice(0, at, columns.numel()), columns);
    return at + columns.numel();
  }

  // scores [1, H or 1, n, n] of rows and keys at the same positions.
  static void hide_later(const Tensor& scores) {
    const int64_t n = scores.dim(2);
    const Tensor t = arange(n, Dtype::i64, scores.device());
    const Tensor seen = less_equal(t, t.view({n, 1}));
    assign(scores, where(seen, scores.contiguous(), -INFINITY));
  }
};

}  // namespace

FlatCsr largest_scores(const Shape& q, Device device, const TileScores& scores, int64_t kept,
                       const Visibility& visible) {
  NoGrad off;
  const int64_t B = q[0], H = q[1], T = q[2];
  const RowWidths widths(visible, T);
  FlatCsr csr = budgeted_rows(q, kept, visible, device);
  const int64_t step = std::max<int64_t>(16, kTileScores / std::max<int64_t>(H * T, 1));
  int64_t at = 0;
  for (int64_t b = 0; b < B; ++b) {
    const Filling one{.scores_of = scores,
                      .csr = csr,
                      .sequence = b,
                      .kept = kept,
                      .length = widths.valid(b),
                      .causal = visible.causal};
    at = one.fill_whole(at);
    for (int64_t t = one.whole_rows(); t < one.length; t += step) {
      at = one.fill_tile(at, t, std::min(step, one.length - t));
    }
  }
  return csr;
}

FlatCsr largest_keys(const Tensor& q, const Tensor& k, int64_t kept, const Visibility& visible) {
  auto scores = [&](int64_t b, int64_t first, int64_t rows, int64_t keys) {
    const Tensor queries = q.detach().slice(0, b, 1).slice(2, first, rows);
    const Tensor all = k.detach().slice(0, b, 1).slice(2, 0, keys).to(q.dtype());
    return group_matmul(queries.contiguous(), all.contiguous(), true);
  };
  return largest_scores(q.shape(), q.device(), scores, kept, visible);
}

FlatCsr largest_cached_scores(const Tensor& scores, int64_t heads, int64_t kept, int64_t keys) {
  NoGrad off;
  const Visibility all{.causal = false,
                       .lengths = Tensor::full({1}, double(scores.dim(3)), Dtype::i64)};
  FlatCsr csr = budgeted_rows({1, heads, 1}, kept, all, scores.device());
  csr.columns = largest_columns(scores, heads, kept, keys);
  csr.keys = keys;
  return csr;
}

FlatCsr largest_cached_keys(const Tensor& q, const Tensor& k, int64_t kept, int64_t seen) {
  NoGrad off;
  const Tensor keys = k.detach().slice(2, 0, seen).to(q.dtype()).contiguous();
  return largest_cached_scores(group_matmul(q.detach().contiguous(), keys, true), q.dim(1), kept,
                               k.dim(2));
}

void show_mask(const AttentionInput& in, const FlatCsr& mask) {
  if (!in.tap) return;
  in.tap->put("row_pointers", mask.row_pointers);
  in.tap->put("head_offsets", mask.head_offsets);
  in.tap->put("columns", mask.columns);
}

Tensor masked_attention(const AttentionInput& in, const FlatCsr& mask, Tensor* probabilities) {
  if (!in.options.dense_path) return sparse_attention(in.q, in.k, in.v, mask, probabilities);
  check_csr("masked_attention", mask, in.q, in.k);
  const Tensor p = masked_softmax(group_matmul(in.q, in.k, true), csr_to_mask(mask),
                                  1 / std::sqrt(double(in.q.dim(3))));
  if (probabilities) *probabilities = p.detach();
  return group_matmul(p, in.v, false);
}

Tensor attend_on(const AttentionInput& in, const FlatCsr& mask) {
  CostScope part("sparse attention");
  show_mask(in, mask);
  Tensor probabilities;
  const Tensor y = masked_attention(in, mask, in.tap ? &probabilities : nullptr);
  if (in.tap) in.tap->put("probabilities", probabilities);
  return merge_heads(y);
}

void FeatureState::fill(const AttentionInput& in, const Tensor& f) {
  KeyValueState::fill(in.slot, in.k, in.v, in.visible.lengths);
  copy_into(features.slice(0, in.slot, f.dim(0)).slice(2, 0, f.dim(2)), f.detach());
}

Tensor attend_cached(const AttentionInput& in, const KeyValueState& state,
                     const std::function<FlatCsr(int64_t b, const AttentionInput& one)>& choose) {
  const int64_t B = in.q.dim(0);
  Tensor y = Tensor::empty({B, 1, in.q.dim(1) * in.q.dim(3)}, in.q.dtype(), in.q.device());
  for (int64_t b = 0; b < B; ++b) {
    const AttentionInput one{.q = one_sequence(in.q, b),
                             .k = one_sequence(state.keys, b),
                             .v = one_sequence(state.values, b),
                             .hidden = {},
                             .tap = B == 1 ? in.tap : nullptr};
    copy_into(y.slice(0, b, 1), attend_on(one, choose(b, one)));
  }
  return y;
}

}  // namespace brine::nn
