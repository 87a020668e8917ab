// Products of pairs of bf16 against sums in f64, on a CPU that has the instructions.
#include "tensor/cpu/core/pair_tile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "tests/gradcheck.h"

using namespace brine;

namespace {

std::vector<uint32_t> random_pairs(int64_t n, uint64_t seed) {
  const Tensor x = test::normal({2 * n}, seed).to(Dtype::bf16);
  std::vector<uint32_t> out;
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(uint32_t(x.data<bf16>()[2 * i].bits) |
                  (uint32_t(x.data<bf16>()[2 * i + 1].bits) << 16));
  }
  return out;
}

double low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
double high(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

enum class From : uint8_t { zero, sums, scaled };

// Rows have room beyond what a product reads and writes, which must stay as it is.
struct Product {
  int64_t rows, lanes, pairs;
  int64_t b_step = pairs + 3, a_step = lanes + 16, c_step = lanes + 32;
  std::vector<uint32_t> b = random_pairs(rows * b_step, 1), a = random_pairs(pairs * a_step, 2);
  std::vector<float> factors = std::vector<float>(size_t(lanes), 0.75f);

  std::vector<float> from(From from, int64_t first = 0) const {
    std::vector<float> c(size_t(rows * c_step), 2.5f);
    pair_tile::product(rows - first, lanes, pairs, {b.data() + first * b_step, b_step},
                       {a.data(), a_step}, {c.data() + first * c_step, c_step},
                       {from == From::sums, from == From::scaled ? factors.data() : nullptr});
    return c;
  }

  void check(const std::vector<float>& c, From from) const {
    double worst = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t l = 0; l < c_step; ++l) {
        double sum = l >= lanes || from == From::sums ? 2.5 : from == From::scaled ? 1.875 : 0;
        double size = sum;
        for (int64_t p = 0; l < lanes && p < pairs; ++p) {
          const uint32_t y = b[size_t(r * b_step + p)], x = a[size_t(p * a_step + l)];
          sum += low(x) * low(y) + high(x) * high(y);
          size += std::abs(low(x) * low(y)) + std::abs(high(x) * high(y));
        }
        const double difference = std::abs(sum - double(c[size_t(r * c_step + l)]));
        worst = std::max(worst, size > 0 ? difference / size : difference);
      }
    }
    CHECK_MESSAGE(worst < 3e-7, rows << " x " << lanes << " x " << pairs);
  }
};

}  // namespace

TEST_CASE("pair_tile: the sums of products of any sizes") {
  if (!pair_tile::is_available()) return;
  for (int64_t rows : {1, 5, 15, 16, 17, 32, 33, 50, 96}) {
    for (int64_t lanes : {16, 32, 48, 64}) {
      for (int64_t pairs : {1, 7, 16, 17, 32, 48}) {
        const Product product{rows, lanes, pairs};
        for (From from : {From::zero, From::sums, From::scaled}) {
          product.check(product.from(from), from);
        }
      }
    }
  }
}

TEST_CASE("pair_tile: the bits of a row do not depend on its position") {
  if (!pair_tile::is_available()) return;
  const Product product{70, 48, 37};
  const std::vector<float> whole = product.from(From::zero);
  for (int64_t first : {1, 16, 33, 69}) {
    const std::vector<float> part = product.from(From::zero, first);
    const auto at = ptrdiff_t(first * product.c_step);
    CHECK(std::equal(whole.begin() + at, whole.end(), part.begin() + at));
  }
}

TEST_CASE("pair_tile: lanes of no whole vector, and a CPU without the instructions, are refused") {
  const Product product{3, 16, 2}, odd{3, 17, 2};
  CHECK_THROWS_AS(odd.from(From::zero), Error);
  if (!pair_tile::is_available()) CHECK_THROWS_AS(product.from(From::zero), Error);
}
