// The choice of key blocks: the parts of blocks, the kernels that make jobs of tiles or of new
// rows, and their launches.
#include "tensor/cuda/blocks/block_choice.cuh"
#include "tensor/cuda/core/scratch.h"
#include "tensor/kernels/blocks.h"

namespace brine::cuda {
namespace {

// Thread blocks, each with scratch memory: as many as a device of 132 multiprocessors has at a
// time, so that what they write stays in its L2.
constexpr int64_t kMaxSlots = 132 * 5;

// An odd stride: rows that neighbouring threads read are in different banks of shared memory.
constexpr int odd_stride(int d) { return d | 1; }

// Clusters of the `size` rows from a thread block's first one on, read once to shared memory if
// they are few (`staged`). Shared memory: T [3 size + parts], then the rows.
template <class T>
__global__ void parts_kernel(T* means, T* logs, const T* x, const T* x_logs, int64_t N,
                             int64_t rows, int size, int parts, int d, bool staged) {
  const int64_t bg = quotient(blockIdx.x, N), first = bg * rows + (blockIdx.x - bg * N) * size;
  T* nearest = dynamic_shared<T>();
  T *owner = nearest + size, *weight = owner + size, *keys = weight + size;
  __shared__ int centre;
  const int thread = int(threadIdx.x), threads = int(blockDim.x);
  x += first * d;
  if (x_logs) x_logs += first;
  means += int64_t(blockIdx.x) * parts * d;
  logs += int64_t(blockIdx.x) * parts;
  const int step = staged ? odd_stride(d) : d;
  if (staged) {
    T* copy = keys + parts;
    for (int s = thread / kWarp; s < size; s += threads / kWarp) {
      for (int c = thread % kWarp; c < d; c += kWarp) copy[s * step + c] = x[int64_t(s) * d + c];
    }
    x = copy;
  }
  for (int s = thread; s < size; s += threads) {
    nearest[s] = x_logs && x_logs[s] <= T(kNoKeysLog) ? T(-1) : std::numeric_limits<T>::infinity();
    owner[s] = 0;
    weight[s] = x_logs ? std::round(std::exp(x_logs[s])) : T(1);
  }
  if (thread == 0) centre = 0;
  for (int p = 0; p < parts; ++p) {
    __syncthreads();
    for (int s = thread; s < size; s += threads) {
      const T *row = x + int64_t(s) * step, *other = x + int64_t(centre) * step;
      T distance = 0;
#pragma unroll 4
      for (int c = 0; c < d; ++c) {
        const T difference = row[c] - other[c];
        distance += difference * difference;
      }
      if (distance < nearest[s]) {
        nearest[s] = distance;
        owner[s] = T(p);
      }
    }
    __syncthreads();
    if (thread >= kWarp) continue;
    // The farthest row, of equal ones the first.
    T distance = -std::numeric_limits<T>::infinity();
    int at = std::numeric_limits<int>::max();
    for (int s = thread; s < size; s += kWarp) {
      if (nearest[s] > distance) {
        distance = nearest[s];
        at = s;
      }
    }
    for (int by = kWarp / 2; by > 0; by /= 2) {
      const T other = __shfl_xor_sync(kAllLanes, distance, by);
      const int other_at = __shfl_xor_sync(kAllLanes, at, by);
      if (other > distance || (other == distance && other_at < at)) {
        distance = other;
        at = other_at;
      }
    }
    if (thread == 0) centre = at;
  }
  for (int p = thread; p < parts; p += threads) {
    T sum = 0;
    for (int s = 0; s < size; ++s) sum += owner[s] == T(p) ? weight[s] : T(0);
    keys[p] = sum;
    logs[p] = sum > 0 ? std::log(sum) : T(kNoKeysLog);
  }
  __syncthreads();
  for (int i = thread; i < parts * d; i += threads) {
    const int part = int(unsigned(i) / unsigned(d)), c = i - part * d;
    T sum = 0;
    for (int s = 0; s < size; ++s) {
      if (owner[s] == T(part)) sum += weight[s] * x[int64_t(s) * step + c];
    }
    means[i] = keys[part] > 0 ? sum / keys[part] : T(0);
  }
}

// One new row of every sequence. Its tile keeps what its earlier rows keep.
struct StepJobs {
  const int64_t* width;
  bool scored = false;

  __device__ ChoiceJob operator()(int64_t bg, const MaskLists& to,
                                  const BlockConfig& config) const {
    const int64_t t = width[to.sequence(bg)] - 1;
    return {.bg = bg,
            .list = bg,
            .block = t / config.block,
            .first = t,
            .row = bg * to.heads,
            .head_rows = 1,
            .count = 1,
            .R = 1,
            .r0 = int(t % config.tile),
            .heads = int(to.heads),
            .continues = t % config.tile > 0,
            .scored = scored};
  }
};

constexpr int kStepThreads = 128;

// The scores that choose_kernel() starts from, of new rows: a thread for each part of a block,
// since the one thread block of a group would read all means by itself. Sums are in the order of
// ChoiceTile. blockIdx.y is the group. Shared memory: T heads (d + kStepThreads).
template <class T>
__global__ void __launch_bounds__(kStepThreads)
    step_scores_kernel(const MaskLists to, const StepJobs jobs,
                       const __grid_constant__ ChoiceInputs<T, T> in,
                       const __grid_constant__ BlockConfig config, const ChoiceSizes sizes,
                       const ChoiceMemory<T> memory) {
  const ChoiceJob job = jobs(blockIdx.y, to, config);
  const int z = config.level(job.block), parts = int(sizes.P), blocks = kStepThreads / parts;
  const int64_t candidates = job.block >> z, first = int64_t(blockIdx.x) * blocks;
  if (first >= candidates) return;
  const int count = int(candidates - first < blocks ? candidates - first : blocks), d = int(in.d);
  const ChoiceRoom<T> room(sizes, memory, blockIdx.y);
  T *q = dynamic_shared<T>(), *products = q + job.heads * d;
  for (int i = int(threadIdx.x); i < job.heads * d; i += kStepThreads) {
    q[i] = in.q[job.row * d + i];
  }
  __syncthreads();
  const int slot = int(threadIdx.x);
  if (slot < count * parts) {
    const T* mean = in.keys.of(z, job.bg) + (first * parts + slot) * d;
    for (int h = 0; h < job.heads; ++h) {
      T sum = 0;
#pragma unroll 16
      for (int c = 0; c < d; ++c) sum += q[h * d + c] * mean[c];
      products[h * kStepThreads + slot] = sum;
    }
  }
  __syncthreads();
  const double root = 1 / std::sqrt(double(d));
  const int64_t head = job.bg * job.heads % in.H;
  for (int i = int(threadIdx.x); i < job.heads * count; i += kStepThreads) {
    const int h = i / count, b = i % count;
    const T* log = in.logs.of(z, job.bg) + (first + b) * parts;
    const T* of_parts = products + h * kStepThreads + b * parts;
    const int64_t at = h * room.C + first + b;
    room.s[at] =
        fold_parts(of_parts, log, parts, 1, T(double(in.gain[head + h]) * root), false, T(0));
    if (config.opinion > 0)
      room.raw[at] = fold_parts(of_parts, log, parts, 1, T(root), false, T(0));
  }
}

template <class Layout, class Jobs, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, 640 / Layout::threads)
    choose_kernel(const MaskLists to, const Jobs jobs,
                  const __grid_constant__ ChoiceInputs<T, T> in,
                  const __grid_constant__ BlockConfig config, const ChoiceSizes sizes,
                  const ChoiceMemory<T> memory) {
  const ChoiceRoom<T> room(sizes, memory, blockIdx.x);
  for (int64_t turn = blockIdx.x; turn < to.groups * to.tiles; turn += gridDim.x) {
    const ChoiceJob job = jobs(turn, to, config);
    BlockChoice<Layout>(in, config, room, job, dynamic_shared<unsigned char>())
        .write(to.counts[job.list], to.entries + job.list * to.capacity, to.capacity);
  }
}

template <class T>
size_t step_shared(const MaskLists& to, const ChoiceInputs<T, T>& in) {
  return size_t(to.heads * (in.d + kStepThreads)) * sizeof(T);
}

template <class T>
void launch_step_scores(const MaskLists& to, const StepJobs& jobs, const ChoiceInputs<T, T>& in,
                        const BlockConfig& config, const ChoiceSizes& sizes,
                        const ChoiceMemory<T>& memory) {
  const int64_t candidates = std::min(sizes.blocks, config.columns);
  if (candidates == 0) return;
  const dim3 grid(blocks_for(candidates, kStepThreads / sizes.P), unsigned(to.groups));
  launch("select_blocks_step scores", step_scores_kernel<T>, grid, dim3(kStepThreads),
         step_shared(to, in), to, jobs, in, config, sizes, memory);
}

template <class T, class Jobs>
void launch_choice(const char* name, const BlockMask& mask, BlockScores scores,
                   const BlockConfig& config, Jobs jobs, int64_t R) {
  const Tensor& q = scores.shares.defined() ? scores.shares : scores.q;
  const Device device = q.device();
  const int64_t B = q.dim(0), G = mask.counts.dim(1), heads = q.dim(1) / G;
  const MaskLists to{.counts = mask.counts.data<int32_t>(),
                     .entries = mask.entries.data<int32_t>(),
                     .capacity = mask.capacity(),
                     .tiles = mask.tile_count(),
                     .groups = B * G,
                     .heads = heads,
                     .rows = q.dim(2),
                     .sequences = B};
  if (to.groups * to.tiles == 0) return;
  if constexpr (std::is_same_v<T, float> && std::is_same_v<Jobs, TileJobs>) {
    const bool of_keys = !scores.shares.defined() && !scores.psi_q.defined();
    if (scores.half && of_keys && select_blocks_half(to, jobs, scores, config)) return;
  }
  const int64_t blocks =
      scores.shares.defined() ? q.dim(3) : scores.key_parts[0].means.dim(2) / config.parts;
  const int64_t m = scores.psi_q.defined() && !scores.shares.defined() ? scores.psi_q.dim(3) : 0;
  const ChoiceSizes sizes(config, heads, R, m, blocks, scores.shares.defined());
  const int64_t slots = std::min(
      {to.groups * to.tiles, kMaxSlots, heads_per_turn(kMaxSlots, sizes.all_bytes(sizeof(T)))});
  const Tensor floats = Tensor::empty({slots, sizes.floats()}, q.dtype(), device);
  const Tensor ints = Tensor::empty({slots, sizes.ints()}, Dtype::i32, device);
  const Tensor bytes = Tensor::empty({slots, sizes.bytes()}, Dtype::u8, device);
  const ChoiceMemory<T> memory{floats.data<T>(), ints.data<int32_t>(), bytes.data<uint8_t>()};
  const ChoiceInputs<T, T> in(scores);
  if constexpr (std::is_same_v<Jobs, StepJobs>) {
    jobs.scored = slots == to.groups && sizes.P <= kChoiceSlots[sizeof(T) / 8] &&
                  step_shared<T>(to, in) <= most_shared();
    if (jobs.scored) launch_step_scores(to, jobs, in, config, sizes, memory);
  }
  auto launch_of = [&]<int Lanes>() {
    using Layout = ChoiceTile<T, Lanes>;
    launch(name, choose_kernel<Layout, Jobs>, dim3(blocks_for(slots, 1)), dim3(Layout::threads),
           ChoiceShared<Layout>::bytes, to, jobs, in, config, sizes, memory);
  };
  if constexpr (sizeof(T) == 4) {
    const bool fits = ChoiceShared<ChoiceTile<T, 64>>::bytes <= most_shared();
    if (heads * R > 32 && fits) return launch_of.template operator()<64>();
  }
  launch_of.template operator()<32>();
}

}  // namespace

void block_parts(Tensor means, Tensor logs, Tensor x, Tensor x_logs, int64_t size, int64_t parts) {
  const int64_t N = logs.dim(2) / parts, d = x.dim(3);
  dispatch_float(x.dtype(), [&]<class T>() {
    const size_t lists = size_t(3 * size + parts) * sizeof(T),
                 copy = size_t(size * odd_stride(int(d))) * sizeof(T);
    // More rows would leave a multiprocessor too few thread blocks.
    const bool staged = lists + copy <= most_shared() / 4;
    launch("block_parts", parts_kernel<T>, dim3(blocks_for(x.dim(0) * x.dim(1) * N, 1)), dim3(64),
           lists + (staged ? copy : 0), means.data<T>(), logs.data<T>(), x.template data<T>(),
           x_logs.defined() ? x_logs.template data<T>() : nullptr, N, x.dim(2), int(size),
           int(parts), int(d), staged);
  });
}

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
