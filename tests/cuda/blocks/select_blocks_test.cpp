// The choice of key blocks on the device, as on the CPU: the same copies of keys, the same lists.
#include <algorithm>
#include <cmath>

#include "tensor/functions/transfer.h"
#include "tensor/kernels/blocks.h"
#include "tests/block_cases.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

constexpr Tolerance kEqual{.f32 = 0, .f64 = 0};

BlockScores on_device(const On& on, const BlockScores& s) {
  BlockScores out = s;
  for (Tensor* t : {&out.q, &out.key_scale, &out.shares, &out.keys.codes, &out.keys.steps}) {
    *t = on(*t);
  }
  for (Tensor& level : out.keys.moments) level = on(level);
  return out;
}

// The counts and the entries, -1 beyond the counts, of the rows of a tile up to `row`.
std::vector<Tensor> lists_of(const BlockMask& mask, int64_t row = kMaxTileRows) {
  const Device device = mask.counts.device();
  const Tensor counts = mask.counts.to(kCpu).clone(), given = mask.entries.to(kCpu),
               entries = Tensor::full(given.shape(), -1, Dtype::i32);
  for (int64_t i = 0; i < counts.numel(); ++i) {
    const int64_t room = mask.capacity();
    int32_t& count = counts.data<int32_t>()[i];
    REQUIRE(count <= room);
    int32_t kept = 0;
    for (int64_t e = 0; e < count; ++e) {
      const int32_t entry = given.data<int32_t>()[i * room + e];
      if (entry_row(entry) <= row) entries.data<int32_t>()[i * room + kept++] = entry;
    }
    count = kept;
  }
  return {counts.to(device), entries.to(device)};
}

Tensor queries(const BlockCase& c, Dtype dtype) { return normal({c.B, c.H, c.T, c.d}, 3, dtype); }
Tensor keys(const BlockCase& c, Dtype dtype) { return normal({c.B, c.G, c.T, c.d}, 4, dtype); }
BlockScores scores_of(const BlockCase& c, Dtype dtype) {
  return block_scores(c, queries(c, dtype), keys(c, dtype));
}

// The lists of `tiles` (undefined: all) on a device, from scores on the CPU.
std::vector<Tensor> chosen(const On& on, const BlockCase& c, const BlockScores& s,
                           const Tensor& tiles = {}) {
  return lists_of(select_blocks(on_device(on, s), c.config, c.visible(), c.T, tiles));
}

std::vector<BlockCase> all_cases() {
  std::vector<BlockCase> out = block_cases();
  // Every row has more blocks than candidates; one, three, seven heads of a group, more than the
  // lanes of a product; heads of an odd size, of 64, 80 and more numbers than a product reads.
  auto config = [](int64_t block, int64_t tile, int64_t chosen, int64_t candidates) {
    return BlockConfig{.block = block, .chosen = chosen, .tile = tile, .candidates = candidates};
  };
  out.push_back(
      {.B = 2, .H = 3, .G = 3, .T = 67, .d = 5, .config = config(4, 4, 3, 5), .lengths = {0, 67}});
  out.push_back({.H = 7, .G = 1, .T = 150, .d = 64, .config = config(8, 8, 2, 6)});
  out.push_back({.H = 6, .G = 2, .T = 300, .d = 80, .config = config(16, 16, 2, 5)});
  out.push_back({.H = 35, .G = 1, .T = 60, .d = 6, .config = config(4, 1, 2, 6)});
  // Keys of several products, of a part of one; tiles of one head's lanes and more.
  out.push_back({.H = 2, .G = 1, .T = 470, .d = 3, .config = config(40, 8, 2, 4)});
  out.push_back({.H = 3, .G = 1, .T = 700, .d = 16, .config = config(64, 64, 1, 3)});
  out.push_back({.H = 2, .G = 1, .T = 401, .d = 64, .config = config(32, 32, 2, 4)});
  // Blocks of one key. More blocks than a product has slots.
  out.push_back(
      {.B = 2,
       .H = 2,
       .G = 1,
       .T = 170,
       .config = {.block = 1, .chosen = 2, .sinks = 2, .local = 0, .tile = 1, .candidates = 4},
       .lengths = {170, 17}});
  // Levels: with sinks and local blocks outside of the open super-blocks, and without any.
  out.push_back({.B = 2,
                 .H = 4,
                 .G = 4,
                 .T = 333,
                 .d = 40,
                 .config = {.block = 4,
                            .chosen = 2,
                            .sinks = 7,
                            .local = 5,
                            .tile = 4,
                            .candidates = 3,
                            .columns = 11},
                 .lengths = {257, 333}});
  out.push_back({.H = 2,
                 .G = 2,
                 .T = 205,
                 .config = {.block = 2,
                            .chosen = 3,
                            .sinks = 0,
                            .local = 0,
                            .tile = 2,
                            .candidates = 4,
                            .columns = 3}});
  // As many candidates as are chosen.
  out.push_back({.H = 2, .G = 1, .T = 99, .config = config(2, 2, 4, 4)});
  return out;
}

}  // namespace

TEST_CASE("cuda: key_codes") {
  for (const auto& [d, block] : std::vector<std::pair<int64_t, int64_t>>{
           {6, 4}, {5, 3}, {64, 32}, {80, 16}, {300, 1}, {2, 100}}) {
    const BlockConfig config{.block = block, .tile = 1};
    compare_both(
        join("key_codes, d ", d, ", block ", block),
        [&, d = d, block = block](const On& on, Dtype dtype) {
          const Tensor k = normal({2, 3, 5 * block + block / 2, d}, 3, dtype);
          fill(k.slice(0, 1, 1).slice(2, block, block), 0.5);  // equal keys: their step is 0
          const KeyCodes out = key_codes(on(k), on(uniform({3, d}, 1, 0.5, 2).to(dtype)), config);
          return std::vector<Tensor>{out.codes, out.steps, out.moments[0]};
        },
        kEqual);
  }
}

TEST_CASE("cuda: select_blocks of rows with levels, padding, few and many candidates") {
  for (const BlockCase& c : all_cases()) {
    compare_both(
        join("select_blocks, T ", c.T, ", d ", c.d, ", block ", c.config.block, ", tile ",
             c.config.tile),
        [&](const On& on, Dtype dtype) { return chosen(on, c, scores_of(c, dtype)); }, kEqual);
  }
}

TEST_CASE("cuda: select_blocks of equal scores, of given shares, of sampled tiles, of a window") {
  const BlockCase c{.B = 2,
                    .H = 6,
                    .G = 2,
                    .T = 125,
                    .config = {.block = 4, .chosen = 3, .tile = 2, .candidates = 5},
                    .lengths = {125, 33}};
  compare_both(
      "select_blocks of equal scores",
      [&](const On& on, Dtype dtype) {
        const Tensor zero = Tensor::zeros({c.B, c.H, c.T, c.d}, dtype);
        return chosen(on, c, block_scores(c, zero, keys(c, dtype)));
      },
      kEqual);
  compare_both(
      "select_blocks of equal keys",
      [&](const On& on, Dtype dtype) {
        const Tensor zero = Tensor::zeros({c.B, c.G, c.T, c.d}, dtype);
        return chosen(on, c, block_scores(c, queries(c, dtype), zero));
      },
      kEqual);
  compare_both(
      "select_blocks of given shares",
      [&](const On& on, Dtype dtype) {
        BlockScores s;
        s.shares = uniform({c.B, c.H, c.T, 33}, 5, 0, 1).to(dtype);
        s.groups = c.G;
        return chosen(on, c, s);
      },
      kEqual);
  for (const int64_t columns : {1024, 4}) {
    BlockCase of = c;
    of.config.columns = columns;
    compare_both(
        "select_blocks of sampled tiles",
        [&](const On& on, Dtype dtype) {
          BlockScores s = scores_of(of, dtype);
          const std::vector<int32_t> numbers = {0, 3, 11, 12, 25, 61};
          std::vector<Tensor> rows;
          for (const int32_t n : numbers) rows.push_back(s.q.slice(2, n * 2, 2));
          s.q = concat(rows, 2);
          return chosen(on, of, s, Tensor::from(numbers, {6}));
        },
        kEqual);
  }
  BlockCase window = c;
  window.config.chosen = 0;
  for (const int64_t sinks : {0, 2, 40}) {
    window.config.sinks = sinks;
    window.config.local = 5;
    compare_both(
        "select_blocks of a window",
        [&](const On& on, Dtype dtype) { return chosen(on, window, scores_of(window, dtype)); },
        kEqual);
  }
}

// Scores of such blocks differ by their roundings alone. Without fused multiply-adds the CPU has
// others.
#if defined(__FMA__) || defined(__aarch64__)
TEST_CASE("cuda: select_blocks of blocks that have the same keys in other orders") {
  for (const int64_t block : {32, 72}) {
    const BlockCase c{.H = 2,
                      .G = 1,
                      .T = 20 * block,
                      .d = 64,
                      .config = {.block = block, .chosen = 3, .tile = 8, .candidates = 9}};
    compare_both(
        join("select_blocks of the same keys, block ", block),
        [&](const On& on, Dtype dtype) {
          const Tensor base = normal({1, c.G, block, c.d}, 4, dtype);
          std::vector<Tensor> rows;
          for (int64_t t = 0; t < c.T; ++t)
            rows.push_back(base.slice(2, (t % block * 5 + t / block * 7) % block, 1));
          return chosen(on, c, block_scores(c, queries(c, dtype), concat(rows, 2)));
        },
        kEqual);
  }
}
#endif

TEST_CASE("cuda: select_blocks with scratch memory for one thread block") {
  const ScratchLimit one_slot(1);
  const BlockCase c = all_cases()[3];
  compare_both(
      "select_blocks in one slot",
      [&](const On& on, Dtype dtype) { return chosen(on, c, scores_of(c, dtype)); }, kEqual);
}

TEST_CASE("cuda: select_blocks_step, row by row, as a whole tile") {
  std::vector<BlockCase> cases = all_cases();
  std::erase_if(cases, [](const BlockCase& c) { return c.T > 75; });
  for (BlockCase c : cases) {
    c.lengths.clear();
    compare_both(
        join("select_blocks_step, T ", c.T, ", tile ", c.config.tile),
        [&](const On& on, Dtype dtype) {
          const BlockScores all = scores_of(c, dtype), moved = on_device(on, all);
          const BlockMask whole = select_blocks(moved, c.config, c.visible(), c.T);
          const BlockMask mask = empty_block_mask(
              c.config, c.B, c.G, 1, (c.T + c.config.block - 1) / c.config.block, on.device);
          std::vector<Tensor> out;
          for (int64_t t = 0; t < c.T; ++t) {
            // Sequences at different rows: the second one is three rows shorter.
            std::vector<int64_t> width(size_t(c.B), t + 1);
            if (c.B > 1) width[1] = std::max<int64_t>(1, t - 2);
            std::vector<Tensor> rows;
            for (int64_t b = 0; b < c.B; ++b)
              rows.push_back(all.q.slice(0, b, 1).slice(2, width[size_t(b)] - 1, 1));
            BlockScores row = moved;
            row.q = on(concat(rows, 0).contiguous());
            select_blocks_step(mask, row, c.config, Tensor::from(width, {c.B}));
            for (const Tensor& x : lists_of(mask)) out.push_back(x);
            BlockMask tile = whole;
            for (Tensor* x : {&tile.counts, &tile.entries}) {
              *x = x->slice(0, 0, 1).slice(2, t / c.config.tile, 1).to(kCpu).contiguous();
            }
            const std::vector<Tensor> wanted = lists_of(tile, t % c.config.tile);
            const Tensor got = out.back().slice(0, 0, 1).to(kCpu).contiguous();
            for (int64_t g = 0; g < c.G; ++g) {
              for (int64_t e = 0; e < wanted[0].data<int32_t>()[g]; ++e) {
                CHECK(got.data<int32_t>()[g * mask.capacity() + e] ==
                      wanted[1].data<int32_t>()[g * whole.capacity() + e]);
              }
            }
          }
          return out;
        },
        kEqual);
  }
}

TEST_CASE("cuda: select_blocks counts the rows and heads whose scores are NaN") {
  BlockCase c{.B = 2,
              .H = 4,
              .G = 2,
              .T = 90,
              .config = {.block = 4, .chosen = 2, .tile = 2, .candidates = 5},
              .lengths = {90, 61}};
  for (const int64_t columns : {1024, 3}) {
    c.config.columns = columns;
    compare_both(
        "NaN of select_blocks",
        [&](const On& on, Dtype dtype) {
          BlockScores s = scores_of(c, dtype);
          for (const int64_t row : {5, 40, 41, 75})  // of too few blocks, of scores, of padding
            fill(s.q.slice(1, 1, 2).slice(2, row, 1), double(NAN));
          s = on_device(on, s);
          const BlockMask mask = empty_block_mask(c.config, c.B, c.G, 45, 23, on.device);
          const Tensor count = Tensor::empty({1}, Dtype::i64, on.device);
          BRINE_CALL(s.q, select_blocks, mask, count, s, c.config, c.visible());
          CHECK(count.to(kCpu).data<int64_t>()[0] >= 2 * (2 + 1) + 2 * 2);
          return std::vector<Tensor>{count};
        },
        kEqual);
  }
}
