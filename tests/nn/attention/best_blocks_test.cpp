// The blocks with the largest true mass, by the definition.
#include <set>

#include "tests/nn/attention/mask_check.h"

namespace brine::test {
namespace {

constexpr int64_t kBlockKeys = 4, kTileRows = 2, kChosenBlocks = 2;

// Row t keeps block 0, the block of t, the one before, and what the rows of its tile up to t chose:
// the kChosenBlocks other complete blocks with the largest mass of full attention.
std::vector<double> best_blocks(const std::vector<double>& attention, const MaskCase& m) {
  std::vector<double> mask(size_t(m.B * m.H * m.T * m.T), 0);
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t h = 0; h < m.H; ++h) {
      std::set<int64_t> tile;
      for (int64_t t = 0; t < m.T; ++t) {
        if (t % kTileRows == 0) tile.clear();
        if (m.width(b, t) <= t) continue;  // padding
        const int64_t row_block = t / kBlockKeys;
        std::vector<std::pair<double, int64_t>> free;
        for (int64_t x = 1; x < row_block - 1; ++x) {
          double mass = 0;
          for (int64_t j = x * kBlockKeys; j < (x + 1) * kBlockKeys; ++j)
            mass += attention[m.index(b, h, t, j, m.T)];
          free.emplace_back(mass, x);
        }
        std::sort(free.rbegin(), free.rend());
        for (size_t i = 0; i < free.size() && i < size_t(kChosenBlocks); ++i)
          tile.insert(free[i].second);
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t x = j / kBlockKeys;
          mask[m.index(b, h, t, j, m.T)] = x == 0 || x >= row_block - 1 || tile.count(x) > 0;
        }
      }
    }
  }
  return mask;
}

}  // namespace

TEST_CASE("best-blocks attends to the blocks with the largest attention mass") {
  for (MaskCase m : {MaskCase{.B = 2, .T = 37, .lengths = {37, 22}}, MaskCase{.B = 1, .T = 300}}) {
    INFO(m.name());
    m.H = kHeads;
    const Inputs in = inputs(m.B, m.T, Dtype::f64);
    Block block = make_block("best-blocks", true, Dtype::f64, 5, 300,
                             {{"k", "20"}, {"block", "4"}, {"tile", "2"}});
    const std::vector<double> dense =
        naive_attention(in.q.to_vector(), in.k.to_vector(), {}, kSize, m);
    check_block(block, m, in, best_blocks(dense, m));
  }
}

TEST_CASE("best-blocks: heads that share keys choose by the sum of their masses") {
  const MaskCase m{.B = 1, .H = kHeads, .T = 90};
  const Inputs in = inputs(1, 90, Dtype::f64);
  const Tensor k = in.k.slice(1, 0, 1).contiguous(), v = in.v.slice(1, 0, 1).contiguous();
  const std::vector<double> dense =
      naive_attention(in.q.to_vector(), repeat_heads(k, kHeads).to_vector(), {}, kSize, m);
  std::vector<double> summed = dense;
  const size_t map = size_t(m.T * m.T);
  for (size_t i = 0; i < map; ++i) {
    double sum = 0;
    for (size_t h = 0; h < size_t(kHeads); ++h) sum += dense[h * map + i];
    for (size_t h = 0; h < size_t(kHeads); ++h) summed[h * map + i] = sum;
  }
  nn::Init init{.random = {.seed = 1}, .dtype = Dtype::f64};
  const auto grouped =
      method_with("best-blocks", {{"k", "20"}, {"block", "4"}, {"tile", "2"}})
          ->make(init, {.heads = kHeads, .head_size = kSize, .max_positions = 90, .kv_heads = 1});
  nn::Tap tap("best-blocks");
  grouped->forward({.q = in.q, .k = k, .v = v, .hidden = {}, .visible = m.visible(), .tap = &tap});
  CHECK(seen_mask(tap, m).to_vector() == best_blocks(summed, m));
}

TEST_CASE("blocks show the probabilities of the keys that they keep, if these are requested") {
  const MaskCase m{.B = 2, .H = kHeads, .T = 37, .lengths = {37, 22}};
  const Inputs in = inputs(m.B, m.T, Dtype::f64);
  Block block = make_block("best-blocks", true, Dtype::f64, 5, 300,
                           {{"k", "20"}, {"block", "4"}, {"tile", "2"}});
  nn::Tap tap(block.name), without(block.name);
  tap.request(nn::kProbabilities);
  pass(block, in, m.visible().lengths, {}, {}, &tap);
  pass(block, in, m.visible().lengths, {}, {}, &without);
  CHECK_FALSE(without.has(nn::kProbabilities));
  const std::vector<double> mask = seen_mask(tap, m).to_vector(),
                            wanted =
                                naive_attention(in.q.to_vector(), in.k.to_vector(), mask, kSize, m);
  std::vector<double> entries;  // by sequence, row, head and key
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t t = 0; t < m.T; ++t) {
      for (int64_t h = 0; h < m.H; ++h) {
        for (int64_t j = 0; j < m.T; ++j) {
          const size_t at = m.index(b, h, t, j, m.T);
          if (mask[at] != 0) entries.push_back(wanted[at]);
        }
      }
    }
  }
  CHECK(close(tap.get(nn::kProbabilities).to_vector(), entries, 1e-12, 1e-12, "probabilities"));
}

TEST_CASE("best-blocks refuses what does not fit") {
  CHECK_THROWS_AS(make_block("best-blocks", false, Dtype::f64), Error);
  CHECK_THROWS_AS(make_block("best-blocks", true, Dtype::f64, 5, 300, {{"tile", "3"}}), Error);
}

}  // namespace brine::test
