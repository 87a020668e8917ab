// Checks of external attention values: rows must be distributions, and sums must be consistent with
// them.
#include "data/dump/teacher_checks.h"

#include <algorithm>
#include <cmath>

#include "tensor/base/math.h"

namespace brine::data {
namespace {

// Tolerance of the sum of a row of stored probabilities.
double tolerance_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 1e-3 : dtype == Dtype::f16 ? 1e-2 : 3e-2;
}

// By how much a stored logit, and so a log-sum-exp, may differ from the teacher's.
double logit_slack(Dtype dtype, double largest) {
  const double rounding = dtype == Dtype::f32 ? 1e-5 : dtype == Dtype::f16 ? 1e-3 : 8e-3;
  return 1e-3 + 2 * rounding * largest;
}

// A row of [1, H, T, K] over w visible keys: a distribution over the columns that have keys, and
// sums that a distribution of that mass can have.
void check_pooled_row(const float* tau, double t_log_t, double t_square, int64_t w, int64_t K,
                      double tolerance, const std::string& what) {
  double sum = 0, max_entropy = 0, min_square = 0;
  for (int64_t c = 0; c < K; ++c) {
    double keys = double(math::column_begin(c + 1, w, K) - math::column_begin(c, w, K));
    check_format(keys > 0 ? tau[c] >= 0 && tau[c] <= 1 + tolerance : tau[c] == 0, what, ", column ",
                 c, " of ", keys, " keys has the mass ", tau[c]);
    sum += tau[c];
    if (tau[c] > 0) {
      max_entropy -= tau[c] * std::log(tau[c] / keys);
      min_square += double(tau[c]) * tau[c] / keys;
    }
  }
  check_format(std::abs(sum - 1) <= tolerance, what, ": the masses sum to ", sum, ", not to 1");
  check_format(t_log_t <= tolerance && t_log_t >= -max_entropy - 10 * tolerance, what,
               ": t_log_t is ", t_log_t, ", but such masses allow ", -max_entropy, " to 0");
  check_format(t_square <= 1 + tolerance && t_square >= min_square - 2 * tolerance, what,
               ": t_square is ", t_square, ", but such masses allow ", min_square, " to 1");
}

}  // namespace

void check_maps(const Tensor& x, const TensorSet&, int64_t length, const DumpSpec& s,
                const std::string& what) {
  double tolerance = tolerance_of(s.dtype);
  const float* row = x.data<float>();
  for (int64_t h = 0; h < s.heads; ++h) {
    int64_t T = x.dim(-1);
    for (int64_t t = 0; t < T; ++t, row += T) {
      if (t >= length) continue;
      double sum = 0;
      for (int64_t j = 0; j < T; ++j) {
        bool visible = j < length && (!s.causal || j <= t);
        check_format(visible ? row[j] >= 0 && row[j] <= 1 + tolerance : row[j] == 0, what,
                     ": head ", h, ", query ", t, ", key ", j, " has the probability ", row[j]);
        sum += row[j];
      }
      check_format(std::abs(sum - 1) <= tolerance, what, ": head ", h, ", query ", t,
                   ": the probabilities sum to ", sum, ", not to 1");
    }
  }
}

void check_logits(const Tensor& x, const TensorSet& all, int64_t length, const DumpSpec& s,
                  const std::string& what) {
  const bool top = s.logits == DumpLogits::top;
  const int64_t T = x.dim(1), N = x.dim(2);
  std::vector<int32_t> ids(static_cast<size_t>(top ? N : 0));
  for (int64_t t = 0; t < std::min(T, length); ++t) {
    const float* row = x.data<float>() + t * N;
    const std::string where = join(what, ": token ", t);
    if (top) {
      for (int64_t n = 1; n < N; ++n) {
        check_format(row[n] <= row[n - 1], where, ": the logits are not in descending order, ",
                     row[n], " comes after ", row[n - 1]);
      }
      const int32_t* given = all["logit_ids"].data<int32_t>() + t * N;
      std::copy(given, given + N, ids.begin());
      std::sort(ids.begin(), ids.end());
      const auto twice = std::adjacent_find(ids.begin(), ids.end());
      check_format(twice == ids.end(), where, ": two logits have the id ",
                   twice == ids.end() ? 0 : *twice);
    }
    const auto [smallest, largest] = std::minmax_element(row, row + N);
    double sum = 0;
    for (int64_t n = 0; n < N; ++n) sum += std::exp(double(row[n]) - *largest);
    const double stored_lse = *largest + std::log(sum), lse = all["lse"].data<float>()[t];
    // The others are not larger than the smallest that is stored.
    const double others = double(s.vocab - N) * std::exp(double(*smallest) - *largest);
    const double bound = *largest + std::log(sum + std::max(others, 0.0));
    const double slack = logit_slack(s.dtype, std::max(std::abs(*smallest), std::abs(*largest)));
    check_format(lse >= stored_lse - slack, where, ": the log-sum-exp is ", lse,
                 ", but that of the stored logits alone is ", stored_lse);
    check_format(lse <= bound + slack, where, ": the log-sum-exp is ", lse,
                 ", but with these logits it is at most ", bound);
  }
}

namespace {

// The distance of attention outputs from the attention of q and k, relative to it, which is scaled
// by `factor`, or of the map, in a few rows of every head.
double context_distance(const Tensor& x, const TensorSet& layer, int64_t length, const DumpSpec& s,
                        double factor) {
  constexpr int64_t kRows = 16;
  const int64_t H = s.heads, G = s.key_heads, d = s.head_size, T = x.dim(1);
  const float* context = x.data<float>();
  const float* value = layer["value"].data<float>();
  const bool map = layer.has("attention");
  std::vector<double> weights(static_cast<size_t>(T));
  double difference = 0, all = 0;
  for (int64_t h = 0; h < H; ++h) {
    const int64_t g = h / (H / G);
    for (int64_t r = 0; r < std::min(kRows, length); ++r) {
      const int64_t t = (r + 1) * length / std::min(kRows, length) - 1;
      const int64_t keys = s.causal ? t + 1 : length;
      double largest = -INFINITY, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double& w = weights[size_t(j)];
        if (map) {
          w = layer["attention"].data<float>()[(h * T + t) * T + j];
          continue;
        }
        const float* q = layer["query"].data<float>() + (h * T + t) * d;
        const float* k = layer["key"].data<float>() + (g * T + j) * d;
        w = 0;
        for (int64_t i = 0; i < d; ++i) w += double(q[i]) * k[i];
        w *= factor / std::sqrt(double(d));
        largest = std::max(largest, w);
      }
      for (int64_t j = 0; j < keys; ++j) {
        if (!map) weights[size_t(j)] = std::exp(weights[size_t(j)] - largest);
        sum += weights[size_t(j)];
      }
      for (int64_t i = 0; i < d; ++i) {
        double y = 0;
        for (int64_t j = 0; j < keys; ++j)
          y += weights[size_t(j)] / sum * value[(g * T + j) * d + i];
        const double stored = context[(t * H + h) * d + i];
        difference += (stored - y) * (stored - y);
        all += y * y;
      }
    }
  }
  return std::sqrt(difference / std::max(all, 1e-300));
}

}  // namespace

void check_context(const Tensor& x, const TensorSet& layer, int64_t length, const DumpSpec& s,
                   const std::string& what) {
  // Rounding q and k moves scores, and the weights of keys by as much.
  const double tolerance = s.dtype == Dtype::f32 ? 0.01 : s.dtype == Dtype::f16 ? 0.03 : 0.1;
  const bool follows = layer.has("value") && (layer.has("attention") || layer.has("query"));
  if (!follows) return;
  const double distance = context_distance(x, layer, length, s, 1);
  if (distance < tolerance) return;
  const bool scaled =
      layer.has("query") &&
      context_distance(x, layer, length, s, std::sqrt(double(s.head_size))) < tolerance;
  check_format(false, what, ": differs by ", std::llround(100 * distance), " % from ",
               layer.has("query") ? "softmax(q k^T / sqrt(d)) v" : "the map times v",
               " of the stored tensors; ",
               scaled ? "query is multiplied by 1 / sqrt(d) already"
                      : "one of them is from another place or of another layer");
}

void check_pooled(const Tensor& tau, const TensorSet& layer, int64_t length, const DumpSpec& s,
                  const std::string& what) {
  double tolerance = tolerance_of(s.dtype);
  const float* t_log_t = layer["t_log_t"].data<float>();
  const float* t_square = layer["t_square"].data<float>();
  int64_t T = tau.dim(2), K = tau.dim(3);
  for (int64_t h = 0; h < s.heads; ++h) {
    for (int64_t t = 0; t < std::min(T, length); ++t) {
      int64_t r = h * T + t;
      check_pooled_row(tau.data<float>() + r * K, t_log_t[r], t_square[r],
                       s.causal ? t + 1 : length, K, tolerance,
                       join(what, ": head ", h, ", query ", t));
    }
  }
}

}  // namespace brine::data
