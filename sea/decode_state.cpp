// Making the decoding state, and filling it from a pass over prompts.
#include "sea/decode_state.h"

#include <algorithm>

#include "autograd/ops.h"
#include "autograd/ops_units.h"

namespace brine::sea {
namespace {

int64_t pieces(int64_t n, int64_t step) { return (n + step - 1) / step; }

// Sums of units are kept in bf16 unless all is to be exact: that moves a share by a thousandth,
// units by far more. But keys join a sum one by one, and one of many keys would not change any more
// by a further one: `longest`, the keys of a unit at the model's last position, decides, since a
// state must have the same bits in every capacity. Features without units follow the cache, except
// that the largest do not fit into f16.
Dtype type_of_features(const nn::StateRequest& r, int64_t longest, int64_t units) {
  constexpr int64_t kFew = 8;
  if (r.dtype != Dtype::f32 || r.cache == Dtype::f32) return r.dtype;
  if (units == 0) return r.cache ? Dtype::bf16 : Dtype::f32;
  return longest <= kFew ? Dtype::bf16 : Dtype::f32;
}

}  // namespace

RowDecoder RowDecoder::slots(int64_t first, int64_t count) const {
  RowDecoder out{.windows = {}, .weights = weights};
  for (const Tensor& w : windows) out.windows.push_back(w.slice(0, first, count));
  return out;
}

SeaState::SeaState(const Estimator& estimator, const nn::AttentionShape& shape,
                   const nn::StateRequest& r)
    : KeyValueState(r.batch, r.capacity, shape.groups(), shape.head_size, r.cached(), r.device),
      query_skip(r.options.query_skip),
      value_sums(part("value_sums", {r.batch, shape.groups(), shape.head_size}, Dtype::f64)),
      scores(part("scores", {r.batch, shape.heads, 1, estimator.config().columns}, r.dtype)) {
  check(query_skip >= 1, "sea: query_skip is ", query_skip, ", must be at least 1");
  const int64_t B = r.batch, H = shape.heads, G = shape.groups(), d = shape.head_size;
  const SeaConfig& config = estimator.config();
  const int64_t K = config.columns;
  // A stored state of another number of units has its borders elsewhere: it has no such tensor.
  const std::string places = config.prior_units ? join("_of_units_", config.prior_units) : "";
  if (config.mixes()) {
    const int64_t positions = estimator.identity->table.value.dim(0);
    check(r.capacity <= positions, "sea: a capacity of ", r.capacity,
          " tokens, but v_identity.table has ", positions, " positions");
    const int64_t m = estimator.performer->projection.value.dim(0);
    performer = &part("performer", {B, G, m, 2 * d}, r.dtype);
    key_sums = &part("key_sums", {B, G, m}, Dtype::f64);
  }
  if (config.prior != Prior::none) {
    const int64_t m = config.prior == Prior::learned ? config.prior_features
                                                     : estimator.performer->projection.value.dim(0);
    const int64_t u = config.prior_units;
    const int64_t most = u && r.capacity / K / 2 >= u ? 2 * u * K : r.capacity;
    const Dtype type = type_of_features(r, math::unit_of_sums(shape.max_positions, K, u), u);
    key_features = &part("key_features" + places, {B, G, most, m}, type, 2,
                         [K, u](int64_t tokens) { return unit_rows(tokens, K, u); });
    borders = &part("borders" + places, {B, G, K + 1, border_columns(m)}, Dtype::f64);
    border_width = &part("border_width", {B}, Dtype::i64);
  }
  if (config.pools()) {
    pooled_borders = &part("pooled_borders" + places, {B, G, K + 1, border_columns(d)}, Dtype::f64);
    pooled_width = &part("pooled_width", {B}, Dtype::i64);
  }
  if (config.pooled > 0) pooled = &part("pooled", {B, H, 1, K}, r.dtype);
  if (estimator.decoder) make_windows(estimator, r);
}

void SeaState::make_windows(const Estimator& estimator, const nn::StateRequest& r) {
  const MapDecoderShape& decoder = estimator.decoder->config();
  const int64_t K = estimator.decoder->columns(), W = K / decoder.width_reduction;
  const std::vector<nn::Conv2d*> convolutions = estimator.decoder->convolutions();
  for (size_t i = 0; i < convolutions.size(); ++i) {
    const nn::Conv2dConfig& c = convolutions[i]->config;
    weights_.push_back(pack_row_weights(convolutions[i]->weight.value));
    // A final 3x3 convolution reads the upsampled image, a final 1x1 the narrow one.
    const bool upsampled = i + 1 == convolutions.size() && c.kernel > 1;
    const int64_t span = (c.kernel - 1) * c.dilation;
    windows_.push_back(&part(join("window", i + 1),
                             {r.batch, span + 1, (upsampled ? K : W) + span, c.in}, r.dtype));
  }
}

RowDecoder SeaState::rows() const {
  RowDecoder out{.windows = {}, .weights = weights_};
  for (const Tensor* w : windows_) out.windows.push_back(*w);
  return out;
}

void SeaState::fill(int64_t first, const Tensor& k, const Tensor& v, const Visibility& visible,
                    const Estimate& e, const Estimator& estimator) {
  KeyValueState::fill(first, k, v, visible.lengths);
  const int64_t B = k.dim(0), G = k.dim(1), T = k.dim(2), d = k.dim(3);
  auto mine = [&](const Tensor& t) { return t.slice(0, first, B); };
  if (performer) {
    linear_attention_state(mine(*performer), mine(*key_sums), e.phi_k.detach(),
                           estimator.identity->table.value, v.detach(), visible);
  }
  if (key_features) {
    fill_features(first, e.psi_k.detach().slice(3, 0, key_features->dim(3)), estimator.config());
  }
  copy_into(mine(value_sums),
            sum_units(v, lengths().slice(0, first, B),
                      Tensor::full({B}, double(std::max<int64_t>(T, 1)), Dtype::i64), 1, Dtype::f64)
                .view({B, G, d}));
  for (int64_t b = 0; b < B; ++b) {
    auto last = [&](const Tensor& x) {
      return x.detach().slice(0, b, 1).slice(2, length(first + b) - 1, 1);
    };
    // Rows that later tokens repeat; with query_skip 1 none does, and the scores may be left out.
    if (e.scores.defined()) copy_into(scores.slice(0, first + b, 1), last(e.scores));
    if (e.pooled.defined()) copy_into(pooled->slice(0, first + b, 1), last(e.pooled));
    if (estimator.decoder)
      fill_windows(first + b, e.decoder_images, b, estimator.decoder->config());
  }
}

void SeaState::fill_features(int64_t first, const Tensor& psi_k, const SeaConfig& config) {
  const int64_t B = psi_k.dim(0), K = config.columns;
  const Tensor mine = key_features->slice(0, first, B);
  if (!config.prior_units) return copy_into(mine.slice(2, 0, psi_k.dim(2)), psi_k);
  std::vector<int64_t> units, rows;
  for (int64_t b = 0; b < B; ++b) {
    units.push_back(math::unit_of_sums(length(first + b), K, config.prior_units));
    rows.push_back(unit_rows(length(first + b), K, config.prior_units));
  }
  const Tensor sums = sum_units(psi_k, lengths().slice(0, first, B), Tensor::from(units, {B}),
                                *std::max_element(rows.begin(), rows.end()), psi_k.dtype());
  for (int64_t b = 0; b < B; ++b) {
    copy_into(mine.slice(0, b, 1).slice(2, 0, rows[size_t(b)]),
              sums.slice(0, b, 1).slice(2, 0, rows[size_t(b)]));
  }
}

void SeaState::fill_windows(int64_t slot, const std::vector<Tensor>& images, int64_t b,
                            const MapDecoderShape& decoder) {
  const int64_t rows = pieces(length(slot), query_skip);
  for (size_t i = 0; i < windows_.size(); ++i) {
    const bool upsampled = i + 1 == windows_.size() && decoder.last_kernel > 1;
    const int64_t made = i == 0 || upsampled ? rows : pieces(rows, decoder.token_stride);
    // An image has the rows of its halo before its first row.
    const Tensor window = windows_[i]->slice(0, slot, 1);
    const int64_t span = window.dim(1) - 1, columns = images[i].dim(2);
    copy_into(window.slice(2, (window.dim(2) - columns) / 2, columns),
              images[i].slice(0, b, 1).slice(1, made - 1, span + 1));
  }
}

}  // namespace brine::sea
