// The share of the teacher's attention that a mask covers, and that of other masks with the same
// budget.
//
// The teacher's rows are computed in chunks of all heads and some rows. A group of rows and heads
// that shares a budget finds its largest values by counting their digits of 8 bits, from the top
// one down; if a group spans rows of many chunks, every digit takes a pass over all of them. The
// contribution of each row is stored by row, so that sums have one order.
#include "tensor/cuda/teacher/recall.cuh"
#include "tensor/cuda/teacher/score_tile.cuh"
#include "tensor/kernels/select.h"

namespace brine::cuda {
namespace {

using namespace recall;

constexpr int64_t kChunkValues = int64_t(1) << 26;  // of a chunk, unless 64 rows have more
constexpr int64_t kChunkRows = int64_t(1) << 13;    // rows of all heads, likewise

// ---- the teacher's rows
template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, kScoreBlocks<Layout>)
    make_rows_kernel(Job job, Chunk<T> chunk, TeacherView<T> teacher) {
  __shared__ T lse[Layout::rows];
  ScoreTiles<Layout, 1> tiles(dynamic_shared<T>());
  const int64_t heads = chunk.nb * job.H, bh = chunk.b0 * job.H + int64_t(blockIdx.x) % heads;
  const RowTile<Layout> at(job.widths, bh, job.H,
                           chunk.t0 / Layout::rows + int64_t(blockIdx.x) / heads);
  TileLse<Layout> running[Layout::thread_rows];
  for (int64_t key0 = 0; key0 < at.keys; key0 += Layout::rows) {
    Scores<Layout> u;
    tiles.score(u, at.scores(teacher.q, teacher.k, teacher.scale, job.T, key0));
#pragma unroll
    for (int i = 0; i < Layout::thread_rows; ++i) running[i].add(u[i], at.w[i] - key0);
    each_score<Layout>(u, [&](int i, int n, T& x) {
      const int64_t key = key0 + Layout::key(n);
      if (key >= at.w[i]) return;
      chunk.made[chunk.place(bh, at.first + Layout::row(i), job.T) + key] = x;
    });
  }
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) {
    const T whole = running[i].whole();
    if (first_of_row<Layout>()) lse[Layout::row(i)] = whole;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x / kWarp; i < at.rows; i += Layout::threads / kWarp) {
    T* row = chunk.made + chunk.place(bh, at.first + i, job.T);
    const int64_t w = job.widths(at.b, at.first + i);
    for (int64_t j = threadIdx.x % kWarp; j < w; j += kWarp) row[j] = math::exp(row[j] - lse[i]);
  }
}

// ---- the largest values of each group
// The budget of a group is the number of its entries in the mask. A warp for each.
__global__ void budget_kernel(Job job) {
  const int64_t g = int64_t(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (g >= job.groups()) return;
  const Group group(job, g);
  int64_t entries = 0;
  for (int64_t i = threadIdx.x % kWarp; i < group.rows; i += kWarp) {
    const int32_t* offsets =
        job.mask.offsets + (group.b * job.T + group.first + i) * (job.H + 1) + group.head;
    entries += offsets[group.heads] - offsets[0];
  }
  entries = warp_sum(entries);
  if (threadIdx.x % kWarp > 0) return;
  job.found.budget[g] = job.found.take[g] = entries;
  job.found.prefix[g] = 0;
}

// Counts the digit at `shift` of the keys that have the group's higher digits.
template <class T>
__global__ void count_digits_kernel(Job job, Chunk<T> chunk, int shift) {
  using Key = OrderKey<T>;
  __shared__ unsigned counts[kDigits];
  const BlockRow at(job, chunk);
  if (!at.counts) return;
  for (int i = int(threadIdx.x); i < kDigits; i += kThreads) counts[i] = 0;
  __syncthreads();
  const int bits = 8 * int(sizeof(T));
  const Key known = shift + 8 < bits ? Key(Key(-1) << (shift + 8)) : Key(0);
  const Key prefix = Key(job.found.prefix[job.group(at.b, at.h, at.t)]);
  const T* row = chunk.values + chunk.place(at.b * job.H + at.h, at.t, job.T);
  for (int64_t j = threadIdx.x; j < at.w; j += kThreads) {
    const Key key = order_key(row[j]);
    if ((key & known) == prefix) atomicAdd(&counts[(key >> shift) % kDigits], 1u);
  }
  __syncthreads();
  Count* to = job.found.counts + chunk.slot(job, at.b, at.h, at.t) * kDigits;
  for (int i = int(threadIdx.x); i < kDigits; i += kThreads) {
    if (counts[i] > 0) atomicAdd(&to[i], Count(counts[i]));
  }
}

// Determines the digit of the smallest selected key, and clears the counts. A thread for each slot
// of the chunk.
template <class T>
__global__ void narrow_kernel(Job job, Chunk<T> chunk, int64_t slots, int shift) {
  const int64_t slot = piece();
  if (slot >= slots) return;
  int64_t g = slot;
  if (!job.across_rows) {
    const int64_t bh = chunk.b0 * job.group_heads() + slot / chunk.nt;
    g = bh * job.T + chunk.t0 + slot % chunk.nt;
  }
  Count* counts = job.found.counts + slot * kDigits;
  const int64_t take = job.found.take[g];
  int64_t above = 0;
  int digit = kDigits - 1;
  while (digit > 0 && above + int64_t(counts[digit]) < take) above += int64_t(counts[digit--]);
  job.found.take[g] = take - above;
  job.found.prefix[g] |= uint64_t(digit) << shift;
  for (int i = 0; i < kDigits; ++i) counts[i] = 0;
}

// ---- sums
// The entries of a mask in a row, of the whole block.
template <class T>
__device__ Entries entries_of(const CsrView& csr, const Job& job, const BlockRow& at, const T* row,
                              const KeyRange& near_keys) {
  const int32_t* offsets = csr.offsets + (at.b * job.T + at.t) * (job.H + 1) + at.h;
  const int32_t* columns = csr.columns + csr.pointers[at.b * (job.T + 1) + at.t];
  Entries sums;
  for (int64_t e = offsets[0] + int64_t(threadIdx.x); e < offsets[1]; e += kThreads) {
    const int64_t key = columns[e] - at.h * job.T;
    sums.add(double(row[key]), key, near_keys);
  }
  return {.mass = block_sum(sums.mass),
          .near = block_sum(sums.near),
          .first = block_sum(sums.first),
          .heaviest = block_reduce(sums.heaviest, 0.0, Max{})};
}

__device__ inline FixedKeys fixed_keys(const Job& job, const BlockRow& at, int64_t budget) {
  const Group group(job, job.group(at.b, at.h, at.t));
  const int64_t members = group.heads * group.rows;
  const int64_t member = (at.h - group.head) * group.rows + at.t - group.first;
  const int64_t share = budget / members + (member < budget % members ? 1 : 0);
  return FixedKeys(job.widths.causal, at.w, at.t, share < at.w ? share : at.w);
}

// The masses of a row that do not depend on the mask's entries, as one thread finds them.
struct RowMass {
  double all = 0, top = 0, recent = 0, sinks_recent = 0, near = 0, first = 0, heaviest = 0;

  __device__ void add(double value, int64_t key, const FixedKeys& keys) {
    all += value;
    heaviest = value > heaviest ? value : heaviest;
    if (keys.recent.contains(key)) recent += value;
    if (keys.sinks_recent(key)) sinks_recent += value;
    if (keys.near.contains(key)) near += value;
    if (key < kSinks) first += value;
  }
  __device__ RowMass whole() const {
    return {.all = block_sum(all),
            .top = block_sum(top),
            .recent = block_sum(recent),
            .sinks_recent = block_sum(sinks_recent),
            .near = block_sum(near),
            .first = block_sum(first),
            .heaviest = block_reduce(heaviest, 0.0, Max{})};
  }
};

template <class T>
__global__ void row_sums_kernel(Job job, Chunk<T> chunk) {
  using Key = OrderKey<T>;
  const BlockRow at(job, chunk);
  if (!at.counts) return;
  const int64_t g = job.group(at.b, at.h, at.t), budget = job.found.budget[g];
  const Key prefix = Key(job.found.prefix[g]);
  const T* row = chunk.values + chunk.place(at.b * job.H + at.h, at.t, job.T);
  const FixedKeys fixed = fixed_keys(job, at, budget);
  RowMass thread_mass;
  int64_t ties = 0;
  for (int64_t j = threadIdx.x; j < at.w; j += kThreads) {
    const double value = double(row[j]);
    const Key key = order_key(row[j]);
    thread_mass.add(value, j, fixed);
    if (key > prefix) thread_mass.top += value;
    if (key == prefix) ++ties;
  }
  const RowMass all = thread_mass.whole();
  ties = block_sum(ties);
  const Entries mask = entries_of(job.mask, job, at, row, fixed.near);
  const Entries best = entries_of(job.best, job, at, row, fixed.near);
  if (threadIdx.x > 0) return;
  const Group group(job, g);
  const int64_t r = job.row(at.b, at.h, at.t);
  const int32_t* offsets = job.mask.offsets + (at.b * job.T + at.t) * (job.H + 1) + at.h;
  job.sum(kMask, r) = mask.mass;
  job.sum(kTopKeys, r) = budget > 0 ? all.top : 0;
  job.sum(kBestColumns, r) = best.mass;
  job.sum(kRecent, r) = all.recent;
  job.sum(kRandom, r) = all.all * double(budget) / double(group.heads * group.rows * at.w);
  job.sum(kSinksRecent, r) = all.sinks_recent;
  job.sum(kTopHit, r) = offsets[1] > offsets[0] && mask.heaviest >= all.heaviest ? 1 : 0;
  job.sum(kNearAll, r) = all.near;
  job.sum(kFirstAll, r) = all.first;
  job.sum(kNearMask, r) = mask.mass > 0 ? mask.near / mask.mass : 0;
  job.sum(kFirstMask, r) = mask.mass > 0 ? mask.first / mask.mass : 0;
  job.found.ties[r] = ties;
}

template <class T>
__device__ inline T value_of(OrderKey<T> key) {
  constexpr OrderKey<T> sign = OrderKey<T>(1) << (8 * sizeof(T) - 1);
  return std::bit_cast<T>(OrderKey<T>(key & sign ? key ^ sign : ~key));
}

// Among equal keys the later heads come first. A warp for each group; a head's first row gets the
// sum.
template <class T>
__global__ void add_ties_kernel(Job job) {
  const int64_t g = int64_t(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (g >= job.groups() || job.found.budget[g] == 0) return;
  const Group group(job, g);
  int64_t left = job.found.take[g];
  const double value = double(value_of<T>(OrderKey<T>(job.found.prefix[g])));
  for (int64_t h = group.head + group.heads - 1; h >= group.head && left > 0; --h) {
    int64_t ties = 0;
    const int64_t r = job.row(group.b, h, group.first);
    for (int64_t i = threadIdx.x % kWarp; i < group.rows; i += kWarp) ties += job.found.ties[r + i];
    ties = warp_sum(ties);
    const int64_t taken = ties < left ? ties : left;
    if (threadIdx.x % kWarp == 0) job.sum(kTopKeys, r) += double(taken) * value;
    left -= taken;
  }
}

// A block for every way and head.
__global__ void all_rows_kernel(double* sums, int64_t* rows, Job job) {
  const Way way = Way(int64_t(blockIdx.x) / job.H);
  const int64_t h = int64_t(blockIdx.x) % job.H;
  double sum = 0;
  int64_t counted = 0;
  for (int64_t i = threadIdx.x; i < job.B * job.T; i += blockDim.x) {
    const int64_t b = i / job.T, t = i % job.T;
    if (!job.counts(t, job.widths(b, t))) continue;
    sum += job.sum(way, job.row(b, h, t));
    ++counted;
  }
  sum = block_sum(sum);
  counted = block_sum(counted);
  if (threadIdx.x > 0) return;
  sums[blockIdx.x] = sum;
  if (blockIdx.x == 0) rows[0] = counted;
}

// Runs f(chunk) for every chunk, after its rows are computed.
template <class T>
class Rows {
  using Layout = PlainScores<T>;

 public:
  Rows(const Job& job, const TeacherAttention& teacher, Device device)
      : job_(job), teacher_(teacher, job.T) {
    const int64_t max_rows = std::max<int64_t>(1, std::min(kChunkRows, kChunkValues / job.T)) /
                             std::max<int64_t>(job.H, 1);
    constexpr int64_t tile = Layout::rows;
    nt_ = std::clamp<int64_t>(max_rows / job.B / tile * tile, tile, tiles_of<Layout>(job.T) * tile);
    nb_ = std::clamp<int64_t>(max_rows / nt_, 1, job.B);
    const int64_t rows = nb_ * job.H * nt_;
    if (!teacher_.map) made_ = Tensor::empty({rows, job.T}, DtypeOf<T>::value, device);
    const int64_t slots = job.across_rows ? job.groups() : rows;
    counts_ = Tensor::empty({slots, kDigits}, Dtype::i64, device);
    check_cuda(cudaMemsetAsync(counts_.raw(), 0, size_t(slots) * kDigits * 8, stream()),
               "attention_recall");
    job_.found.counts = reinterpret_cast<Count*>(counts_.data<int64_t>());
  }
  const Job& job() const { return job_; }

  template <class F>
  void each(F f) {
    const bool one = nb_ >= job_.B && nt_ >= job_.T;
    for (int64_t b = 0; b < job_.B; b += nb_) {
      for (int64_t t = 0; t < job_.T; t += nt_) {
        Chunk<T> chunk{.b0 = b, .nb = std::min(nb_, job_.B - b), .t0 = t};
        chunk.nt = std::min(nt_, job_.T - t);
        if (teacher_.map) {
          chunk.values = teacher_.map;
          chunk.pitch = job_.T;
        } else {
          make(chunk, one);
        }
        f(chunk);
      }
    }
  }

 private:
  void make(Chunk<T>& chunk, bool one) {
    chunk.values = chunk.made = made_.data<T>();
    chunk.from_bh = chunk.b0 * job_.H;
    chunk.from_t = chunk.t0;
    chunk.pitch = chunk.nt;
    if (one && whole_) return;  // the only chunk is still valid
    launch("attention_recall", make_rows_kernel<Layout>,
           dim3(blocks_for(chunk.nb * job_.H * tiles_of<Layout>(chunk.nt), 1)),
           dim3(Layout::threads), tile_bytes<Layout>(ScoreTiles<Layout, 1>::count), job_, chunk,
           teacher_);
    whole_ = one;
  }

  Job job_;
  TeacherView<T> teacher_;
  int64_t nb_ = 0, nt_ = 0;
  Tensor made_, counts_;
  bool whole_ = false;
};

template <class T>
void measure(const Job& given, const TeacherAttention& teacher, Device device) {
  const char* name = "attention_recall";
  const unsigned group_blocks = blocks_for(given.groups(), kThreads / kWarp);
  launch(name, budget_kernel, dim3(group_blocks), dim3(kThreads), 0, given);
  Rows<T> rows(given, teacher, device);
  const Job& job = rows.job();
  auto row_blocks = [&](const Chunk<T>& c) { return dim3(blocks_for(c.nb * job.H * c.nt, 1)); };
  auto count = [&](const Chunk<T>& c, int shift) {
    launch(name, count_digits_kernel<T>, row_blocks(c), dim3(kThreads), 0, job, c, shift);
  };
  auto narrow = [&](const Chunk<T>& c, int shift) {
    launch_each(name, c.slots(job), narrow_kernel<T>, job, c, c.slots(job), shift);
  };
  const int top = 8 * int(sizeof(T)) - 8;
  if (job.across_rows) {
    for (int shift = top; shift >= 0; shift -= 8) {
      rows.each([&](const Chunk<T>& c) { count(c, shift); });
      narrow(Chunk<T>{}, shift);
    }
  }
  rows.each([&](const Chunk<T>& c) {
    for (int shift = top; !job.across_rows && shift >= 0; shift -= 8) {
      count(c, shift);
      narrow(c, shift);
    }
    launch(name, row_sums_kernel<T>, row_blocks(c), dim3(kThreads), 0, job, c);
  });
  launch(name, add_ties_kernel<T>, dim3(group_blocks), dim3(kThreads), 0, job);
}

}  // namespace

void attention_recall(Tensor sums, Tensor rows, TeacherAttention teacher, FlatCsr csr, FlatCsr best,
                      Visibility visible, SelectConfig config, int64_t from) {
  const Tensor like = teacher.map.defined() ? teacher.map : teacher.q;
  const Device device = like.device();
  const int64_t B = csr.batch, H = csr.heads, T = csr.length;
  const DeviceWidths widths(visible, T, device);
  Job job{
      .mask = CsrView(csr),
      .best = CsrView(best),
      .found = {},
      .widths = widths.get(),
      .B = B,
      .H = H,
      .T = T,
      .k = config.k,
      .from = from,
      .across_heads =
          config.mode == SelectMode::per_batch || config.mode == SelectMode::causal_per_batch,
      .across_rows = config.mode == SelectMode::per_batch || config.mode == SelectMode::per_head};
  Tensor groups = Tensor::empty({3, job.groups()}, Dtype::i64, device);
  Tensor by_row = Tensor::empty({kWays, B, H, T}, Dtype::f64, device);
  Tensor ties = Tensor::empty({B, H, T}, Dtype::i64, device);
  job.found.budget = groups.data<int64_t>();
  job.found.take = job.found.budget + job.groups();
  job.found.prefix = reinterpret_cast<uint64_t*>(job.found.take + job.groups());
  job.found.sums = by_row.data<double>();
  job.found.ties = ties.data<int64_t>();
  if (B * H * T > 0) {
    dispatch_float(like.dtype(), [&]<class R>() { measure<R>(job, teacher, device); });
  }
  if (H == 0) {
    check_cuda(cudaMemsetAsync(rows.raw(), 0, 8, stream()), "attention_recall");
    return;
  }
  launch("attention_recall", all_rows_kernel, dim3(unsigned(kWays * H)), dim3(kThreads), 0,
         sums.data<double>(), rows.data<int64_t>(), job);
}

}  // namespace brine::cuda
