// Attention losses on maps, which the ops of dense attention make and which live until the backward
// pass has used them.
#include "apps/bench/parts/map_losses.h"

#include <cmath>

#include "tensor/math.h"
#include "tensor/parallel.h"
#include "tensor/top_logits.h"

namespace brine::bench {
namespace {

// f(row, t) for every row t of every map of x.
template <class F>
void for_rows(const Tensor& x, F f) {
  const int64_t T = x.dim(2);
  parallel_for(x.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r, r % T);
  });
}

// Attaches the losses of a layer to its output.
class MapLosses : public nn::LayerObserver {
 public:
  MapLosses(const distill::LossConfig& weights, nn::Model& teacher, const distill::Batch& batch)
      : weights_(weights), teacher_(teacher), call_{.ids = batch.ids} {
    NoGrad off;
    hidden = teacher_.embed(call_).detach();
  }

  Tensor observe(int64_t i, const nn::Tap& tap, const Tensor& output) override {
    nn::Tap theirs("dense");
    {
      NoGrad off;
      hidden = teacher_.layer(i, hidden, call_, &theirs).detach();
    }
    const Tensor t = theirs.get("probabilities").detach();
    const Tensor &q = tap.get("q"), &k = tap.get("k");
    Tensor a = softmax(matmul(q, k, false, true), 1 / std::sqrt(double(q.dim(3))), {});
    Tensor sum = term("prob", attention(map_distance(a, t)), weights_["prob"]);
    Tensor wide = softmax(widen(tap.get("scores")), 1, {});
    sum = add(sum, term("approx", attention(map_distance(wide, t)), weights_["approx"]));
    const Tensor of_context = distance(tap.get("attention_output"), theirs.get("attention_output"));
    sum = add(sum, term("context", of_context, weights_["context"]));
    return add(sum, term("kd", distance(output, hidden), weights_["kd"]));
  }

  Tensor hidden;  // of the teacher after the layers that ran
  distill::LossTerms terms;

 private:
  Tensor attention(const Tensor& pair) const {
    double values[] = {weights_.kl, weights_.mse};
    return dot(pair, Tensor::from(std::span<const double>(values), {2}).to(pair.dtype()));
  }
  static Tensor distance(const Tensor& x, const Tensor& y) {
    const int64_t rows = x.rows();
    return squared_distance(x, y, Tensor::full({rows}, 1 / double(x.numel())));
  }
  Tensor term(const char* name, const Tensor& value, double weight) {
    Tensor scaled = scale(value, weight / double(teacher_.shape().layers));
    terms[name] += scaled.item();
    return scaled;
  }

  const distill::LossConfig& weights_;
  nn::Model& teacher_;
  nn::ModelCall call_;
};

}  // namespace

Tensor widen(const Tensor& scores) {
  const int64_t T = scores.dim(2), K = scores.dim(3);
  Tensor x = scores.detach().contiguous();
  Tensor y = Tensor::zeros({x.dim(0), x.dim(1), T, T});
  // f(begin, end, value) for every column of row r, which sees w keys.
  auto columns = [K](int64_t w, float* values, auto f) {
    for (int64_t c = 0; c < K; ++c) {
      f(math::column_begin(c, w, K), math::column_begin(c + 1, w, K), values[c]);
    }
  };
  for_rows(y, [&](int64_t r, int64_t t) {
    float* row = y.data<float>() + r * T;
    columns(t + 1, x.data<float>() + r * K,
            [&](int64_t j0, int64_t j1, float s) { std::fill(row + j0, row + j1, s); });
  });
  return record("widen", y, {scores}, [=](const Tensor& dy, Gradients& grads) {
    Tensor dx = Tensor::like(x), wide = dy.contiguous();
    for_rows(wide, [&](int64_t r, int64_t t) {
      const float* row = wide.data<float>() + r * T;
      columns(t + 1, dx.data<float>() + r * K, [&](int64_t j0, int64_t j1, float& d) {
        d = 0;
        for (int64_t j = j0; j < j1; ++j) d += row[j];
      });
    });
    grads.set(0, dx);
  });
}

Tensor map_distance(const Tensor& a, const Tensor& t) {
  check(a.shape() == t.shape(), "map_distance: ", a.shape(), " and ", t.shape());
  const int64_t T = a.dim(3), R = a.rows();
  Tensor x = a.detach().contiguous(), kept = t.detach().contiguous();
  std::vector<double> kl(static_cast<size_t>(R)), square(static_cast<size_t>(R));
  for_rows(x, [&](int64_t r, int64_t row) {
    const float *p = x.data<float>() + r * T, *q = kept.data<float>() + r * T;
    float logs = 0, squares = 0;
#pragma omp simd reduction(+ : logs, squares)
    for (int64_t j = 0; j <= row; ++j) {
      const float off = p[j] - q[j];
      logs += q[j] > 0 ? q[j] * (math::log(q[j]) - math::log(p[j])) : 0.0f;
      squares += off * off;
    }
    kl[size_t(r)] = logs;
    square[size_t(r)] = squares;
  });
  Tensor y = Tensor::zeros({2});
  double sums[2] = {0, 0};
  for (size_t r = 0; r < size_t(R); ++r) {
    sums[0] += kl[r];
    sums[1] += square[r];
  }
  y.data<float>()[0] = float(sums[0] / double(R));
  y.data<float>()[1] = float(sums[1] / double(R * T));
  return record("map_distance", y, {a}, [=](const Tensor& dy, Gradients& grads) {
    const float of_kl = dy.data<float>()[0] / float(R);
    const float of_square = 2 * dy.data<float>()[1] / float(R * T);
    Tensor dx = Tensor::zeros_like(x);
    for_rows(dx, [&](int64_t r, int64_t row) {
      const float *p = x.data<float>() + r * T, *q = kept.data<float>() + r * T;
      float* d = dx.data<float>() + r * T;
#pragma omp simd
      for (int64_t j = 0; j <= row; ++j) {
        d[j] = of_square * (p[j] - q[j]) - (q[j] > 0 ? of_kl * q[j] / p[j] : 0.0f);
      }
    });
    grads.set(0, dx);
  });
}

void MapObjective::run(const distill::Batch& batch, distill::LossTerms& terms) {
  MapLosses layers(weights_, teacher_, batch);
  Tensor hidden = student_.hidden({.ids = batch.ids, .observer = &layers});
  terms = layers.terms;
  const int64_t rows = batch.tokens, V = student_.shape().vocab_size;
  Tensor logits = reshape(student_.logits(hidden), {rows, V});
  TopLogits theirs;
  {
    NoGrad off;
    Tensor x = teacher_.logits(teacher_.finish(layers.hidden)).detach();
    theirs = top_logits(x.view({rows, V}), 0);
  }
  Tensor target = nn::next_tokens(batch.ids, {}, 0).view({rows});
  int64_t predicted = 0;
  for (int64_t r = 0; r < rows; ++r) predicted += target.data<int32_t>()[r] >= 0;
  auto mean = [&](const Tensor& x, int64_t count) {
    return dot(x, Tensor::full({rows}, 1 / double(count)));
  };
  Tensor kd_task = scale(mean(kl_logits(logits, theirs), rows), weights_["kd_task"]);
  Tensor task = scale(mean(cross_entropy(logits, target), predicted), weights_["task"]);
  terms["kd_task"] = kd_task.item();
  terms["task"] = task.item();
  backward(add(kd_task, task));
}

}  // namespace brine::bench
