// Keys and values in 8 bits: checked functions over their kernels.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "autograd/ops_attention.h"
#include "autograd/ops_blocks.h"
#include "autograd/step_checks.h"
#include "tensor/base/stored.h"
#include "tensor/kernels/blocks.h"

namespace brine {
namespace {

void check_cache(const char* op, const CodedCache& c, Dtype type) {
  check(c.last_keys.rank() == 4 && c.last_keys.dtype() == type, op, ": last_keys must be ", type,
        " [B, G, block, d], got ", c.last_keys.dtype(), " ", c.last_keys.shape());
  const int64_t B = c.last_keys.dim(0), G = c.last_keys.dim(1), block = c.block(),
                d = c.last_keys.dim(3), N = c.values.rank() == 5 ? c.values.dim(2) : 0;
  const Dtype stored = c.keys.steps.dtype();
  const Shape codes{B, G, N, block, (d + 1) / 2}, steps{B, G, N, block};
  check(c.last_values.shape() == c.last_keys.shape() && c.last_values.dtype() == type &&
            c.values.shape() == Shape{B, G, N, block, d} && c.values.dtype() == Dtype::u8 &&
            c.keys.codes.shape() == codes && c.low_codes.shape() == codes &&
            c.first_keys.shape() == c.last_keys.shape() && c.first_keys.dtype() == stored &&
            c.keys.steps.shape() == steps && c.value_steps.shape() == steps &&
            c.value_steps.dtype() == stored && c.keys.moments.size() >= 1 &&
            c.keys.moments[0].shape() == Shape{B, G, N, 2 * d} &&
            c.keys.moments[0].dtype() == stored && c.key_scale.shape() == Shape{B, G, d} &&
            c.key_scale.dtype() == type && can_store(type, stored),
        op, ": the codes do not fit blocks of ", c.last_keys.shape());
}

}  // namespace

CodedCache code_cache(const Tensor& k, const Tensor& v, const Tensor& key_scale, int64_t block,
                      Dtype stored) {
  const char* op = "code_cache";
  check(v.shape() == k.shape() && v.dtype() == k.dtype() && can_store(k.dtype(), stored), op,
        ": k is ", k.dtype(), " ", k.shape(), ", v ", v.dtype(), " ", v.shape(), ", stored in ",
        stored);
  BlockConfig config{.block = block, .tile = 1};
  CodedCache out{.keys = key_codes(k, key_scale, config, 1, stored),
                 .low_codes = {},
                 .first_keys = {},
                 .key_scale = {},
                 .values = {},
                 .value_steps = {},
                 .last_keys = {},
                 .last_values = {}};
  out.keys.steps = out.keys.steps.to(stored);
  out.keys.moments[0] = out.keys.moments[0].to(stored);
  const int64_t B = k.dim(0), G = k.dim(1), d = k.dim(3), N = k.dim(2) / block;
  out.key_scale = Tensor::empty({B, G, d}, k.dtype(), k.device());
  for (int64_t b = 0; b < B; ++b)
    copy_into(out.key_scale.slice(0, b, 1), key_scale.view({1, G, d}));
  out.first_keys = Tensor::zeros({B, G, block, d}, stored, k.device());
  if (N > 0) copy_into(out.first_keys, k.detach().slice(2, 0, block));
  out.low_codes = Tensor::empty(out.keys.codes.shape(), Dtype::u8, k.device());
  out.values = Tensor::empty({B, G, N, block, d}, Dtype::u8, k.device());
  out.value_steps = Tensor::empty({B, G, N, block}, stored, k.device());
  if (out.values.numel() > 0) {
    BRINE_CALL(k, code_cache, out.low_codes, out.values, out.value_steps, out.keys,
               k.detach().contiguous(), v.detach().contiguous(), key_scale.detach().contiguous());
  }
  return out;
}

std::pair<Tensor, Tensor> decode_cache(const CodedCache& cache, const Tensor& lengths) {
  const char* op = "decode_cache";
  const Dtype type = cache.last_keys.dtype();
  check_cache(op, cache, type);
  const int64_t B = cache.last_keys.dim(0), room = (cache.values.dim(2) + 1) * cache.block();
  check_positions(op, "lengths", lengths, B, room);
  int64_t longest = 0;
  for (int64_t b = 0; b < B; ++b) longest = std::max(longest, lengths.data<int64_t>()[b]);
  const Shape shape{B, cache.last_keys.dim(1), longest, cache.last_keys.dim(3)};
  // Memory for all that the cache has room for: parts of a prompt reuse it as the lengths grow.
  auto rows = [&] {
    return Tensor::empty({shape[0] * shape[1] * room * shape[3]}, type, cache.last_keys.device())
        .slice(0, 0, shape.numel())
        .view(shape);
  };
  const Tensor k = rows(), v = rows();
  if (k.numel() > 0) BRINE_CALL(k, decode_cache, k, v, cache, lengths);
  return {k, v};
}

Tensor coded_attention_step(const Tensor& q, const CodedCache& cache, const BlockMask* mask,
                            const Tensor& width) {
  const char* op = "coded_attention_step";
  check_cache(op, cache, q.dtype());
  const int64_t B = cache.last_keys.dim(0), G = cache.last_keys.dim(1), d = cache.last_keys.dim(3);
  check(q.rank() == 4 && q.dim(0) == B && q.dim(1) % G == 0 && q.dim(2) == 1 && q.dim(3) == d, op,
        ": q must be [", B, ", H, 1, ", d, "] of ", G, " groups, got ", q.shape());
  check(!mask || mask->block == cache.block(), op, ": a mask of blocks of ", mask ? mask->block : 0,
        " keys for a cache of blocks of ", cache.block());
  check_positions(op, "width", width, B, (cache.values.dim(2) + 1) * cache.block());
  const Tensor y = Tensor::like(q);
  BRINE_CALL(y, coded_attention_step, y, q.detach().contiguous(), cache, mask ? *mask : BlockMask(),
             width, 1 / std::sqrt(double(d)));
  return y;
}

}  // namespace brine
