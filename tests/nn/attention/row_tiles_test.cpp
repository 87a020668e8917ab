// Losses over tiles of rows: what they give, and when the parameters that they do not read are
// complete.
#include "nn/attention/rivals/row_tiles.h"

#include <doctest/doctest.h>

#include "autograd/ops.h"

namespace brine::nn {
namespace {

Tensor leaf(float value) { return require_grad(Tensor::full({1}, value)); }

// The count of ops before each leaf was complete.
struct Completions : BackwardWatch {
  explicit Completions(size_t leaves) : ops_before(leaves, -1) {}
  void complete(size_t leaf) override { ops_before[leaf] = ops; }
  void between_ops() override { ++ops; }
  std::vector<int> ops_before;
  int ops = 0;
};

TEST_CASE("row tiles: a loss holds up the gradients of its own parameters alone") {
  const Tensor read = leaf(3), other = leaf(5);
  const std::vector<RowTile> tiles = {{0, 0, 2, 2}, {0, 2, 2, 4}, {0, 4, 1, 5}};
  const Tensor loss = sum_over_tiles(tiles, {}, [&](const RowTile& tile, const auto&) {
    return scale(mul(read, read), double(tile.keys));
  });
  CHECK(loss.to_vector()[0] == doctest::Approx(9 * (2 + 4 + 5)));
  Completions seen(2);
  backward(mul(loss, other), {}, {read, other}, seen);
  CHECK(grad(read).to_vector()[0] == doctest::Approx(2 * 3 * (2 + 4 + 5) * 5));
  CHECK(grad(other).to_vector()[0] == doctest::Approx(9 * (2 + 4 + 5)));
  CHECK(seen.ops_before[1] == 1);
  CHECK(seen.ops_before[0] == seen.ops - 1);
}

}  // namespace
}  // namespace brine::nn
