// Losses over tiles of rows.
#include "nn/attention/rivals/row_tiles.h"

#include <doctest/doctest.h>

#include "autograd/ops.h"

namespace brine::nn {
namespace {

Tensor leaf(float value) { return require_grad(Tensor::full({1}, value)); }

TEST_CASE("row tiles: the loss and its gradients are the sums over the tiles") {
  const Tensor read = leaf(3), other = leaf(5);
  const std::vector<RowTile> tiles = {{0, 0, 2, 2}, {0, 2, 2, 4}, {0, 4, 1, 5}};
  const Tensor loss = sum_over_tiles(tiles, {}, [&](const RowTile& tile, const auto&) {
    return scale(mul(read, read), double(tile.keys));
  });
  CHECK(loss.to_vector()[0] == doctest::Approx(9 * (2 + 4 + 5)));
  backward(mul(loss, other));
  CHECK(grad(read).to_vector()[0] == doctest::Approx(2 * 3 * (2 + 4 + 5) * 5));
  CHECK(grad(other).to_vector()[0] == doctest::Approx(9 * (2 + 4 + 5)));
}

}  // namespace
}  // namespace brine::nn
