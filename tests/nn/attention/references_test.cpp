// The exact attention methods against attention composed from primitives.
#include "tests/autograd/references.h"
#include "tests/nn/attention/contract/contract.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("dense and flash are softmax attention composed from primitives, with every gradient") {
  const double tolerance = 1e-12;
  for (const char* name : {"dense", "flash"}) {
    for (bool causal : {true, false}) {
      for (const Tensor& lengths : {Tensor(), lengths_of({17, 5})}) {
        INFO(name << (causal ? ", causal" : "") << (lengths.defined() ? ", lengths" : ""));
        const Inputs in = inputs(2, 17, Dtype::f64);
        const Visibility visible{.causal = causal, .lengths = lengths};
        auto composed = [&](const std::vector<Tensor>& x) {
          return merge_heads(reference::attention(x[0], x[1], x[2], visible));
        };
        const Tensor dy = cotangent(composed({in.q, in.k, in.v}));
        const Run expected = run(composed, {in.q, in.k, in.v}, dy);
        Block block = make_block(name, causal, Dtype::f64);
        const Passed got = pass(block, in, lengths, dy);
        CHECK(close_to_scale(got.y, expected.y, tolerance, "output"));
        CHECK(close_to_scale(got.q, expected.grads[0], tolerance, "gradient of q"));
        CHECK(close_to_scale(got.k, expected.grads[1], tolerance, "gradient of k"));
        CHECK(close_to_scale(got.v, expected.grads[2], tolerance, "gradient of v"));
      }
    }
  }
}
