// A decoder of RMSNorm, rotary positions, groups of heads and a gated MLP, by its name in the
// registry, against the formulas of Llama written as loops in double.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "nn/models/model_config.h"
#include "nn/models/model_state.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"

namespace brine::test {
namespace {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;  // one for each token

constexpr int64_t kHeads = 4, kGroups = 2, kHeadSize = 8, kTheta = 100;

// The weights of a model by name.
class Weights {
 public:
  explicit Weights(nn::Model& model) {
    for (const auto& t : nn::state_of(model)) tensors_[t.name] = t.tensor;
  }

  Rows matrix(const std::string& name) const {
    const Tensor& w = tensors_.at(name + ".weight");
    const Vector all = w.to_vector();
    Rows out;
    for (int64_t r = 0; r < w.dim(0); ++r) {
      out.emplace_back(all.begin() + r * w.dim(1), all.begin() + (r + 1) * w.dim(1));
    }
    return out;
  }
  Vector vector(const std::string& name) const { return tensors_.at(name + ".weight").to_vector(); }

  // W x of every row.
  Rows linear(const Rows& x, const std::string& name) const {
    const Rows w = matrix(name);
    Rows y(x.size(), Vector(w.size(), 0.0));
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t o = 0; o < w.size(); ++o) {
        for (size_t i = 0; i < w[o].size(); ++i) y[t][o] += w[o][i] * x[t][i];
      }
    }
    return y;
  }

  Rows rms_norm(const Rows& x, const std::string& name) const {
    const Vector w = vector(name);
    Rows y = x;
    for (Vector& row : y) {
      double square = 0;
      for (double v : row) square += v * v;
      const double root = std::sqrt(square / double(row.size()) + 1e-6);
      for (size_t c = 0; c < row.size(); ++c) row[c] *= w[c] / root;
    }
    return y;
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

// x cos + rotate_half(x) sin for one head of one token, rotate_half(x) = (-x2, x1).
Vector rotated(const Vector& x, int64_t position) {
  const size_t half = x.size() / 2;
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double frequency =
        1 / std::pow(double(kTheta), 2.0 * double(i % half) / double(x.size()));
    const double angle = double(position) * frequency;
    const double other = i < half ? -x[i + half] : x[i - half];
    y[i] = x[i] * std::cos(angle) + other * std::sin(angle);
  }
  return y;
}

Vector head_of(const Vector& row, int64_t head) {
  return {row.begin() + head * kHeadSize, row.begin() + (head + 1) * kHeadSize};
}

double product(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Causal attention of every head of q to the keys of its group.
Rows attention(const Rows& q, const Rows& k, const Rows& v) {
  Rows y(q.size(), Vector(size_t(kHeads * kHeadSize), 0.0));
  for (size_t t = 0; t < q.size(); ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t group = h / (kHeads / kGroups);
      const Vector query = rotated(head_of(q[t], h), int64_t(t));
      Vector weights;
      double all = 0;
      for (size_t s = 0; s <= t; ++s) {
        const double score = product(query, rotated(head_of(k[s], group), int64_t(s)));
        weights.push_back(std::exp(score / std::sqrt(double(kHeadSize))));
        all += weights.back();
      }
      for (size_t s = 0; s <= t; ++s) {
        for (int64_t c = 0; c < kHeadSize; ++c) {
          y[t][size_t(h * kHeadSize + c)] += weights[s] / all * v[s][size_t(group * kHeadSize + c)];
        }
      }
    }
  }
  return y;
}

void add_to(Rows& x, const Rows& y) {
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
  }
}

// What the last norm gives for one sequence of tokens.
Rows reference(const Weights& w, const std::vector<double>& tokens, int64_t layers) {
  const Rows table = w.matrix("model.embed_tokens");
  Rows x;
  for (double token : tokens) x.push_back(table[size_t(token)]);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = join("model.layers.", i, ".");
    const Rows in = w.rms_norm(x, layer + "input_layernorm");
    const Rows context = attention(w.linear(in, layer + "self_attn.q_proj"),
                                   w.linear(in, layer + "self_attn.k_proj"),
                                   w.linear(in, layer + "self_attn.v_proj"));
    add_to(x, w.linear(context, layer + "self_attn.o_proj"));
    const Rows between = w.rms_norm(x, layer + "post_attention_layernorm");
    Rows inner = w.linear(between, layer + "mlp.gate_proj");
    const Rows up = w.linear(between, layer + "mlp.up_proj");
    for (size_t t = 0; t < inner.size(); ++t) {
      for (size_t c = 0; c < inner[t].size(); ++c) {
        inner[t][c] = inner[t][c] / (1 + std::exp(-inner[t][c])) * up[t][c];
      }
    }
    add_to(x, w.linear(inner, layer + "mlp.down_proj"));
  }
  return w.rms_norm(x, "model.norm");
}

nn::ModelConfig like_llama(const std::string& attention) {
  nn::ModelConfig config = nn::make_config("parts", {{"num_attention_heads", kHeads},
                                                     {"num_key_value_heads", kGroups},
                                                     {"head_dim", kHeadSize},
                                                     {"rope_theta", double(kTheta)}});
  config.attention = attention;
  return config;
}

}  // namespace

TEST_CASE("parts: a decoder like Llama follows Llama's formulas, at once and token by token") {
  for (const char* attention : {"flash", "dense"}) {
    for (bool packed : {false, true}) {
      INFO(attention << (packed ? ", packed" : ""));
      auto model = nn::make_model(like_llama(attention), 1, Dtype::f64);
      std::optional<nn::ParameterStore> store;
      if (packed) store.emplace(*model);
      NoGrad off;
      const Tensor tokens = ids({2, 19}, 5, 37);
      const Weights weights(*model);
      const Tensor hidden = model->hidden({.ids = tokens});
      for (int64_t b : {0, 1}) {
        const Tensor row = tokens.select(0, b).contiguous();
        const Rows wanted = reference(weights, row.to_vector(), 2);
        Vector all;
        for (const Vector& x : wanted) all.insert(all.end(), x.begin(), x.end());
        CHECK(close(hidden.select(0, b).contiguous().to_vector(), all, 1e-11, 1e-11, attention));
        nn::ModelState state(*model, {.batch = 1, .capacity = 19, .dtype = Dtype::f64});
        Tensor last = nn::prefill(*model, state, 0, row.slice(0, 0, 4).contiguous());
        for (int64_t t = 3; t < 19; ++t) {
          if (t > 3) last = nn::step(*model, state, row.slice(0, t, 1).contiguous());
          CHECK(close(last.to_vector(), wanted[size_t(t)], 1e-11, 1e-11, attention));
        }
      }
    }
  }
}

}  // namespace brine::test
