// The choice of key blocks: the 4-bit copies of keys, and the launches of the choice.
#include "tensor/base/stored.h"
#include "tensor/cuda/blocks/select_blocks.cuh"
#include "tensor/cuda/core/scratch.h"
#include "tensor/kernels/blocks.h"

namespace brine::cuda {
namespace {

constexpr int64_t kMaxSlots = 132 * 2;  // thread blocks, each with scratch memory
constexpr int kCodeThreads = 128;

// A thread block has a block of keys: a thread a channel's moments, a warp a key's codes. Bound by
// memory, which it reads once, later from the cache (not measured).
template <class T, class S>
__global__ void codes_kernel(uint8_t* codes, T* steps, T* moments, const T* k, const T* key_scale,
                             int64_t N, int64_t rows, int64_t G, int block, int d) {
  const int64_t index = blockIdx.x, bg = quotient(index, N);
  const int lane = int(threadIdx.x) % kWarp, half = (d + 1) / 2;
  k += (bg * rows + (index - bg * N) * block) * d;
  key_scale += bg % G * d;
  T* mean = moments + index * 2 * d;
  for (int c = int(threadIdx.x); c < d; c += kCodeThreads) {
    T sum = 0, squares = 0;
    for (int j = 0; j < block; ++j) sum += k[int64_t(j) * d + c];
    const T m = sum / T(block);
    for (int j = 0; j < block; ++j) {
      const T away = k[int64_t(j) * d + c] - m;
      squares = std::fma(away, away, squares);
    }
    mean[c] = T(S(m));
    mean[d + c] = std::sqrt(squares / T(block));
  }
  __syncthreads();
  for (int j = int(threadIdx.x) / kWarp; j < block; j += kCodeThreads / kWarp) {
    auto part = [&](int c) { return (k[int64_t(j) * d + c] - mean[c]) / key_scale[c]; };
    T largest = 0;
    for (int c = lane; c < d; c += kWarp) largest = Max{}(std::fabs(part(c)), largest);
    const T step = T(S(warp_max(largest) / T(7.5)));
    auto code = [&](int c) {
      const T z = step > 0 ? std::floor(part(c) / step) : T(0);
      return 8 + int(z > -8 ? (z < 7 ? z : T(7)) : T(-8));
    };
    const int64_t key = index * block + j;
    if (lane == 0) steps[key] = step;
    for (int c = lane; c < half; c += kWarp) {
      codes[key * half + c] = uint8_t(code(c) | (half + c < d ? code(half + c) : 8) << 4);
    }
  }
}

// Bound by the powers of the second pass, one for each key of a candidate and head (not
// measured): its products are integers on tensor cores, those of the first pass f32.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    choose_kernel(const ChoiceLists to, const __grid_constant__ ChoiceInputs<T> in,
                  const __grid_constant__ BlockConfig config, const ChoiceSizes sizes,
                  const ChoiceMemory<T> memory) {
  for (int64_t item = blockIdx.x; item < to.groups * to.tiles; item += gridDim.x) {
    const ChoiceTile tile = to.tile(item, config);
    BlockChoice<T>(in, config, sizes, memory, to, tile).write();
  }
}

template <class T>
void launch_choice(const char* name, const BlockScores& scores, const BlockConfig& config,
                   const ChoiceLists& to, int64_t R, Device device) {
  const ChoiceInputs<T> in(scores, to.G);
  const ChoiceSizes sizes(config, to.heads, R, in.blocks, in.half);
  const int64_t tiles = to.groups * to.tiles, ints = sizes.ints(in.blocks),
                bytes = sizes.floats() * int64_t(sizeof(T)) + sizes.row_sets() * 8 + ints * 4 +
                        sizes.bytes(),
                slots = std::min({tiles, kMaxSlots, heads_per_batch(kMaxSlots, bytes)});
  auto room = [&](int64_t n, Dtype type) { return Tensor::empty({slots, n}, type, device); };
  const Tensor floats = room(sizes.floats(), DtypeOf<T>::value),
               row_sets = room(sizes.row_sets(), Dtype::i64), counts = room(ints, Dtype::i32),
               queries = room(sizes.bytes(), Dtype::u8);
  const ChoiceMemory<T> memory{floats.data<T>(), reinterpret_cast<RowSet*>(row_sets.raw()),
                               counts.data<int32_t>(), reinterpret_cast<int8_t*>(queries.raw()),
                               in.blocks};
  launch(name, choose_kernel<T>, dim3(blocks_for(slots, 1)), dim3(kThreads),
         sizeof(ChoiceShared<T>), to, in, config, sizes, memory);
}

void choose(const char* name, const BlockMask& mask, const Tensor& nan_count,
            const BlockScores& scores, const BlockConfig& config, const Tensor& lengths,
            const Tensor& width) {
  const Device device = mask.counts.device();
  const Tensor& q = scores.shares.defined() ? scores.shares : scores.q;
  const OnDevice numbers(mask.tiles, device), on_lengths(lengths, device), on_width(width, device);
  const int64_t B = mask.counts.dim(0), G = mask.counts.dim(1), tiles = mask.tile_count();
  const ChoiceLists to{.counts = mask.counts.data<int32_t>(),
                       .entries = mask.entries.data<int32_t>(),
                       .nan_count = reinterpret_cast<RowSet*>(nan_count.raw()),
                       .capacity = mask.capacity(),
                       .tiles = tiles,
                       .groups = B * G,
                       .heads = q.defined() ? q.dim(1) / G : 1,
                       .rows = q.defined() ? q.dim(2) : tiles * config.tile,
                       .G = G,
                       .numbers = numbers.data<int32_t>(),
                       .lengths = on_lengths.data<int64_t>(),
                       .width = on_width.data<int64_t>()};
  check_cuda(cudaMemsetAsync(nan_count.raw(), 0, sizeof(int64_t), stream()), name);
  if (to.groups * to.tiles == 0) return;
  dispatch_float(q.defined() ? q.dtype() : Dtype::f32, [&]<class T>() {
    launch_choice<T>(name, scores, config, to, width.defined() ? 1 : config.tile, device);
  });
}

}  // namespace

void key_codes(KeyCodes keys, Tensor k, Tensor key_scale, int64_t block, Dtype stored) {
  const int64_t N = keys.codes.dim(2), d = k.dim(3), G = k.dim(1);
  if (k.dim(0) * G * N == 0) return;
  dispatch_stored(k.dtype(), stored, [&]<class T, class S>() {
    launch("key_codes", codes_kernel<T, S>, dim3(blocks_for(k.dim(0) * G * N, 1)),
           dim3(kCodeThreads), 0, keys.codes.data<uint8_t>(), keys.steps.data<T>(),
           keys.moments[0].data<T>(), k.data<T>(), key_scale.data<T>(), N, k.dim(2), G, int(block),
           int(d));
  });
}

void select_blocks(BlockMask mask, Tensor nan_count, BlockScores scores, BlockConfig config,
                   Visibility visible) {
  choose("select_blocks", mask, nan_count, scores, config, visible.lengths, {});
}

void select_blocks_step(BlockMask mask, Tensor nan_count, BlockScores scores, BlockConfig config,
                        Tensor width) {
  choose("select_blocks_step", mask, nan_count, scores, config, {}, width);
}

}  // namespace brine::cuda
