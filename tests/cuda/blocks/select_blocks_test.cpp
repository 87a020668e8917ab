// The choice of key blocks on the device, as on the CPU: the same lists.
#include <algorithm>

#include "autograd/compute_type.h"
#include "tests/block_cases.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

constexpr Tolerance kEqual{.f32 = 0, .f64 = 0};

BlockScores on_device(const On& on, const BlockScores& s) {
  BlockScores out = s;
  for (Tensor* t : {&out.q, &out.gain, &out.psi_q, &out.prior_gain, &out.psi_k, &out.shares}) {
    *t = on(*t);
  }
  for (KeyParts& level : out.key_parts) level = {on(level.means), on(level.logs)};
  for (Tensor& level : out.psi_sums) level = on(level);
  return out;
}

// The counts and the entries, -1 beyond the counts.
std::vector<Tensor> lists_of(const BlockMask& mask) {
  const Device device = mask.counts.device();
  const Tensor counts = mask.counts.to(kCpu).clone(), entries = mask.entries.to(kCpu).clone();
  for (int64_t i = 0; i < counts.numel(); ++i) {
    const int64_t room = mask.capacity();
    REQUIRE(counts.data<int32_t>()[i] <= room);
    for (int64_t e = counts.data<int32_t>()[i]; e < room; ++e) {
      entries.data<int32_t>()[i * room + e] = -1;
    }
  }
  return {counts.to(device), entries.to(device)};
}

Tensor queries(const BlockCase& c, Dtype dtype) { return normal({c.B, c.H, c.T, c.d}, 3, dtype); }
Tensor keys(const BlockCase& c, Dtype dtype) { return normal({c.B, c.G, c.T, c.d}, 4, dtype); }

std::vector<BlockCase> all_cases() {
  std::vector<BlockCase> out = block_cases();
  // One, three and seven heads of a group; tiles of 1 to 64 rows; queries of several products.
  out.push_back({.B = 2,
                 .H = 3,
                 .G = 3,
                 .T = 67,
                 .d = 70,
                 .config = {.block = 4, .chosen = 3, .tile = 4},
                 .lengths = {0, 67}});
  out.push_back({.H = 7, .G = 1, .T = 150, .config = {.block = 16, .chosen = 2, .tile = 16}});
  out.push_back(
      {.H = 3, .G = 1, .T = 330, .d = 3, .config = {.block = 64, .chosen = 1, .tile = 64}});
  const BlockConfig deep{
      .block = 1, .chosen = 2, .sinks = 2, .local = 0, .tile = 1, .columns = 2, .survivors = 1};
  out.push_back(
      {.B = 2, .H = 2, .G = 1, .T = 45, .config = deep, .lengths = {45, 17}, .learned = true});
  out.push_back({.H = 2,
                 .G = 2,
                 .T = 101,
                 .config = {.block = 2, .chosen = 3, .tile = 2, .columns = 7, .opinion = 1},
                 .learned = true});
  return out;
}

}  // namespace

TEST_CASE("cuda: select_blocks of rows with scores, priors, levels and padding") {
  for (const BlockCase& c : all_cases()) {
    compare_both(
        join("select_blocks, T ", c.T, ", tile ", c.config.tile),
        [&](const On& on, Dtype dtype) {
          const BlockScores s = block_scores(c, queries(c, dtype), keys(c, dtype));
          return lists_of(select_blocks(on_device(on, s), c.config, c.visible(), c.T));
        },
        kEqual);
  }
}

namespace {

// Cases that tensor cores choose: whole packs of 16 bytes, mean keys alone.
std::vector<BlockCase> half_cases() {
  std::vector<BlockCase> out;
  for (int64_t parts : {1, 4}) {
    out.push_back({.H = 6,
                   .G = 2,
                   .T = 333,
                   .d = 64,
                   .config = {.block = 8, .parts = parts, .chosen = 3, .tile = 4}});
  }
  // One head of a group and seven; levels of few super-blocks with sinks and local blocks outside
  // of those that survive; padding; more channels.
  out.push_back({.B = 2,
                 .H = 4,
                 .G = 4,
                 .T = 700,
                 .d = 40,
                 .config = {.block = 4,
                            .parts = 4,
                            .chosen = 2,
                            .sinks = 7,
                            .local = 5,
                            .tile = 4,
                            .columns = 11,
                            .survivors = 1},
                 .lengths = {513, 700}});
  out.push_back({.H = 7,
                 .G = 1,
                 .T = 640,
                 .d = 128,
                 .config = {.block = 16, .chosen = 3, .local = 0, .tile = 16, .columns = 9}});
  // Channels that fill a part of their room; one part of one head.
  out.push_back({.H = 4,
                 .G = 2,
                 .T = 333,
                 .d = 72,
                 .config = {.block = 8, .parts = 4, .chosen = 3, .tile = 4}});
  out.push_back(
      {.H = 1, .G = 1, .T = 700, .d = 64, .config = {.block = 32, .chosen = 3, .tile = 32}});
  // Tiles of several turns, of one head and of several.
  for (int64_t heads : {1, 2}) {
    out.push_back(
        {.B = 2,
         .H = heads,
         .G = 1,
         .T = 777,
         .d = 64,
         .config = {.block = 64 / heads, .parts = 4, .chosen = 2, .tile = 64 / heads, .columns = 5},
         .lengths = {713, 777}});
  }
  // More than 32 and more than 256 candidates, of a list too; a warp takes 4, 8, 16 or 32 of a
  // lane.
  const BlockConfig wide{.block = 4, .parts = 4, .chosen = 15, .tile = 2, .columns = 64};
  out.push_back({.H = 2, .G = 1, .T = 999, .d = 16, .config = wide});
  BlockConfig whole = wide;
  whole.columns = 900;
  out.push_back({.H = 1, .G = 1, .T = 2500, .d = 8, .config = whole});
  return out;
}

}  // namespace

// What the CPU chooses from queries and mean keys rounded to bf16, `s` on the CPU.
std::vector<Tensor> rounded_lists(BlockScores s, const BlockCase& c, const Tensor& tiles = {}) {
  auto rounded = [](const Tensor& x) { return x.to(Dtype::bf16).to(Dtype::f32); };
  s.q = rounded(s.q);
  for (KeyParts& level : s.key_parts) level.means = rounded(level.means);
  return lists_of(select_blocks(s, c.config, c.visible(), c.T, tiles));
}

void check_same(const std::vector<Tensor>& wanted, const std::vector<Tensor>& got) {
  for (size_t i = 0; i < wanted.size(); ++i) CHECK(same_bits(wanted[i], got[i].to(kCpu)));
}

TEST_CASE("cuda: block_parts") {
  if (!has_device()) return;
  for (const int64_t parts : {1, 3, 4, 8}) {
    compare_both("block_parts", [&](const On& on, Dtype dtype) {
      const Tensor x = normal({2, 3, 70, 20}, 3, dtype);
      fill(x.slice(0, 1, 1), 0.5);        // equal keys: one cluster, the others are empty
      for (int64_t t = 0; t < 70; ++t) {  // equal distances: the first is the farthest
        const double value = t % 8 == 0 ? 0 : (t % 8 < 4 ? 0.5 : -0.5);
        fill(x.slice(0, 0, 1).slice(1, 0, 1).slice(2, t, 1), value);
      }
      const KeyParts blocks = block_parts(on(x), {}, 8, parts),
                     supers = block_parts(blocks.means, blocks.logs, 2 * parts, parts);
      return std::vector<Tensor>{blocks.means, blocks.logs, supers.means, supers.logs};
    });
  }
}

TEST_CASE("cuda: block_parts of more keys than lanes, and than shared memory has room for") {
  if (!has_device()) return;
  for (const int64_t d : {20, 600}) {
    compare_both("block_parts", [&](const On& on, Dtype dtype) {
      const KeyParts blocks = block_parts(on(normal({1, 2, 100, d}, 3, dtype)), {}, 100, 2);
      return std::vector<Tensor>{blocks.means, blocks.logs};
    });
  }
}

TEST_CASE("cuda: select_blocks rounds queries and mean keys when 16 bits are to be computed") {
  if (!has_device()) return;
  const ComputeType half(Dtype::bf16);
  for (const BlockCase& c : half_cases()) {
    INFO("T ", c.T, ", parts ", c.config.parts, ", tile ", c.config.tile);
    const BlockScores s = block_scores(c, queries(c, Dtype::f32), keys(c, Dtype::f32));
    const auto exact = lists_of(select_blocks(s, c.config, c.visible(), c.T)),
               wanted = rounded_lists(s, c);
    check_same(wanted,
               lists_of(select_blocks(on_device(On{kCuda}, s), c.config, c.visible(), c.T)));
    // So each of these cases was rounded. Of few blocks or eight channels nearly nothing changes.
    if (c.d > 8 && c.T / c.config.block > 30) CHECK_FALSE(same_bits(exact[1], wanted[1]));
  }
}

TEST_CASE("cuda: select_blocks in 16 bits of equal scores, of sampled tiles, of more than all") {
  if (!has_device()) return;
  const ComputeType half(Dtype::bf16);
  BlockCase c{.B = 2,
              .H = 6,
              .G = 2,
              .T = 125,
              .d = 16,
              .config = {.block = 4, .parts = 4, .chosen = 3, .tile = 2, .columns = 7},
              .lengths = {125, 33}};
  const BlockScores equal =
      block_scores(c, queries(c, Dtype::f32), Tensor::zeros({c.B, c.G, c.T, c.d}, Dtype::f32));
  check_same(rounded_lists(equal, c),
             lists_of(select_blocks(on_device(On{kCuda}, equal), c.config, c.visible(), c.T)));

  BlockScores some = block_scores(c, queries(c, Dtype::f32), keys(c, Dtype::f32));
  std::vector<Tensor> rows;
  const std::vector<int32_t> places = {0, 3, 11, 12, 25, 61};
  for (const int32_t n : places) rows.push_back(some.q.slice(2, n * 2, 2));
  some.q = concat(rows, 2);
  const Tensor tiles = Tensor::from(places, {6});
  check_same(
      rounded_lists(some, c, tiles),
      lists_of(select_blocks(on_device(On{kCuda}, some), c.config, c.visible(), c.T, tiles)));

  const BlockScores all = block_scores(c, queries(c, Dtype::f32), keys(c, Dtype::f32));
  for (const int64_t chosen : {int64_t(30), int64_t(1) << 26}) {
    c.config.chosen = chosen;
    c.config.columns = 512;
    check_same(rounded_lists(all, c),
               lists_of(select_blocks(on_device(On{kCuda}, all), c.config, c.visible(), c.T)));
  }
}

TEST_CASE("cuda: select_blocks of sizes that tensor cores do not take does not round") {
  if (!has_device()) return;
  const ComputeType half(Dtype::bf16);
  const BlockConfig plain{.block = 4, .chosen = 3, .tile = 2};
  BlockConfig halves = plain, wide = plain;
  halves.parts = 2;
  wide.columns = 1023;
  for (const BlockCase& c : {BlockCase{.H = 2, .G = 1, .T = 150, .d = 12, .config = plain},
                             BlockCase{.H = 2, .G = 1, .T = 150, .d = 136, .config = plain},
                             BlockCase{.H = 2, .G = 1, .T = 150, .d = 16, .config = halves},
                             BlockCase{.H = 2, .G = 1, .T = 150, .d = 16, .config = wide}}) {
    const BlockScores s = block_scores(c, queries(c, Dtype::f32), keys(c, Dtype::f32));
    check_same(lists_of(select_blocks(s, c.config, c.visible(), c.T)),
               lists_of(select_blocks(on_device(On{kCuda}, s), c.config, c.visible(), c.T)));
  }
}

TEST_CASE("cuda: select_blocks of the learned prior or an opinion does not round") {
  if (!has_device()) return;
  const ComputeType half(Dtype::bf16);
  for (const BlockCase& c : all_cases()) {
    if (!c.learned && c.config.opinion == 0) continue;
    const BlockScores s = block_scores(c, queries(c, Dtype::f32), keys(c, Dtype::f32));
    const auto wanted = lists_of(select_blocks(s, c.config, c.visible(), c.T)),
               lists = lists_of(select_blocks(on_device(On{kCuda}, s), c.config, c.visible(), c.T));
    for (size_t i = 0; i < wanted.size(); ++i) CHECK(same_bits(wanted[i], lists[i].to(kCpu)));
  }
}

TEST_CASE("cuda: select_blocks of equal scores, of given shares, of sampled tiles") {
  const BlockCase c{.B = 2,
                    .H = 6,
                    .G = 2,
                    .T = 61,
                    .config = {.block = 4, .chosen = 3, .tile = 2},
                    .lengths = {61, 33}};
  compare_both(
      "select_blocks of equal scores",
      [&](const On& on, Dtype dtype) {
        const Tensor zero = Tensor::zeros({c.B, c.H, c.T, c.d}, dtype);
        const BlockScores s = block_scores(c, zero, keys(c, dtype));
        return lists_of(select_blocks(on_device(on, s), c.config, c.visible(), c.T));
      },
      kEqual);
  compare_both(
      "select_blocks of given shares",
      [&](const On& on, Dtype dtype) {
        const BlockScores s{.q = {},
                            .gain = {},
                            .psi_k = on(keys(c, dtype)),
                            .shares = on(uniform({c.B, c.H, c.T, 17}, 5, 0, 1).to(dtype))};
        return lists_of(select_blocks(s, c.config, c.visible(), c.T));
      },
      kEqual);
  for (bool learned : {false, true}) {
    BlockCase of = c;
    of.learned = learned;
    of.config.columns = 4;
    compare_both(
        "select_blocks of sampled tiles",
        [&](const On& on, Dtype dtype) {
          BlockScores s = block_scores(of, queries(of, dtype), keys(of, dtype));
          const std::vector<int32_t> places = {0, 3, 11, 12, 25};
          auto sampled = [&](const Tensor& x) {
            std::vector<Tensor> rows;
            for (int32_t n : places) rows.push_back(x.slice(2, n * 2, 2));
            return concat(rows, 2);
          };
          s.q = sampled(s.q);
          if (learned) s.psi_q = sampled(s.psi_q);
          return lists_of(select_blocks(on_device(on, s), of.config, of.visible(), of.T,
                                        Tensor::from(places, {5})));
        },
        kEqual);
  }
}

TEST_CASE("cuda: select_blocks with scratch memory for one thread block") {
  const ScratchLimit one_slot(1);
  const BlockCase c = all_cases()[3];
  compare_both(
      "select_blocks in one slot",
      [&](const On& on, Dtype dtype) {
        const BlockScores s = block_scores(c, queries(c, dtype), keys(c, dtype));
        return lists_of(select_blocks(on_device(on, s), c.config, c.visible(), c.T));
      },
      kEqual);
}

TEST_CASE("cuda: select_blocks_step, row by row") {
  std::vector<BlockCase> cases = all_cases();
  cases.erase(
      std::remove_if(cases.begin(), cases.end(), [](const BlockCase& c) { return c.T > 110; }),
      cases.end());
  // The scores of a row by two thread blocks.
  cases.push_back({.H = 3,
                   .G = 1,
                   .T = 150,
                   .d = 5,
                   .config = {.block = 2, .parts = 2, .chosen = 3, .tile = 2}});
  for (BlockCase c : cases) {
    c.lengths.clear();
    compare_both(
        join("select_blocks_step, T ", c.T, ", tile ", c.config.tile),
        [&](const On& on, Dtype dtype) {
          const BlockScores all = block_scores(c, queries(c, dtype), keys(c, dtype));
          const BlockScores moved = on_device(on, all);
          const BlockMask mask = empty_block_mask(
              c.config, c.B, c.G, 1, (c.T + c.config.block - 1) / c.config.block, on.device);
          std::vector<Tensor> out;
          for (int64_t t = 0; t < c.T; ++t) {
            // Sequences at different rows: the second one is three rows shorter.
            BlockScores row = moved;
            std::vector<int64_t> width(size_t(c.B), t + 1);
            if (c.B > 1) width[1] = std::max<int64_t>(1, t - 2);
            auto newest = [&](const Tensor& x) {
              std::vector<Tensor> rows;
              for (int64_t b = 0; b < c.B; ++b)
                rows.push_back(x.slice(0, b, 1).slice(2, width[size_t(b)] - 1, 1));
              return on(concat(rows, 0).contiguous());
            };
            row.q = newest(all.q);
            if (c.learned) {
              row.psi_q = newest(all.psi_q);
              std::vector<Tensor> open;
              for (int64_t b = 0; b < c.B; ++b) {
                const int64_t w = width[size_t(b)],
                              first = (w - 1) / c.config.block * c.config.block;
                open.push_back(
                    sum(all.psi_k.slice(0, b, 1).slice(2, first, w - first).to(Dtype::f64), {2}));
              }
              row.psi_k = on(concat(open, 0).contiguous().view({c.B, c.G, all.psi_k.dim(3)}));
            }
            select_blocks_step(mask, row, c.config, Tensor::from(width, {c.B}));
            for (const Tensor& x : lists_of(mask)) out.push_back(x);
          }
          return out;
        },
        kEqual);
  }
}
