// The choice of key blocks: the kernels that make jobs of tiles or of new rows, and their launches.
#include "tensor/cuda/attention/block_choice.cuh"
#include "tensor/cuda/core/scratch.h"
#include "tensor/kernels/attention.h"

namespace brine::cuda {
namespace {

// Thread blocks, each with scratch memory: as many as a device of 132 multiprocessors has at a
// time, so that what they write stays in its L2.
constexpr int64_t kMostSlots = 132 * 5;

// A mask and where the rows of its tiles are.
struct Lists {
  int32_t *counts, *entries;
  int64_t capacity, tiles, groups, heads, rows;  // groups: B G; heads: of a group; rows of q
  int64_t sequences;                             // B

  __device__ int64_t sequence(int64_t bg) const { return bg / (groups / sequences); }
};

// The tiles of sequences.
struct TileJobs {
  const int32_t* places;   // null: 0, 1, 2...
  const int64_t* lengths;  // null: no padding

  // The long tiles come first, so that thread blocks finish at similar times.
  __device__ ChoiceJob operator()(int64_t turn, const Lists& to, const BlockConfig& config) const {
    const int64_t bg = turn % to.groups, n = to.tiles - 1 - turn / to.groups, R = config.tile;
    const int64_t first = (places ? places[n] : n) * R,
                  in = to.rows - n * R < R ? to.rows - n * R : R;
    const int64_t left = lengths ? lengths[to.sequence(bg)] - first : in;
    return {.bg = bg,
            .list = bg * to.tiles + n,
            .own = first / config.block,
            .first = first,
            .row = bg * to.heads * to.rows + n * R,
            .head_rows = to.rows,
            .count = int(left < 0 ? 0 : (left < in ? left : in)),
            .R = int(R),
            .r0 = 0,
            .heads = int(to.heads),
            .continues = false};
  }
};

// One new row of every sequence. Its tile keeps what its earlier rows keep.
struct StepJobs {
  const int64_t* width;

  __device__ ChoiceJob operator()(int64_t bg, const Lists& to, const BlockConfig& config) const {
    const int64_t t = width[to.sequence(bg)] - 1;
    return {.bg = bg,
            .list = bg,
            .own = t / config.block,
            .first = t,
            .row = bg * to.heads,
            .head_rows = 1,
            .count = 1,
            .R = 1,
            .r0 = int(t % config.tile),
            .heads = int(to.heads),
            .continues = t % config.tile > 0};
  }
};

template <class Layout, class Keys, class Jobs, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, 640 / Layout::threads)
    choose_kernel(const Lists to, const Jobs jobs,
                  const __grid_constant__ ChoiceInputs<T, typename Keys::Factor> in,
                  const __grid_constant__ BlockConfig config, const ChoiceSizes sizes,
                  const ChoiceMemory<T> memory) {
  const ChoiceRoom<T> room(sizes, memory, blockIdx.x);
  for (int64_t turn = blockIdx.x; turn < to.groups * to.tiles; turn += gridDim.x) {
    const ChoiceJob job = jobs(turn, to, config);
    BlockChoice<Layout, Keys>(in, config, room, job, dynamic_shared<unsigned char>())
        .write(to.counts[job.list], to.entries + job.list * to.capacity, to.capacity);
  }
}

template <class T, class Jobs>
void launch_choice(const char* name, const BlockMask& mask, BlockScores scores,
                   const BlockConfig& config, const Jobs& jobs, int64_t R) {
  const Tensor& q = scores.shares.defined() ? scores.shares : scores.q;
  const Device device = q.device();
  const int64_t B = q.dim(0), G = mask.counts.dim(1), heads = q.dim(1) / G;
  const Lists to{.counts = mask.counts.data<int32_t>(),
                 .entries = mask.entries.data<int32_t>(),
                 .capacity = mask.capacity(),
                 .tiles = mask.tile_count(),
                 .groups = B * G,
                 .heads = heads,
                 .rows = q.dim(2),
                 .sequences = B};
  if (to.groups * to.tiles == 0) return;
  const int64_t blocks =
      scores.shares.defined() ? q.dim(3) : scores.key_sums[0].dim(2) / config.parts;
  const int64_t m = scores.psi_q.defined() && !scores.shares.defined() ? scores.psi_q.dim(3) : 0;
  const ChoiceSizes sizes(config, heads, R, m, blocks, scores.shares.defined());
  const int64_t slots = std::min(
      {to.groups * to.tiles, kMostSlots, heads_per_turn(kMostSlots, sizes.all_bytes(sizeof(T)))});
  const Tensor floats = Tensor::empty({slots, sizes.floats()}, q.dtype(), device);
  const Tensor ints = Tensor::empty({slots, sizes.ints()}, Dtype::i32, device);
  const Tensor bytes = Tensor::empty({slots, sizes.bytes()}, Dtype::u8, device);
  const ChoiceMemory<T> memory{floats.data<T>(), ints.data<int32_t>(), bytes.data<uint8_t>()};
  auto launch_by = [&]<class Layout, class Keys>() {
    const ChoiceInputs<T, typename Keys::Factor> in(scores);
    launch(name, choose_kernel<Layout, Keys, Jobs>, dim3(blocks_for(slots, 1)),
           dim3(Layout::threads), ChoiceShared<Layout, Keys>::bytes, to, jobs, in, config, sizes,
           memory);
  };
  auto launch_of = [&]<int Lanes>() {
    using Layout = ChoiceTile<T, Lanes>;
    if constexpr (sizeof(T) == 4) {
      if (scores.half && !scores.shares.defined() && tensor_cores(Dtype::bf16)) {
        scores.q = scores.q.to(Dtype::bf16);
        for (Tensor& sums : scores.key_sums) sums = sums.to(Dtype::bf16);
        return launch_by.template operator()<Layout, HalfChoiceTile<Lanes>>();
      }
    }
    launch_by.template operator()<Layout, Layout>();
  };
  if constexpr (sizeof(T) == 4) {
    using Wide = ChoiceTile<T, 64>;
    const bool fits = ChoiceShared<Wide, Wide>::bytes <= most_shared();
    if (heads * R > 32 && fits) return launch_of.template operator()<64>();
  }
  launch_of.template operator()<32>();
}

}  // namespace

void select_blocks(BlockMask mask, BlockScores scores, BlockConfig config, Visibility visible) {
  const Tensor& q = scores.shares.defined() ? scores.shares : scores.q;
  const OnDevice places(mask.tiles, q.device()), lengths(visible.lengths, q.device());
  dispatch_float(q.dtype(), [&]<class T>() {
    launch_choice<T>("select_blocks", mask, scores, config,
                     TileJobs{places.data<int32_t>(), lengths.data<int64_t>()}, config.tile);
  });
}

void select_blocks_step(BlockMask mask, BlockScores scores, BlockConfig config, Tensor width) {
  const OnDevice widths(width, scores.q.device());
  dispatch_float(scores.q.dtype(), [&]<class T>() {
    launch_choice<T>("select_blocks_step", mask, scores, config, StepJobs{widths.data<int64_t>()},
                     1);
  });
}

}  // namespace brine::cuda
