// Products of 4-bit codes with bytes: every engine has the numbers of plain loops.
#include "tensor/cpu/blocks/code_tile.h"

#include <vector>

#include "tests/gradcheck.h"

namespace brine::test {

TEST_CASE("code_tile: every engine of this CPU gives the sums of plain loops") {
  struct Size {
    int64_t keys, lanes, depth;
  };
  for (const auto& [keys, lanes, depth] :
       {Size{32, 96, 64}, {8, 16, 4}, {5, 16, 8}, {13, 80, 100}, {32, 224, 128}, {1, 48, 68}}) {
    const std::vector<double> drawn = ids({keys * depth}, 3, 16).to_vector();
    std::vector<uint8_t> codes(drawn.begin(), drawn.end());
    std::vector<int8_t> u;
    for (const double x : ids({lanes * depth}, 4, 255).to_vector()) u.push_back(int8_t(x - 127));
    // The largest sums of 16 bits: all codes 15 or 0, all queries of one sign.
    std::fill(codes.begin(), codes.begin() + depth, uint8_t(15));
    std::fill(codes.end() - depth, codes.end(), uint8_t(keys > 1 ? 0 : 15));
    for (int64_t c = 0; c < depth; ++c) {
      u[size_t(c / 4 * 4 * lanes + c % 4)] = 127;
      u[size_t(c / 4 * 4 * lanes + 4 + c % 4)] = -127;
    }
    std::vector<int32_t> wanted(size_t(keys * lanes)), got(wanted.size());
    code_tile::product(code_tile::Engine::plain, keys, lanes, depth, codes.data(), u.data(),
                       wanted.data());
    CHECK(wanted[0] == 15 * 127 * depth);
    CHECK(wanted[1] == -15 * 127 * depth);
    for (const code_tile::Engine engine : code_tile::kEngines) {
      if (!code_tile::has(engine)) continue;
      CAPTURE(int(engine));
      code_tile::product(engine, keys, lanes, depth, codes.data(), u.data(), got.data());
      CHECK(got == wanted);
    }
  }
}

}  // namespace brine::test
