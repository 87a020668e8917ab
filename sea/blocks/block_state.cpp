// The decoding state of blocks: copies are made while a prompt is read and when a block fills up.
#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "sea/blocks/block_attention.h"

namespace brine::sea {
namespace {

int64_t room_of(const nn::AttentionShape& shape, const nn::StateRequest& r, int64_t block) {
  return std::max(r.capacity, shape.max_positions) / block;
}

}  // namespace

BlockState::BlockState(const BlockAttention& attention, const nn::StateRequest& r)
    : KeyValueState(r, attention.shape_, attention.config_.block, attention.key_scale_.value),
      config_(attention.blocks_of(r.options)),
      key_scale_(attention.key_scale_.value),
      counts_(part("block_counts", {r.batch, attention.shape_.groups(), 1}, Dtype::i32)),
      entries_(part("block_entries",
                    {r.batch, attention.shape_.groups(), 1,
                     config_.max_kept(room_of(attention.shape_, r, config_.block) + 1)},
                    Dtype::i32)) {
  if (config_.chosen == 0) return;
  const int64_t G = attention.shape_.groups(), d = attention.shape_.head_size;
  auto blocks = [size = config_.block](int z) {
    return [keys = size << z](int64_t tokens) { return tokens / keys; };
  };
  const int64_t N = r.capacity / config_.block;
  if (codes) {
    codes_ = &codes->high;
    steps_ = &codes->steps;
    moments_ = {&codes->moments};
  } else {
    Tensor& scale = part("key_scale", {r.batch, G, d}, key_scale_.dtype());
    for (int64_t b = 0; b < r.batch && !r.device.is_meta(); ++b)
      copy_into(scale.slice(0, b, 1), key_scale_.view({1, G, d}));
    codes_ =
        &part("key_codes", {r.batch, G, N, config_.block, (d + 1) / 2}, Dtype::u8, 2, blocks(0));
    steps_ = &part("key_steps", {r.batch, G, N, config_.block}, r.cached(), 2, blocks(0));
  }
  const int levels = config_.level(room_of(attention.shape_, r, config_.block)) + 1;
  for (int z = int(moments_.size()); z < levels; ++z) {
    moments_.push_back(
        &part(join("block_moments_", z), {r.batch, G, N >> z, 2 * d}, r.cached(), 2, blocks(z)));
  }
}

void BlockState::store(int64_t first, int64_t count, int64_t block, const KeyCodes& copies) {
  const int64_t n = copies.steps.dim(2);
  auto put = [&](Tensor& to, int64_t at, const Tensor& from) {
    copy_into(to.slice(0, first, count).slice(2, at, from.dim(2)), from.to(to.dtype()));
  };
  if (!codes) {
    put(*codes_, block, copies.codes);
    put(*steps_, block, copies.steps);
    put(*moments_[0], block, copies.moments[0]);
  }
  // Of the moments as they are stored, so that prompts and steps have the same bits.
  for (size_t z = 1; z < moments_.size(); ++z) {
    const int64_t begin = block >> z, end = (block + n) >> z;
    if (end == begin) break;
    const Tensor halves = moments_[z - 1]
                              ->slice(0, first, count)
                              .slice(2, 2 * begin, 2 * (end - begin))
                              .contiguous()
                              .to(copies.steps.dtype());
    put(*moments_[z], begin, moments_of_pairs(halves));
  }
}

void BlockState::fill(int64_t first, const Tensor& k, const Tensor& v, KeyCodes copies,
                      const Visibility& visible, const BlockMask& mask) {
  KeyValueState::fill(first, k, v, visible.lengths);
  const int64_t B = k.dim(0);
  if (codes_ && k.dim(2) >= config_.block) {
    // Of the keys as the cache has them, as when a block is filled token by token.
    if (!codes && keys.dtype() != k.dtype()) {
      copies = key_codes(k.detach().to(keys.dtype()).to(k.dtype()), key_scale_, config_, 1,
                         steps_->dtype());
    }
    store(first, B, 0, copies);
  }
  for (int64_t b = 0; b < B; ++b)
    keep_last(first + b, mask, (length(first + b) - 1) / config_.tile, b);
}

void BlockState::keep_last(int64_t slot, const BlockMask& mask, int64_t tile, int64_t b) {
  const int64_t room = std::min(mask.capacity(), entries_.dim(3));
  copy_into(counts_.slice(0, slot, 1), mask.counts.slice(0, b, 1).slice(2, tile, 1));
  copy_into(entries_.slice(0, slot, 1).slice(3, 0, room),
            mask.entries.slice(0, b, 1).slice(2, tile, 1).slice(3, 0, room));
}

void BlockState::extend(int64_t slot, const Tensor& k, const Tensor& v) {
  const int64_t block = length(slot) / config_.block;
  KeyValueState::extend(slot, k, v);
  const Tensor stored = keys.dtype() == k.dtype() ? k.detach() : k.detach().to(keys.dtype());
  if (codes_ && k.dim(2) >= config_.block)
    store(slot, 1, block, key_codes(stored.to(k.dtype()), key_scale_, config_, 1, steps_->dtype()));
}

void BlockState::append(const Tensor& k, const Tensor& v) {
  KeyValueState::append(k, v);
  for (int64_t b = 0; codes_ && b < batch(); ++b) {
    const int64_t block = length(b) / config_.block - 1;
    if (length(b) % config_.block != 0) continue;
    const int64_t first = codes ? 0 : block * config_.block;
    const Tensor last = keys.slice(0, b, 1).slice(2, first, config_.block).contiguous();
    store(b, 1, block, key_codes(last.to(k.dtype()), key_scale_, config_, 1, steps_->dtype()));
  }
}

void BlockState::check_values(const std::vector<NamedTensor>& tensors, int64_t /*tokens*/,
                              const std::string& source) const {
  if (!codes_) return;
  const Tensor saved = named(tensors, "key_scale", source).to(Device{});
  check(saved.to_vector() == key_scale_.to(Device{}).to_vector(), source,
        ": its keys are coded by another key_scale; the model is calibrated on another text now");
}

KeyCodes BlockState::copies() const {
  KeyCodes out;
  if (!codes_) return out;
  out = {.codes = *codes_, .steps = *steps_};
  for (const Tensor* level : moments_) out.moments.push_back(*level);
  return out;
}

KeyCodes BlockState::copies(int64_t slot, Dtype dtype) const {
  KeyCodes out;
  if (!codes_) return out;
  auto of_slot = [&](const Tensor& t) { return t.slice(0, slot, 1); };
  out = {.codes = of_slot(*codes_), .steps = of_slot(*steps_).to(dtype)};
  for (const Tensor* level : moments_) out.moments.push_back(of_slot(*level).to(dtype));
  return out;
}

BlockMask BlockState::mask() const {
  return {.counts = counts_,
          .entries = entries_,
          .tiles = {},
          .block = config_.block,
          .tile = config_.tile};
}

}  // namespace brine::sea
