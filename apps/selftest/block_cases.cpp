// Masks of key blocks: their choice, attention over them, a teacher's mass in them, decoding.
#include <cmath>

#include "apps/selftest/passed.h"
#include "autograd/compute_type.h"
#include "autograd/ops_blocks.h"
#include "autograd/ops_teacher.h"
#include "autograd/ops_units.h"

namespace brine::selftest {
namespace {

// 38 blocks of the 150 rows of padded(), two levels, four heads in two groups.
constexpr int64_t kBlock = 4, kWidth = 16, kFeatures = 5;
constexpr BlockConfig kBlocks{.block = kBlock, .chosen = 3, .tile = 4, .columns = 20};

// Queries and keys whose products order the blocks in the same way for all heads and far apart: no
// rounding changes a choice.
Tensor clear_queries(const Place& p, int64_t rows) {
  return made({3, 4, rows, kWidth}, p, [=](size_t i) {
    return i % kWidth ? 0.0 : 1.0 + 0.25 * double(i / size_t(rows * kWidth) % 4);
  });
}
Tensor clear_keys(const Place& p, int64_t rows) {
  return made({3, 2, rows, kWidth}, p, [=](size_t i) {
    const size_t block = i / kWidth % size_t(rows) / kBlock;
    return i % kWidth ? 0.0 : double(block * 7 % 37);
  });
}

std::vector<Tensor> sums_of(const Tensor& x, const Tensor& lengths) {
  std::vector<Tensor> sums;
  for (int64_t keys : {kBlock, 2 * kBlock}) {
    sums.push_back(sum_units(x, lengths, numbers({keys, keys, keys}), x.dim(2) / keys, x.dtype()));
  }
  return sums;
}

std::vector<KeyParts> parts_of(const Tensor& keys, int64_t parts) {
  BlockConfig config = kBlocks;
  config.parts = parts;
  return block_parts_by_level(keys, config, 2);
}

// The learned prior is the same for all keys.
BlockScores clear_scores(const Place& p, int64_t parts = 1) {
  const Tensor keys = clear_keys(p, 150),
               ones = made({3, 2, 150, kFeatures}, p, [](size_t) { return 1.0; });
  const Tensor gains = made({4}, p, [](size_t) { return 1.0; });
  return {.q = clear_queries(p, 150),
          .gain = gains,
          .key_parts = parts_of(keys, parts),
          .psi_q = p.uniform({3, 4, 150, kFeatures}, 3, 0.1, 1),
          .prior_gain = gains,
          .psi_sums = sums_of(ones, padded(true).lengths),
          .psi_k = ones,
          .least_share = 1e-7};
}

std::vector<Tensor> random_heads(const Place& p, int64_t d) {
  return {p.normal({3, 4, 150, d}, 1), p.normal({3, 2, 150, d}, 2), p.normal({3, 2, 150, d}, 3)};
}

void add_forward(std::vector<Case>& all) {
  for (const auto& [opinion, parts] : {std::pair(0.0, 1), {0.5, 1}, {0.5, 2}}) {
    all.push_back({.name = join("select_blocks, opinion ", opinion, ", parts ", parts),
                   .f64 = 0,
                   .f32 = 0,
                   .run = [opinion = opinion, parts = parts](const Place& p) {
                     BlockConfig config = kBlocks;
                     config.opinion = opinion;
                     config.parts = parts;
                     const BlockMask mask =
                         select_blocks(clear_scores(p, parts), config, padded(true), 150);
                     return Inputs{mask.counts, block_mask_keys(mask, 4, padded(true), 150)};
                   }});
  }
  for (Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const bool half = type != Dtype::f32;
    for (int64_t d : {16, 64, 128}) {
      if (half && d != 64) continue;
      all.push_back({.name = join("block_attention, heads of ", d, " in ", type),
                     .f64 = half ? -1 : 1e-11,
                     .f32 = half ? 2e-2 : 1e-4,
                     .run = [=](const Place& p) {
                       const BlockMask mask =
                           select_blocks(clear_scores(p), kBlocks, padded(true), 150);
                       const ComputeType rounded(type);
                       return passed(p, random_heads(p, d), [&](const Inputs& x) {
                         return block_attention(x[0], x[1], x[2], mask, padded(true), 20);
                       });
                     }});
    }
  }
  for (const bool weighted : {false, true}) {
    all.push_back({.name = join("block_parts of ", weighted ? "means" : "keys"),
                   .f64 = 1e-12,
                   .f32 = 1e-5,
                   .run = [=](const Place& p) {
                     const Tensor logs = made({3, 2, 50}, p, [](size_t i) {
                       return i % 5 == 2 ? kNoKeysLog : std::log(double(i % 7 + 1));
                     });
                     const KeyParts parts =
                         block_parts(p.normal({3, 2, 50, 24}, 5), weighted ? logs : Tensor(), 8, 3);
                     return Inputs{parts.means, parts.logs};
                   }});
  }
  all.push_back({.name = "block_mass", .f32 = 1e-5, .run = [](const Place& p) {
                   const std::vector<Tensor> x = random_heads(p, 24);
                   return Inputs{block_mass(x[0], x[1], kBlocks, padded(true))};
                 }});
}

// Sums of blocks token by token, the mask of each token, attention over caches.
Inputs decode(const Place& p, Dtype stored) {
  const int64_t tokens = 90;
  const Tensor keys = clear_keys(p, tokens), q = clear_queries(p, 1);
  const Tensor k = p.normal({3, 2, tokens, kWidth}, 1).to(stored);
  const Tensor v = p.normal({3, 2, tokens, kWidth}, 2).to(stored);
  BlockScores scores{.q = q, .gain = made({4}, p, [](size_t) { return 1.0; })};
  scores.key_parts = parts_of(keys, 2);  // a row reads those of complete blocks alone
  BlockConfig config = kBlocks;
  config.parts = 2;
  std::vector<Tensor> sums, open;
  for (int64_t size : {kBlock, 2 * kBlock}) {
    sums.push_back(Tensor::zeros({3, 2, tokens / size, kWidth}, p.type, p.device));
    open.push_back(Tensor::zeros({3, 2, kWidth}, Dtype::f64, p.device));
  }
  const BlockMask mask = empty_block_mask(kBlocks, 3, 2, 1, tokens / kBlock + 1, p.device);
  Inputs out;
  for (int64_t t = 0; t < tokens; ++t) {
    const Tensor row = keys.slice(2, t, 1).contiguous(), width = numbers({t + 1, t + 1, t + 1});
    for (size_t z = 0; z < 2; ++z) {
      append_to_blocks(sums[z], open[z], row, numbers({t, t, t}), kBlock << z);
    }
    select_blocks_step(mask, scores, config, width);
    if (t % 11) continue;
    out.push_back(mask.counts.clone());
    out.push_back(
        block_attention_step(p.normal({3, 4, 1, kWidth}, uint64_t(t)), k, v, mask, width));
  }
  out.insert(out.end(), sums.begin(), sums.end());
  return out;
}

void add_steps(std::vector<Case>& all) {
  for (Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    all.push_back(
        {.name = join("append_to_blocks, select_blocks_step and block_attention_step, "
                      "caches in ",
                      type),
         .f64 = type == Dtype::f32 ? 1e-11 : -1,
         .f32 = 4e-6,
         .run = [=](const Place& p) { return decode(p, p.type == Dtype::f32 ? type : p.type); }});
  }
}

}  // namespace

void add_blocks(std::vector<Case>& all) {
  add_forward(all);
  add_steps(all);
}

}  // namespace brine::selftest
