// Attention over blocks for other languages: plain memory in, plain memory out.
#include "sea/blocks/c_interface.h"

#include <algorithm>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"

namespace brine::sea {
namespace {

Tensor over(const float* data, const Shape& shape) {
  return Tensor::from_memory(const_cast<float*>(data), shape, Dtype::f32, nullptr);
}

// Of entry (block, row) of a tile's list: row `row` chose it first, unless all rows keep it.
void write_choices(const BlockMask& mask, const BlockConfig& config, int64_t T, int32_t* out) {
  const int64_t n = std::max<int64_t>(config.chosen, 1), tiles = mask.tile_count();
  const int64_t sequences = mask.counts.dim(0) * mask.counts.dim(1);
  std::fill_n(out, sequences * T * n, -1);
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t at = s * tiles + tile, first = tile * config.tile;
      const int64_t current = first / config.block;
      const int32_t* entries = mask.entries.data<int32_t>() + at * mask.capacity();
      std::vector<int64_t> filled(size_t(config.tile), 0);
      for (int32_t i = 0; i < mask.counts.data<int32_t>()[at]; ++i) {
        const int64_t block = entry_block(entries[i]), row = entry_row(entries[i]);
        if (config.is_fixed(block, current)) continue;
        out[(s * T + first + row) * n + filled[size_t(row)]++] = int32_t(block);
      }
    }
  }
}

void attend(const float* q, const float* k, const float* v, const float* key_scale,
            const int64_t* sizes, const BlockConfig& config, float* y, int32_t* choices) {
  const NoGrad off;
  const int64_t B = sizes[0], H = sizes[1], G = sizes[2], T = sizes[3], d = sizes[4];
  check_blocks("brine_block_attention", config);
  check(B > 0 && G > 0 && T > 0 && d > 0 && H > 0 && H % G == 0, "brine_block_attention: sizes ", B,
        ", ", H, ", ", G, ", ", T, ", ", d, " are not positive, or heads not a multiple of groups");
  const Tensor keys = over(k, {B, G, T, d}), queries = over(q, {B, H, T, d});
  BlockScores scores{.q = queries, .key_scale = over(key_scale, {G, d}), .groups = G};
  if (config.chosen > 0)
    scores.keys =
        key_codes(keys, scores.key_scale, config, config.level((T - 1) / config.block) + 1);
  const BlockMask mask = select_blocks(scores, config, {}, T);
  const Tensor out = block_attention(queries, keys, over(v, {B, G, T, d}), mask, {},
                                     (config.chosen + config.fixed()) * config.block);
  assign(over(y, {B, H, T, d}), out);
  if (choices) write_choices(mask, config, T, choices);
}

// So many threads compute until the end of the scope, in calls of this thread.
class Threads : NonCopyable {
 public:
  explicit Threads(int count) { set_threads(count); }
  ~Threads() { set_threads(before_); }

 private:
  const int before_ = threads();
};

}  // namespace
}  // namespace brine::sea

int brine_blocks_version() { return 1; }

const char* brine_block_attention(const float* q, const float* k, const float* v,
                                  const float* key_scale, const int64_t* sizes,
                                  const brine_blocks* form, int threads, float* y,
                                  int32_t* choices) {
  thread_local std::string wrong;
  try {
    const brine::sea::Threads limit(threads);
    brine::sea::attend(q, k, v, key_scale, sizes,
                       {.block = form->block,
                        .chosen = form->chosen,
                        .sinks = form->sinks,
                        .local = form->local,
                        .tile = form->tile,
                        .candidates = form->candidates,
                        .columns = form->columns},
                       y, choices);
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
    return wrong.c_str();
  }
}
