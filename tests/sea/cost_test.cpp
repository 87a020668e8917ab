// The cost meter on a block: backward apart from forward, times and memory.
#include "tensor/meter/cost_meter.h"

#include "tests/nn/attention/contract/contract.h"

namespace brine::test {

TEST_CASE("costs: backward is recorded next to forward, times and memory are measured") {
  Block block = make_block("sea", true, Dtype::f32);
  const Inputs x = inputs(1, 64, Dtype::f32);
  const nn::AttentionInput in{.q = require_grad(x.q), .k = x.k, .v = x.v, .hidden = x.hidden};
  CostMeter meter;
  CHECK_THROWS_WITH_AS(CostMeter{}, "cost meter: one is running already", Error);
  {
    Tensor y = block.module->forward(in);
    backward(y, Tensor::full(y.shape(), 1));
  }
  CHECK(meter.costs().at("decoder").ms > 0);  // no gradient comes through a causal mask
  for (const std::string part : {"performer", "mu, nu", "sparse attention", "output"}) {
    CAPTURE(part);
    REQUIRE(meter.costs().contains(part));
    CHECK(meter.costs().at(part).ms > 0);
    CHECK(meter.costs().at(part).peak > 0);
    CHECK(meter.costs().at(join("backward of ", part)).ms > 0);
  }
}

}  // namespace brine::test
