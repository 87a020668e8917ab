// Checks of a sample that need no teacher.
#include <cmath>

#include "data/dump/dump_reader.h"

namespace brine::data {
namespace {

void check_finite(const Tensor& x, const std::string& what) {
  const float* v = x.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    check_format(std::isfinite(v[i]), what, ": value ", i, " is ", v[i]);
}

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

// Throws unless the attention outputs x of a layer are softmax(q k^T / sqrt(d)) v in some rows, or
// the map times v, if it has these.
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

}  // namespace

void check_dump_sample(const DumpReader& reader, int64_t sample, const std::string& where) {
  const DumpBatch batch = reader.read(std::vector<int64_t>{sample});
  const int64_t length = batch.lengths.data<int64_t>()[0];
  auto check_all = [&](const TensorSet& tensors, int64_t layer) {
    for (const auto& [name, x] : tensors) {
      const TeacherTensor& tensor = *find_teacher_tensor(name);
      if (!tensor.is_float() || !x.defined()) continue;
      const std::string what = join(where, ": sample ", sample, ": ", tensor.path(layer));
      check_finite(x, what);
      if (name == "attention_output") check_context(x, tensors, length, reader.spec(), what);
    }
  };
  check_all(batch.tensors, 0);
  for (size_t l = 0; l < batch.layers.size(); ++l) check_all(batch.layers[l], int64_t(l));
}

}  // namespace brine::data
