// The choice of key blocks against a plain reference, row by row: sums and products in the order of
// tensor/mask/blocks.h, so its numbers have the bits of every kernel.
#include "tests/block_cases.h"

#include <array>
#include <cmath>
#include <set>

#include "tensor/base/math.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

using Blocks = std::set<int64_t>;

// One row of one group: T is float or double.
template <class T>
struct Row {
  const BlockCase& c;
  const BlockScores& s;
  int64_t b, g, t;

  int64_t block() const { return t / c.config.block; }
  T at(const Tensor& x, int64_t i) const { return x.data<T>()[i]; }
  // q log2(e) / sqrt(d) of head h of the group.
  T query(int64_t h, int64_t i) const {
    const int64_t head = b * c.H + g * (c.H / c.G) + h;
    return at(s.q, (head * c.T + t) * c.d + i) * T(1.4426950408889634 / std::sqrt(double(c.d)));
  }
  // The first `parts` of q . mean + |q| . deviation of a block of level z.
  T product(int64_t h, int64_t z, int64_t n, int parts) const {
    const Tensor& moments = s.keys.moments[size_t(z)];
    const int64_t first = ((b * c.G + g) * moments.dim(2) + n) * 2 * c.d;
    T x = 0;
    for (int64_t i = 0; i < c.d; ++i) x = std::fma(query(h, i), at(moments, first + i), x);
    for (int64_t i = 0; i < c.d && parts == 2; ++i) {
      x = std::fma(std::fabs(query(h, i)), at(moments, first + c.d + i), x);
    }
    return x;
  }
  static T strands(const std::array<T, 8>& x) {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  }
  // For each block of `pool`: the sum over heads of the softmax of score(h, block) -> {a, w},
  // weights w 2^a.
  template <class Score>
  std::vector<T> shares(const Blocks& pool, Score score) const {
    std::vector<T> sums(pool.size(), T(0));
    for (int64_t h = 0; h < c.H / c.G; ++h) {
      std::vector<std::pair<T, T>> x;
      for (const int64_t n : pool) x.push_back(score(h, n));
      T largest = x.front().first;
      for (const auto& [a, w] : x) largest = std::max(largest, a);
      std::array<T, 8> strand = {};
      size_t i = 0;
      for (const int64_t n : pool) {
        x[i].first = math::exp2_nonpositive(x[i].first - largest) * x[i].second;
        strand[size_t(n % 8)] += x[i++].first;
      }
      const T norm = 1 / strands(strand);
      for (i = 0; i < x.size(); ++i) {
        sums[i] = h == 0 ? x[i].first * norm : T(sums[i] + T(x[i].first * norm));
      }
    }
    return sums;
  }
  // The `count` of the pool with the largest sums, of equal ones the later; fixed blocks compete
  // only if `fixed`.
  Blocks largest(const Blocks& pool, const std::vector<T>& sums, int64_t count, bool fixed) const {
    std::vector<std::pair<T, int64_t>> order;
    size_t i = 0;
    for (const int64_t n : pool) {
      if (fixed || !c.config.is_fixed(n, block())) order.emplace_back(sums[i], n);
      ++i;
    }
    std::sort(order.rbegin(), order.rend());
    Blocks out;
    for (i = 0; i < order.size() && int64_t(i) < count; ++i) out.insert(order[i].second);
    return out;
  }

  Blocks complete_fixed() const {
    Blocks out;
    for (int64_t n = 0; n < block(); ++n) {
      if (c.config.is_fixed(n, block())) out.insert(n);
    }
    return out;
  }

  Blocks candidates() const {
    const BlockConfig& f = c.config;
    Blocks pool, fixed = complete_fixed();
    for (int64_t n = 0; n < block(); ++n) pool.insert(n);
    auto moments_of = [&](int64_t z) {
      return [=, this](int64_t h, int64_t n) { return std::pair{product(h, z, n, 2), T(1)}; };
    };
    if (f.free_blocks(block()) > f.candidates) {
      const int z = f.level(block());
      if (z > 0) {
        Blocks supers, open;
        for (int64_t n = 0; n < block() >> z; ++n) supers.insert(n);
        for (const int64_t n : largest(supers, shares(supers, moments_of(z)), f.candidates, true)) {
          for (int64_t i = n << z; i < (n + 1) << z; ++i) open.insert(i);
        }
        for (int64_t i = block() >> z << z; i < block(); ++i) open.insert(i);
        pool = open;
        pool.insert(fixed.begin(), fixed.end());
      }
      pool = largest(pool, shares(pool, moments_of(0)), f.candidates, false);
    }
    for (const int64_t n : fixed) pool.erase(n);
    return pool;
  }

  // The score of a block by the copies of its keys: their largest, and the powers below it.
  std::pair<T, T> by_keys(int64_t h, int64_t n) const {
    const int64_t B = c.config.block, half = (c.d + 1) / 2;
    std::vector<T> w;
    T maximum = 0;
    for (int64_t i = 0; i < c.d; ++i) {
      w.push_back(query(h, i) * at(s.key_scale, g * c.d + i));
      maximum = std::max(maximum, std::fabs(w.back()));
    }
    const T step = maximum / T(127);
    int64_t sum = 0;
    std::vector<int64_t> u;
    for (const T x : w) sum += u.emplace_back(step > 0 ? int64_t(std::nearbyint(x / step)) : 0);
    const int64_t first = ((b * c.G + g) * s.keys.steps.dim(2) + n) * B;
    std::vector<T> y;
    for (int64_t j = 0; j < B; ++j) {
      int64_t products = 0;
      for (int64_t i = 0; i < c.d; ++i) {
        const int packed = s.keys.codes.data<uint8_t>()[(first + j) * half + i % half];
        products += u[size_t(i)] * (i < half ? packed & 15 : packed >> 4);
      }
      y.push_back((T(products) - T(7.5) * T(sum)) * at(s.keys.steps, first + j));
    }
    const T largest = *std::max_element(y.begin(), y.end());
    std::array<T, 8> strand = {};
    for (int64_t j = 0; j < B; ++j) {
      const T below = (y[size_t(j)] - largest) * step;
      strand[size_t(j % 8)] += math::exp2_nonpositive(below);
    }
    return {std::fma(largest, step, product(h, 0, n, 1)), strands(strand)};
  }

  Blocks chosen() const {
    Blocks pool = candidates();
    if (int64_t(pool.size()) <= c.config.chosen) return pool;
    pool.merge(complete_fixed());
    const auto sums = shares(pool, [this](int64_t h, int64_t n) { return by_keys(h, n); });
    return largest(pool, sums, c.config.chosen, false);
  }
};

// The mask by keys of the definition, u8 [B, H, T, T].
template <class T>
Tensor defined_mask(const BlockCase& c, const BlockScores& s) {
  const Tensor mask = Tensor::zeros({c.B, c.H, c.T, c.T}, Dtype::u8);
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t g = 0; g < c.G; ++g) {
      Blocks tile;
      for (int64_t t = 0; t < c.length(b); ++t) {
        const Row<T> row{c, s, b, g, t};
        if (t % c.config.tile == 0) tile.clear();
        if (c.config.chosen > 0) tile.merge(row.chosen());
        Blocks kept = row.complete_fixed();
        kept.insert(tile.begin(), tile.end());
        kept.insert(row.block());
        for (int64_t h = g * (c.H / c.G); h < (g + 1) * (c.H / c.G); ++h) {
          for (int64_t j = 0; j <= t; ++j) {
            mask.data<uint8_t>()[((b * c.H + h) * c.T + t) * c.T + j] =
                kept.count(j / c.config.block) > 0;
          }
        }
      }
    }
  }
  return mask;
}

// Queries and keys whose channels have unequal sizes.
Tensor unequal(const Shape& shape, uint64_t seed, Dtype dtype) {
  const Tensor sizes = uniform({1, 1, 1, shape[3]}, seed + 1, 0.2, 3, Dtype::f64);
  return mul(normal(shape, seed, Dtype::f64), sizes).to(dtype);
}

}  // namespace

TEST_CASE("key_codes: a key is its block's mean and its code, to half a step") {
  const BlockCase c{.B = 2, .T = 45, .d = 7, .config = {.block = 8, .tile = 8}};
  const Tensor k = unequal({2, 2, 45, 7}, 4, Dtype::f64);
  const BlockScores s = block_scores(c, k, k);
  REQUIRE(s.keys.steps.shape() == Shape{2, 2, 5, 8});
  for (int64_t i = 0; i < 2 * 2 * 5 * 8; ++i) {
    const int64_t bg = i / 40, g = bg % 2, j = i % 40;
    const double* moments = s.keys.moments[0].data<double>() + i / 8 * 14;
    for (int64_t channel = 0; channel < 7; ++channel) {
      const double key = k.data<double>()[(bg * 45 + j) * 7 + channel];
      const int packed = s.keys.codes.data<uint8_t>()[i * 4 + channel % 4];
      const int z = (channel < 4 ? packed & 15 : packed >> 4) - 8;
      const double step =
          s.keys.steps.data<double>()[i] * s.key_scale.data<double>()[g * 7 + channel];
      CHECK(std::fabs(moments[channel] + step * (z + 0.5) - key) <= step * (0.5 + 1e-9));
    }
  }
}

TEST_CASE("key_codes: moments of super-blocks are those of their keys; equal keys have no step") {
  const BlockCase c{.T = 48, .config = {.block = 4, .tile = 4, .columns = 2}};
  const Tensor k = unequal({1, 2, 48, 6}, 4, Dtype::f64);
  const KeyCodes by_pairs = key_codes(k, Tensor::full({2, 6}, 1, Dtype::f64), c.config, 3);
  BlockConfig wide = c.config;
  wide.block = 16;
  const KeyCodes whole = key_codes(k, Tensor::full({2, 6}, 1, Dtype::f64), wide);
  REQUIRE(by_pairs.moments[2].shape() == whole.moments[0].shape());
  for (int64_t i = 0; i < whole.moments[0].numel(); ++i) {
    CHECK(by_pairs.moments[2].data<double>()[i] ==
          doctest::Approx(whole.moments[0].data<double>()[i]).epsilon(1e-12));
  }
  const KeyCodes flat =
      key_codes(Tensor::full({1, 2, 8, 6}, 3, Dtype::f32), Tensor::full({2, 6}, 1), c.config);
  for (const double a : flat.steps.to_vector()) CHECK(a == 0);
  for (const double z : flat.codes.to_vector()) CHECK(z == 0x88);
}

TEST_CASE("calibrated_key_scale: the root of the root mean square below the mean of a block") {
  const Tensor k = Tensor::zeros({2, 1, 9, 2}, Dtype::f64);
  for (int64_t j = 0; j < 4; ++j) k.data<double>()[j * 2] = j % 2 ? 20.0 : -12.0;  // 4 +- 16
  const Tensor lengths = Tensor::from(std::vector<int64_t>{9, 4}, {2});
  const Tensor scale = calibrated_key_scale(k, lengths, 4);
  // Complete blocks have 12 keys, of which 4 are 16 from their mean; channel 1 is constant.
  CHECK(scale.data<double>()[0] == doctest::Approx(std::sqrt(std::sqrt(4 * 256.0 / 12))));
  CHECK(scale.data<double>()[1] == 1);
  CHECK(calibrated_key_scale(k.slice(2, 0, 3).contiguous(), {}, 4).to_vector() ==
        std::vector<double>{1, 1});
  k.data<double>()[0] = NAN;
  CHECK_REFUSES(calibrated_key_scale(k, {}, 4), "not a finite number");
}

TEST_CASE("select_blocks: every row keeps what the definition says, in both types") {
  for (const BlockCase& c : block_cases()) {
    CAPTURE(c.T);
    CAPTURE(c.d);
    for (const Dtype type : {Dtype::f64, Dtype::f32}) {
      const Tensor q = unequal({c.B, c.H, c.T, c.d}, 3, type),
                   k = unequal({c.B, c.G, c.T, c.d}, 5, type);
      const BlockScores s = block_scores(c, q, k);
      const BlockMask mask = select_blocks(s, c.config, c.visible(), c.T);
      const std::vector<double> wanted =
          (type == Dtype::f64 ? defined_mask<double>(c, s) : defined_mask<float>(c, s)).to_vector();
      CHECK(csr_to_mask(blocks_to_csr(mask, c.H, c.visible(), c.T)).to_vector() == wanted);
    }
  }
}

TEST_CASE("blocks_to_csr: more columns than 32 bits have are refused") {
  const BlockMask mask{.counts = Tensor::zeros({1, 1, 1}, Dtype::i32),
                       .entries = Tensor::zeros({1, 1, 1, 1}, Dtype::i32),
                       .tiles = {},
                       .block = 32,
                       .tile = 32};
  CHECK_REFUSES(blocks_to_csr(mask, 9, {.causal = true}, int64_t(1) << 28), "blocks_to_csr",
                "9 heads of 268435456 keys", "32 bits");
}

// Compilers fuse multiply-adds of kernels from -O2 on.
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("select_blocks: sums that differ by roundings alone choose as the reference does") {
  const BlockCase c{.H = 3,
                    .G = 1,
                    .T = 600,
                    .d = 8,
                    .config = {.block = 16, .chosen = 4, .tile = 16, .candidates = 9}};
  const Tensor keys = normal({16, 8}, 4), q = normal({1, 3, 600, 8}, 3);
  const Tensor k = Tensor::zeros({1, 1, 600, 8}, Dtype::f32);
  for (int64_t t = 0; t < 600; ++t) {  // every block has the same keys, in another order
    std::copy_n(keys.data<float>() + (t % 16 * 5 + t / 16 * 3) % 16 * 8, 8,
                k.data<float>() + t * 8);
  }
  const BlockScores s = block_scores(c, q, k);
  const BlockMask mask = select_blocks(s, c.config, c.visible(), c.T);
  CHECK(csr_to_mask(blocks_to_csr(mask, 3, c.visible(), c.T)).to_vector() ==
        defined_mask<float>(c, s).to_vector());
}
#endif

TEST_CASE("select_blocks: one to three threads choose the same blocks") {
  const BlockCase c{.H = 9, .G = 3, .T = 700, .d = 64, .config = {.chosen = 3, .candidates = 8}};
  const Tensor q = unequal({1, 9, 700, 64}, 3, Dtype::f32),
               k = unequal({1, 3, 700, 64}, 5, Dtype::f32);
  std::vector<std::vector<double>> masks;
  for (int n = 1; n <= 3; ++n) {
    const Threads threads(n);
    const BlockMask mask = select_blocks(block_scores(c, q, k), c.config, c.visible(), c.T);
    masks.push_back(csr_to_mask(blocks_to_csr(mask, 9, c.visible(), c.T)).to_vector());
  }
  CHECK(masks[0] == masks[1]);
  CHECK(masks[0] == masks[2]);
}

TEST_CASE("select_blocks: among equal blocks the later ones are chosen") {
  for (const int64_t candidates : {3, 96}) {
    const BlockCase c{.T = 32,
                      .config = {.block = 4, .chosen = 2, .tile = 4, .candidates = candidates}};
    const Tensor zero = Tensor::zeros({1, 2, 32, 6}, Dtype::f32);
    // Memory that the mask may get.
    Tensor::from(std::vector<int32_t>(8 * c.config.max_kept(8), -1), {8, c.config.max_kept(8)});
    const BlockMask mask = select_blocks(block_scores(c, zero, zero), c.config, c.visible(), c.T);
    // The last tile: the sink, the tile's block and the one before; of 1 to 5 the last two.
    const int32_t count = mask.counts.data<int32_t>()[7];
    const int32_t* entries = mask.entries.data<int32_t>() + 7 * mask.capacity();
    std::vector<int64_t> kept;
    for (int32_t e = 0; e < count; ++e) kept.push_back(entry_block(entries[e]));
    for (int64_t e = count; e < mask.capacity(); ++e) CHECK(entries[e] == 0);  // a state's bytes
    CHECK(kept == std::vector<int64_t>{0, 4, 5, 6, 7});
    // Of 8 blocks of rows: 0, 1, 2, 3 and four times 4 complete ones, and 2.5 keys of their own.
    CHECK(kept_keys(mask, c.visible(), c.T) == 4 * 22 / 8.0 + 2.5);
  }
}

TEST_CASE("select_blocks: a choice never depends on later rows; shares replace scores") {
  BlockCase c{.T = 32, .config = {.block = 8, .chosen = 1, .sinks = 0, .local = 0, .tile = 8}};
  const Tensor shares = Tensor::zeros({1, 2, 32, 4}, Dtype::f64);
  shares.data<double>()[(0 * 32 + 27) * 4 + 1] = 1;  // row 27 of head 0 chooses block 1
  const BlockScores s{.shares = shares, .groups = 2};
  const Tensor keys =
      csr_to_mask(blocks_to_csr(select_blocks(s, c.config, c.visible(), c.T), 2, c.visible(), c.T));
  auto sees = [&](int64_t t, int64_t j) { return keys.data<uint8_t>()[t * 32 + j] != 0; };
  for (int64_t t = 24; t < 32; ++t) CHECK(sees(t, 8) == (t >= 27));
}

TEST_CASE("select_blocks: a NaN query or key stops with the op's name") {
  const BlockCase c{.T = 60, .config = {.block = 4, .chosen = 2, .tile = 4, .candidates = 6}};
  for (const bool key : {false, true}) {
    const Tensor q = normal({1, 2, 60, 6}, 3), k = normal({1, 2, 60, 6}, 4);
    // A key of block 3, of head 1; a query of row 50.
    (key ? k : q).data<float>()[(60 + (key ? 13 : 50)) * 6 + 2] = NAN;
    CHECK_REFUSES(select_blocks(block_scores(c, q, k), c.config, c.visible(), 60),
                  "select_blocks: scores are not finite", "NaN");
    if (key) continue;
    BlockScores row = block_scores(c, q, k);
    row.q = q.slice(2, 50, 1).contiguous();
    const BlockMask mask = empty_block_mask(c.config, 1, 2, 1, 15, {});
    CHECK_REFUSES(select_blocks_step(mask, row, c.config, Tensor::full({1}, 51, Dtype::i64)),
                  "select_blocks_step: scores are not finite", "NaN");
  }
}

TEST_CASE("select_blocks: 131,072 keys in levels, sampled rows as the definition says") {
  const BlockCase c{.H = 1, .G = 1, .T = 131072 + 77, .d = 16, .config = {.columns = 512}};
  const Tensor k = unequal({1, 1, c.T, 16}, 5, Dtype::f32);
  const std::vector<int32_t> numbers{0, 511, 1024, 3000, 4096, 4098};
  const Tensor tiles = Tensor::from(numbers, {6});
  std::vector<float> rows;
  const Tensor q = unequal({1, 1, c.T, 16}, 3, Dtype::f32);
  for (const int32_t number : numbers) {
    const float* from = q.data<float>() + number * 32 * 16;
    rows.insert(rows.end(), from, from + std::min<int64_t>(32, c.T - number * 32) * 16);
  }
  BlockScores s = block_scores(c, q, k);
  s.q = Tensor::from(rows, {1, 1, int64_t(rows.size()) / 16, 16});
  const BlockMask mask = select_blocks(s, c.config, c.visible(), c.T, tiles);
  s.q = q;
  for (int64_t n = 0; n < 6; ++n) {
    Blocks wanted, got;
    const int64_t first = numbers[size_t(n)] * 32;
    for (int64_t t = first; t < std::min(first + 32, c.T); ++t)
      wanted.merge(Row<float>{c, s, 0, 0, t}.chosen());
    wanted.merge(Row<float>{c, s, 0, 0, first}.complete_fixed());
    wanted.insert(first / 32);
    for (int32_t e = 0; e < mask.counts.data<int32_t>()[n]; ++e)
      got.insert(entry_block(mask.entries.data<int32_t>()[n * mask.capacity() + e]));
    CHECK(got == wanted);
  }
}

TEST_CASE("select_blocks_step: row by row the same masks as in one pass") {
  std::vector<BlockCase> cases = block_cases();
  // Heads of 63 to 128 numbers: vectors of keys instead of rows choose for a single row, for one to
  // three heads at a time.
  const std::pair<int64_t, int64_t> kShapes[] = {{64, 3}, {128, 3}, {64, 1}, {64, 2},
                                                 {64, 4}, {64, 7},  {63, 3}, {127, 5}};
  for (const auto& [d, heads] : kShapes) {
    cases.push_back(
        {.H = 2 * heads,
         .G = 2,
         .T = 300,
         .d = d,
         .config = {.block = 16, .chosen = 3, .tile = 8, .candidates = 6, .columns = 8}});
  }
  for (size_t i = 0; i < 2 * cases.size(); ++i) {
    const BlockCase& c = cases[i / 2];
    CAPTURE(c.T);
    CAPTURE(c.d);
    if (!c.lengths.empty()) continue;
    const Dtype type = i % 2 ? Dtype::f32 : Dtype::f64;
    const Tensor q = normal({c.B, c.H, c.T, c.d}, 3, type),
                 k = normal({c.B, c.G, c.T, c.d}, 4, type);
    // Blocks with the same keys in another order: roundings alone decide between them.
    for (int64_t j = 16; c.d >= 64 && j < c.B * c.G * c.T; ++j) {
      copy_into(k.view({-1, c.d}).slice(0, j, 1),
                k.view({-1, c.d}).slice(0, (j * 5 + j / 16) % 16, 1));
    }
    const BlockScores s = block_scores(c, q, k);
    const Tensor whole = csr_to_mask(
        blocks_to_csr(select_blocks(s, c.config, c.visible(), c.T), c.H, c.visible(), c.T));
    BlockMask mask =
        empty_block_mask(c.config, c.B, c.G, 1, (c.T + c.config.block - 1) / c.config.block, {});
    for (int64_t t = 0; t < c.T; ++t) {
      BlockScores row = s;
      row.q = s.q.slice(2, t, 1).contiguous();
      select_blocks_step(mask, row, c.config, Tensor::full({c.B}, double(t + 1), Dtype::i64));
      std::vector<double> kept(size_t(c.T), 0.0), wanted;
      for (int32_t e = 0; e < mask.counts.data<int32_t>()[0]; ++e) {
        const int64_t first = entry_block(mask.entries.data<int32_t>()[e]) * c.config.block;
        for (int64_t j = first; j < std::min(first + c.config.block, t + 1); ++j)
          kept[size_t(j)] = 1;
      }
      for (int64_t j = 0; j < c.T; ++j)
        wanted.push_back(double(whole.data<uint8_t>()[t * c.T + j]));
      CHECK(kept == wanted);
    }
  }
}

TEST_CASE("select_blocks: settings that do not fit are refused, with what would") {
  const Tensor q = normal({1, 2, 30, 6}, 3, Dtype::f64), k = normal({1, 2, 30, 6}, 4, Dtype::f64);
  const BlockCase c;
  const BlockScores s = block_scores(c, q, k);
  auto refusal = [&](const BlockConfig& bad, const BlockScores& scores) {
    return message([&] { select_blocks(scores, bad, c.visible(), 30); });
  };
  BlockConfig bad = c.config;
  bad.tile = 3;
  check_says(refusal(bad, s), {"tile = 3 must divide block = 4", "1 does"});
  bad = c.config;
  bad.candidates = 1;
  check_says(refusal(bad, s),
             {"candidates = 1 is less than the 2 blocks", "it must be at least 2"});
  bad = c.config;
  bad.columns = 2;  // 8 blocks: super-blocks of two levels
  check_says(refusal(bad, s), {"moments of 3 levels", "1 levels"});
  BlockScores other = s;
  other.key_scale = Tensor::full({2, 5}, 1, Dtype::f64);
  check_says(refusal(c.config, other), {"key_scale must be f64 [2, 6]"});
  CHECK_THROWS_AS(select_blocks(s, c.config, {.causal = false}, 30), Error);
}

}  // namespace brine::test
