// What the block costs, op by op in its order, from sizes alone.
#include "nn/attention/cost.h"
#include "sea/sea_attention.h"
#include "tensor/types.h"

namespace brine::sea {
namespace {

double whole(double n, double step) { return std::ceil(n / step); }

// Keys kept over all rows of a head: a budget of k each, or what a row sees.
double kept_keys(double T, double k, bool causal) {
  if (!causal) return T * std::min(k, T);
  const double full = std::min(k, T);
  return full * (full + 1) / 2 + (T - full) * k;
}

}  // namespace

// Rows of all heads are N = H T; with query skipping the decoder runs on R = H ceil(T / f).
bool SeaAttention::add_cost(nn::CostTable& costs, int64_t tokens,
                            const nn::AttentionDials& dials) const {
  const Estimator& e = estimator_;
  const Decoder& shape = e.decoder.config();
  const double T = double(tokens), H = double(shape_.heads), d = double(shape_.head_size);
  const double K = double(config_.K), m = double(e.performer.projection.value.dim(0));
  const double k = double(dials.k ? dials.k : config_.k), N = H * T;
  const double read = whole(T, double(dials.query_skip)), R = H * read;

  const char* part = "performer";
  for (int side = 0; side < 2; ++side) costs.op(part, N * m * d, {N * d, N * m});
  const double identity =
      double(e.identity ? e.identity->table.value.numel() : tokens * shape_.head_size);
  costs.op(part, H * linear_attention_macs(tokens, int64_t(m), int64_t(2 * d), shape_.causal),
           {N * m, N * m, identity, N * d, N * 2 * d});
  if (e.prior) costs.op(part, R * K * m, {R * K, H, N * m, N * m, R * K});

  part = "mu, nu";
  if (config_.mu_scope == "token") {
    costs.op(part, 0, {N * 2 * d, N * d, N * 3 * d});
    costs.op(part, 0, {N * 3 * d, N * 3 * d});
    costs.linear(part, T, H * 3 * d, H * 2 * d);
    costs.op(part, 0, {N * 2 * d, H * 2 * d, H * 2 * d, N * 2 * d});
    costs.op(part, 0, {N * 2 * d, N * 2 * d});
    costs.op(part, 0, {N * 2 * d, N * 2 * d});
  } else {
    costs.linear(part, N, 3 * d, 2 * d);
    costs.op(part, 0, {N * 2 * d, 2 * d, 2 * d, N * 2 * d});
    costs.op(part, 0, {N * 2 * d, N * 2 * d});
  }
  costs.linear(part, N, 2 * d, 2);
  if (dials.query_skip > 1) costs.op(part, 0, {N * 2 * d, R * 2 * d});
  const double W = double(config_.K / shape.width_reduction), c = double(shape.channel_expansion);
  costs.linear(part, R, 2 * d, c * W);

  part = "decoder";
  e.decoder.add_cost(costs, part, read);
  if (dials.query_skip > 1) costs.op(part, 0, {R * K, N * K});

  part = "mask";
  const double entries = H * kept_keys(T, k, shape_.causal);
  costs.op(part, 0, {N * K, N * K});
  costs.bytes(part, 5 * N * K);            // the estimate, and a byte a column
  costs.bytes(part, N * K + 4 * entries);  // that byte again, and the keys
  costs.op("sparse attention", 2 * entries * d, {N * d, N * d, N * d, N * d});

  part = "output";
  if (shape_.causal) {
    costs.op(part, 0, {N * d, N * d});
  } else {
    costs.op(part, N * d * K, {N * K, N * d, N * d});
  }
  costs.op(part, 0, {N * d, N * d, N * 2, N * d});
  return true;
}

void ConvDecoder::add_cost(nn::CostTable& costs, const char* part, double rows) const {
  const double H = double(heads_), K = double(K_), W = double(K_ / config_.width_reduction);
  const double channels = H * double(config_.channel_expansion), R = H * rows;
  auto image = [&](double n, const Halo& halo, double columns, double depth) {
    return (n + double(halo.before + halo.after)) * columns * depth;
  };
  if (norm_in_) {
    const double n = rows * channels * W;
    costs.op(part, 0, {n, W, W, n});
  }
  double in = image(rows, convs_[0]->halo(), W, channels), n = rows;
  costs.op(part, 0, {rows * channels * W, in});
  for (size_t i = 0; i < convs_.size(); ++i) {
    if (i == 0) n = whole(rows, double(config_.token_stride));
    const double weights = double(convs_[i]->weight.value.numel());
    const double out =
        image(n, i + 1 < convs_.size() ? convs_[i + 1]->halo() : Halo{}, W, channels);
    costs.op(part, n * W * weights, {in, weights, channels, out});
    in = out;
  }
  const double weights = double(last_->weight.value.numel());
  if (config_.last_kernel == 1) {
    costs.op(part, n * W * weights, {in, weights, n * W * H});
    costs.op(part, 0, {n * W * H, R * K});
  } else {
    const double wide = image(rows, last_->halo(), K, channels);
    costs.op(part, 0, {in, wide});
    costs.op(part, rows * K * weights, {wide, weights, rows * K * H});
    costs.op(part, 0, {rows * K * H, R * K});
  }
  if (norm_out_) costs.op(part, 0, {R * K, K, K, R * K});
}

}  // namespace brine::sea
