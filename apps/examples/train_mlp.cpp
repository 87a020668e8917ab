// Trains a small MLP to separate two spirals: modules, the tape, AdamW.
#include <brine/autograd/ops.h>
#include <brine/nn/layers/layers.h>
#include <brine/nn/optim/optimizer.h>

#include <cmath>
#include <iostream>

using namespace brine;

struct Net : nn::Module {
  explicit Net(nn::Init& init)
      : first(child<nn::Linear>("first", init, 2, 64)),
        last(child<nn::Linear>("last", init, 64, 2)) {}
  Tensor operator()(const Tensor& x) const { return last(gelu(first(x))); }
  nn::Linear &first, &last;
};

int main() {
  constexpr int64_t kPoints = 200;
  Tensor points = Tensor::empty({kPoints, 2}), sides = Tensor::empty({kPoints}, Dtype::i32);
  for (int64_t i = 0; i < kPoints; ++i) {
    const double turn = 0.05 * double(i / 2), radius = (i % 2 ? 0.4 : -0.4) * (turn + 0.5);
    points.data<float>()[2 * i] = float(radius * std::cos(turn));
    points.data<float>()[2 * i + 1] = float(radius * std::sin(turn));
    sides.data<int32_t>()[i] = int32_t(i % 2);
  }
  nn::Init init{.random = {.seed = 1}, .linear_std = 0.3};
  Net net(init);
  nn::ParameterStore store(net);
  nn::Adamw adamw(store, {.learning_rate = 1e-2, .weight_decay = 0});
  for (int step = 0; step <= 200; ++step) {
    store.zero_gradients();
    const Tensor loss = scale(sum(cross_entropy(net(points), sides)), 1.0 / kPoints);
    backward(loss);
    adamw.step(1, adamw.gradient_norm());
    if (step % 50 == 0) std::cout << "step " << step << ": loss " << loss.item() << std::endl;
  }
}
