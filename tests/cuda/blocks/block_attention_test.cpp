// Attention over lists of key blocks on the device, as on the CPU.
#include "tensor/functions/transfer.h"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/blocks.h"
#include "tests/block_cases.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct Rows {
  Tensor q, k, v, dy;
};

Rows rows_of(const BlockCase& c, Dtype dtype) {
  return {normal({c.B, c.H, c.T, c.d}, 3, dtype), normal({c.B, c.G, c.T, c.d}, 4, dtype),
          normal({c.B, c.G, c.T, c.d}, 5, dtype), normal({c.B, c.H, c.T, c.d}, 6, dtype)};
}

// The mask that the CPU chooses, on the device.
BlockMask mask_of(const BlockCase& c, const On& on) {
  const Rows x = rows_of(c, Dtype::f64);
  BlockMask mask = select_blocks(block_scores(c, x.q, x.k), c.config, c.visible(), c.T);
  mask.counts = on(mask.counts);
  mask.entries = on(mask.entries);
  return mask;
}

// y, lse and the gradients of q, k, v for which a bit of `wanted` is set.
std::vector<Tensor> both_ways(const Rows& x, const BlockMask& mask, const Visibility& visible,
                              double scale, int wanted = 7) {
  const Shape shape = x.q.shape();
  const Tensor y = Tensor::like(x.dy);
  const Tensor lse = Tensor::empty({shape[0], shape[1], shape[2]}, y.dtype(), y.device());
  BRINE_CALL(x.q, block_attention, y, lse, x.q, x.k, x.v, mask, visible, scale);
  auto fresh = [&](int bit, const Tensor& of) {
    return wanted & bit ? Tensor::empty(of.shape(), y.dtype(), y.device()) : Tensor();
  };
  const Tensor dq = fresh(1, x.q), dk = fresh(2, x.k), dv = fresh(4, x.v);
  BRINE_CALL(x.q, block_attention_backward, dq, dk, dv, x.dy, x.q, x.k, x.v, y, lse, mask, visible,
             scale);
  return {y, lse, dq, dk, dv};
}

Rows moved(const Rows& x, const On& on) { return {on(x.q), on(x.k), on(x.v), on(x.dy)}; }

void compare_block_attention(const BlockCase& c, int wanted = 7) {
  const std::string what = join("block_attention, T ", c.T, ", d ", c.d, ", tile ", c.config.tile,
                                ", block ", c.config.block, ", gradients ", wanted);
  auto run = [&](const On& on, Dtype dtype) {
    return both_ways(moved(rows_of(c, dtype), on), mask_of(c, on), c.visible(),
                     1 / std::sqrt(double(c.d) + 0.5), wanted);
  };
  compare_both(what, run, {}, Emulated::large_device);
  // Wider heads have lower tiles, or none, if shared memory is small: 64 KB, 99 KB in f64.
  if (c.d > 32) compare_both(what + ", small", run);
}

// A part of the tiles of a case, by their numbers.
Tensor sampled(const Tensor& all, const std::vector<int32_t>& numbers, int axis, int64_t rows) {
  std::vector<Tensor> parts;
  for (int32_t n : numbers) parts.push_back(all.slice(axis, n * rows, rows));
  return concat(parts, axis).contiguous();
}

struct HalfCase {
  int wanted = 7;  // as both_ways()
  double size_of_dy = 1;
  std::vector<int32_t> numbers = {};  // of sampled tiles; none: all
};

// Products of factors in `type` on tensor cores, of f32 by TF32, against exact ones.
void compare_tensor_cores(const BlockCase& c, Dtype type, const HalfCase& more = {}) {
  const AtEnd reset{[] { cuda::set_tf32(false); }};
  auto run = [&](Device device) {
    const On on{device};
    cuda::set_tf32(type == Dtype::f32 && device.is_cuda());
    // On the CPU the exact results, which the CPU's kernels for 16 bits would round. Numbers of
    // bf16 are exact in TF32.
    auto rounded = [&](const Tensor& x) {
      const Tensor y = x.to(type == Dtype::f32 ? Dtype::bf16 : type);
      return on(device.is_cuda() && type != Dtype::f32 ? y : y.to(Dtype::f32));
    };
    Rows x = rows_of(c, Dtype::f32);
    for (int64_t i = 0; i < x.dy.numel(); ++i) x.dy.data<float>()[i] *= float(more.size_of_dy);
    BlockMask mask = mask_of(c, On{kCpu});
    if (!more.numbers.empty()) {
      x.q = sampled(x.q, more.numbers, 2, c.config.tile);
      x.dy = sampled(x.dy, more.numbers, 2, c.config.tile);
      mask.counts = sampled(mask.counts, more.numbers, 2, 1);
      mask.entries = sampled(mask.entries, more.numbers, 2, 1);
      mask.tiles = Tensor::from(more.numbers, {int64_t(more.numbers.size())});
    }
    mask.counts = on(mask.counts);
    mask.entries = on(mask.entries);
    for (Tensor* t : {&x.q, &x.k, &x.v}) *t = rounded(*t);
    x.dy = on(x.dy);
    return both_ways(x, mask, c.visible(), 0.2, more.wanted);
  };
  const std::vector<Tensor> wanted = run(kCpu), got = run(kCuda);
  for (size_t i = 0; i < wanted.size(); ++i) {
    INFO(type, ", d ", c.d, ", tile ", c.config.tile, ", block ", c.config.block, ", output ", i);
    REQUIRE(wanted[i].defined() == got[i].defined());
    if (!wanted[i].defined()) continue;
    // Weights of values are rounded to 16 bits, or to TF32.
    const double tolerance = type == Dtype::bf16 ? 4e-3 : 1e-3;
    check_close("tensor cores", wanted[i], got[i].to(kCpu), i == 1 ? 1e-5 : tolerance);
  }
}

BlockConfig config(int64_t block, int64_t chosen, int64_t tile) {
  return {.block = block, .chosen = chosen, .tile = tile};
}

}  // namespace

TEST_CASE("cuda: block_attention and its gradients, shared cases") {
  for (const BlockCase& c : block_cases()) compare_block_attention(c);
}

TEST_CASE("cuda: block_attention of heads of any size, one, three and seven in a group") {
  for (int64_t d : {1, 6, 32, 33, 64, 80, 128, 130}) {
    compare_block_attention({.H = 3, .G = 1, .T = 75, .d = d, .config = config(8, 2, 4)});
  }
  compare_block_attention({.H = 7, .G = 1, .T = 83, .d = 8, .config = config(16, 1, 16)});
  compare_block_attention(
      {.B = 2, .H = 3, .G = 3, .T = 70, .d = 8, .config = config(4, 3, 2), .lengths = {70, 31}});
}

TEST_CASE("cuda: block_attention of tiles of 2 to 64 rows, of padded and empty sequences") {
  const std::vector<int64_t> four = {90, 0, 1, 53}, three = {40, 0, 33};
  const BlockCase cases[] = {
      {.H = 2, .G = 1, .T = 260, .d = 8, .config = config(64, 1, 64)},
      {.H = 3, .G = 1, .T = 200, .d = 12, .config = config(96, 1, 48)},
      {.H = 2, .G = 2, .T = 141, .d = 7, .config = config(32, 1, 32)},
      {.B = 4, .H = 6, .G = 2, .T = 90, .d = 16, .config = config(8, 2, 8), .lengths = four},
      {.B = 3, .H = 2, .G = 1, .T = 40, .d = 150, .config = config(4, 2, 4), .lengths = three},
      {.B = 2, .T = 70, .config = {.block = 130, .chosen = 1, .tile = 2}}};
  for (const BlockCase& c : cases) compare_block_attention(c);
}

TEST_CASE("cuda: block_attention_backward gives the gradients that are wanted") {
  for (int wanted = 0; wanted < 7; ++wanted) {
    compare_block_attention({.H = 4, .G = 2, .T = 37, .d = 12, .config = config(4, 2, 2)}, wanted);
    compare_block_attention({.H = 2, .G = 1, .T = 20, .d = 132, .config = config(4, 2, 2)}, wanted);
  }
}

TEST_CASE("cuda: block_attention_backward with slices of long lists, in batches of groups") {
  for (int64_t limit : {cuda::scratch_limit(), int64_t(1)}) {
    const ScratchLimit limited(limit);
    compare_block_attention({.B = 2,
                             .H = 4,
                             .G = 2,
                             .T = 411,
                             .d = 5,
                             .config = config(8, 2, 2),
                             .lengths = {411, 290}});
  }
}

TEST_CASE("cuda: block_attention of sampled tiles") {
  const std::vector<int32_t> numbers = {1, 2, 9, 14};
  const BlockCase c{
      .B = 2, .H = 6, .G = 2, .T = 64, .d = 9, .config = config(8, 2, 4), .lengths = {64, 39}};
  compare_both("block_attention of sampled tiles", [&](const On& on, Dtype dtype) {
    Rows x = rows_of(c, dtype);
    x.q = sampled(x.q, numbers, 2, 4);
    x.dy = sampled(x.dy, numbers, 2, 4);
    BlockMask mask = mask_of(c, On{kCpu});
    mask.counts = on(sampled(mask.counts, numbers, 2, 1));
    mask.entries = on(sampled(mask.entries, numbers, 2, 1));
    mask.tiles = Tensor::from(numbers, {4});
    return both_ways(moved(x, on), mask, c.visible(), 0.3);
  });
}

TEST_CASE("cuda: block_attention of all blocks has the bits of flash_attention, twice the same") {
  if (!has_device()) return;
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (auto [d, R, H] : {std::array<int64_t, 3>{6, 4, 3}, {64, 16, 1}, {80, 8, 2}, {130, 2, 2}}) {
      const BlockCase c{
          .B = 2, .H = H, .G = 1, .T = 90, .d = d, .config = config(16, 9, R), .lengths = {90, 57}};
      const On on{kCuda};
      const Rows x = moved(rows_of(c, dtype), on);
      const std::vector<Tensor> got = both_ways(x, mask_of(c, on), c.visible(), 0.3),
                                again = both_ways(x, mask_of(c, on), c.visible(), 0.3);
      const Tensor y = Tensor::empty({2, 90, H * d}, dtype, kCuda), lse = Tensor::like(got[1]);
      BRINE_CALL(x.q, flash_attention, y, lse, x.q, x.k, x.v, c.visible(), 0.3);
      CHECK(same_bits(merge_heads(got[0]).to(kCpu), y.to(kCpu)));
      CHECK(same_bits(got[1].to(kCpu), lse.to(kCpu)));
      for (size_t i = 0; i < got.size(); ++i) {
        CHECK(same_bits(got[i].to(kCpu), again[i].to(kCpu)));
      }
    }
  }
}

TEST_CASE(
    "cuda: both directions of block_attention do not wait, a choice of blocks waits for its NaN") {
  if (!has_device()) return;
  const BlockCase c{
      .B = 2, .H = 4, .G = 2, .T = 60, .config = config(4, 2, 2), .lengths = {60, 41}};
  const On on{kCuda};
  const Rows x = moved(rows_of(c, Dtype::f32), on);
  const Tensor key_scale = on(uniform({2, c.d}, 1, 0.5, 2));
  const int64_t before = cuda::waits();
  const BlockScores scores{.q = x.q,
                           .key_scale = key_scale,
                           .keys = key_codes(x.k, key_scale, c.config, c.levels()),
                           .groups = c.G};
  const BlockMask mask = select_blocks(scores, c.config, c.visible(), c.T);
  both_ways(x, mask, c.visible(), 0.3);
  CHECK(cuda::waits() == before + 1);
}

TEST_CASE("cuda: block_attention does not read rows of padding") {
  if (!has_device()) return;
  const BlockCase c{.H = 3, .G = 1, .T = 60, .d = 8, .config = config(8, 2, 4), .lengths = {45}};
  Rows x = rows_of(c, Dtype::f32);
  const BlockMask mask = mask_of(c, On{kCuda});
  for (const Tensor& t : {x.q, x.k, x.v, x.dy}) fill(t.slice(2, 45, 15), double(NAN));
  for (const Tensor& t : both_ways(moved(x, On{kCuda}), mask, c.visible(), 0.3)) {
    for (double value : t.to(kCpu).to_vector()) REQUIRE(std::isfinite(value));
  }
}

TEST_CASE("cuda: block_attention on tensor cores: 16 bits, and f32 when TF32 is requested") {
  if (!has_device()) return;
  for (Dtype type : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
    // Lanes of 12 to 160: bands of 16 that one, two or four warps share, and several passes.
    for (auto [d, R, H] : {std::array<int64_t, 3>{6, 4, 3},
                           {64, 16, 1},
                           {128, 8, 7},
                           {128, 16, 6},
                           {40, 32, 1},
                           {128, 32, 1},
                           {16, 32, 3},
                           {80, 32, 5}}) {
      compare_tensor_cores({.B = 2,
                            .H = H,
                            .G = 1,
                            .T = 190,
                            .d = d,
                            .config = config(R < 32 ? 16 : 32, 2, R),
                            .lengths = {190, 57}},
                           type);
    }
  }
}

TEST_CASE("cuda: block_attention on tensor cores of rows that see none of the first keys") {
  if (!has_device()) return;
  // Later rows of the tile choose them; a warp has a band by itself.
  compare_tensor_cores({.H = 3,
                        .G = 1,
                        .T = 400,
                        .d = 32,
                        .config = {.block = 16, .chosen = 2, .sinks = 0, .local = 0, .tile = 16}},
                       Dtype::bf16);
}

TEST_CASE("cuda: block_attention_backward on tensor cores: blocks of any size, in slices") {
  if (!has_device()) return;
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    for (auto [block, R] : {std::array<int64_t, 2>{4, 2}, {8, 8}, {48, 16}, {96, 48}, {130, 2}}) {
      compare_tensor_cores({.B = 2,
                            .H = 4,
                            .G = 2,
                            .T = 141,
                            .d = 24,
                            .config = config(block, 1, R),
                            .lengths = {141, 70}},
                           type);
    }
    for (int wanted = 0; wanted < 7; ++wanted) {
      compare_tensor_cores({.H = 2, .G = 1, .T = 75, .d = 16, .config = config(32, 1, 16)}, type,
                           {.wanted = wanted});
    }
    // The first block has two of three slices, others one.
    for (int64_t limit : {cuda::scratch_limit(), int64_t(1)}) {
      const ScratchLimit limited(limit);
      compare_tensor_cores({.H = 12, .G = 2, .T = 411, .d = 8, .config = config(8, 2, 2)}, type);
    }
    compare_tensor_cores(
        {.B = 2, .H = 6, .G = 2, .T = 64, .d = 16, .config = config(8, 2, 4), .lengths = {64, 39}},
        type, {.numbers = {1, 2, 9, 14}});
    // Far below the least number of f16.
    compare_tensor_cores({.H = 2, .G = 1, .T = 75, .d = 16, .config = config(16, 1, 16)}, type,
                         {.size_of_dy = 1e-9});
    // Too little shared memory for wide heads: the kernels of f32.
    const SmallDevice small(Dtype::f32);
    compare_tensor_cores({.H = 2, .G = 1, .T = 40, .d = 128, .config = config(16, 1, 16)}, type);
  }
}

TEST_CASE("cuda: block_attention on tensor cores reads no padding, gives the same bits twice") {
  if (!has_device()) return;
  const BlockCase c{
      .B = 2, .H = 3, .G = 1, .T = 90, .d = 16, .config = config(32, 1, 16), .lengths = {90, 45}};
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    Rows x = rows_of(c, Dtype::f32);
    const BlockMask mask = mask_of(c, On{kCuda});
    for (const Tensor& t : {x.q, x.k, x.v, x.dy}) {
      fill(t.slice(0, 1, 1).slice(2, 45, 45), double(NAN));
    }
    for (Tensor* t : {&x.q, &x.k, &x.v}) *t = t->to(type);
    const Rows device_rows = moved(x, On{kCuda});
    const std::vector<Tensor> got = both_ways(device_rows, mask, c.visible(), 0.3),
                              again = both_ways(device_rows, mask, c.visible(), 0.3);
    for (size_t i = 0; i < got.size(); ++i) {
      for (double value : got[i].to(kCpu).to_vector()) REQUIRE(std::isfinite(value));
      CHECK(same_bits(got[i].to(kCpu), again[i].to(kCpu)));
    }
  }
}

TEST_CASE("cuda: block_attention_step over caches in every type") {
  const BlockCase c{.B = 3, .H = 6, .G = 2, .T = 700, .d = 20, .config = config(16, 15, 8)};
  const std::vector<int64_t> width = {700, 1, 417};
  for (Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    compare_both(join("block_attention_step ", type), [&](const On& on, Dtype dtype) {
      const Rows x = rows_of(c, dtype);
      const Dtype kept = dtype == Dtype::f32 ? type : dtype;
      const BlockMask all = mask_of(c, On{kCpu});
      auto newest = [&](const Tensor& of, int64_t rows) {
        std::vector<Tensor> parts;
        for (int64_t b = 0; b < c.B; ++b) {
          parts.push_back(of.slice(0, b, 1).slice(2, (width[size_t(b)] - 1) / rows, 1));
        }
        return on(concat(parts, 0).contiguous());
      };
      BlockMask mask = all;
      mask.counts = newest(all.counts, c.config.tile);
      mask.entries = newest(all.entries, c.config.tile);
      const Tensor q = newest(x.q, 1), y = Tensor::like(q);
      BRINE_CALL(q, block_attention_step, y, q, on(x.k.to(kept)), on(x.v.to(kept)), mask,
                 Tensor::from(width, {3}), 0.4);
      return std::vector{y};
    });
  }
}
