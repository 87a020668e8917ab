// Tiles of q k^T for any head size, kept in registers in a layout (tile_layout.cuh), and operations
// on such tiles: log-sum-exp, the teacher's attention.
#pragma once

#include "tensor/cuda/core/tile_layout.cuh"
#include "tensor/mask/teacher.h"

namespace brine::cuda {

constexpr int kSide = 64;  // columns of q and k per product

// On CUDA cores, and on tensor cores if that is faster.
template <class T>
using PlainScores = PlainTile<T, kSide, 4>;
using TensorScores = TensorTile<kSide>;

template <class Layout>
constexpr int kTileSize = Layout::rows* Layout::step;

// Desired blocks per multiprocessor in kernels of scores, 12 to 16 warps: as many as their
// registers allow.
template <class Layout>
constexpr int kScoreBlocks = Layout::threads == 256 ? 2 : 3;

// Over the threads that share rows; the same on each of them.
template <class Layout, class T>
__device__ inline T row_sum(T value) {
  return reduce_across<Layout>(value, Plus{});
}
template <class Layout, class T>
__device__ inline T row_max(T value) {
  return reduce_across<Layout>(value, Max{});
}
// One of those threads.
template <class Layout>
__device__ inline bool first_of_row() {
  return Layout::key(0) == 0;
}

// The rows of all heads, [., d], in T or, for sums in f32, in 16 bits.
template <class T>
struct StoredRows {
  const void* data = nullptr;
  Dtype type{};
  int64_t d = 0;

  StoredRows() = default;
  explicit StoredRows(const Tensor& x) : data(x.raw()), type(x.dtype()), d(x.dim(-1)) {}

  // tile = columns [c0, c0 + 64) of `count` rows from `row` on, 0 beyond them and beyond d.
  template <class Layout>
  __device__ void load(T* tile, int64_t row, int64_t count, int64_t c0) const {
    if constexpr (sizeof(T) == 4) {
      if (type == Dtype::bf16) return load_as<Layout, bf16>(tile, row, count, c0);
      if (type == Dtype::f16) return load_as<Layout, f16>(tile, row, count, c0);
    }
    load_as<Layout, T>(tile, row, count, c0);
  }

 private:
  template <class Layout, class S>
  __device__ void load_as(T* tile, int64_t row, int64_t count, int64_t c0) const {
    const S* from = static_cast<const S*>(data) + row * d + c0;
    const bool packed = (reinterpret_cast<uintptr_t>(from) | uintptr_t(d) * sizeof(S)) % 16 == 0;
    load_tile<Layout>(tile, from, d, count, d - c0, packed);
  }
};

// A tile of scores of `count` rows of `stays` against `others` rows of `moves`.
template <class T>
struct ScoreJob {
  StoredRows<T> stays, moves;
  int64_t row, count, other, others;
  T scale;
};

// scores = scale x y^T, 0 beyond the rows. The tiles of the last 64 columns are left in `stay` and
// `move`. `loaded`: `stay` contains the rows already; they have at most one tile of columns.
template <class Layout, class T = typename Layout::T>
__device__ inline void score_tile(Scores<Layout>& scores, T* stay, T* move, const ScoreJob<T>& job,
                                  bool loaded = false) {
  each_score<Layout>(scores, [](int, int, T& s) { s = 0; });
  const int64_t d = job.stays.d;
  for (int64_t c0 = 0; c0 < d; c0 += kSide) {
    __syncthreads();  // the tiles may still be read
    if (!loaded) job.stays.template load<Layout>(stay, job.row, job.count, c0);
    job.moves.template load<Layout>(move, job.other, job.others, c0);
    __syncthreads();
    Layout::add_scores(scores, stay, move, d - c0 < kSide ? int(d - c0) : kSide);
  }
  each_score<Layout>(scores, [&](int, int, T& s) { s *= job.scale; });
}

// One thread's part of the log-sum-exp of a row.
template <class Layout, class T = typename Layout::T>
struct TileLse {
  T max = -INFINITY, sum = 0;

  // The scores of this thread whose keys are below `seen` (keys counted from the tile's first).
  __device__ void add(const T (&s)[Layout::keys], int64_t seen) {
    T top = max;
#pragma unroll
    for (int n = 0; n < Layout::keys; ++n) {
      top = Layout::key(n) < seen && s[n] > top ? s[n] : top;
    }
    if (top > max) sum *= math::exp(max - top);
    max = top;
#pragma unroll
    for (int n = 0; n < Layout::keys; ++n) {
      sum += Layout::key(n) < seen ? math::exp(s[n] - max) : T(0);
    }
  }
  // Of the whole row; all threads that share it must call.
  __device__ T whole() const {
    const T top = row_max<Layout>(max);
    return top + math::log(row_sum<Layout>(max > -INFINITY ? sum * math::exp(max - top) : sum));
  }
};

// A teacher's attention on the device: a map, or q and k.
template <class T>
struct TeacherView {
  const T* map = nullptr;
  StoredRows<T> q, k;
  int64_t rows = 0;
  T scale = 0;

  TeacherView(const TeacherAttention& teacher, int64_t rows) : rows(rows) {
    if (teacher.map.defined()) {
      map = teacher.map.data<T>();
    } else {
      q = StoredRows<T>(teacher.q);
      k = StoredRows<T>(teacher.k);
      scale = T(1 / std::sqrt(double(q.d)));
    }
  }
};

// A tile of rows of one head and the keys that its rows see.
template <class Layout>
struct RowTile {
  int64_t bh, b, first;
  int64_t rows;                    // that see a key; all rows beyond them are padding
  int64_t keys;                    // that some row sees
  int64_t w[Layout::thread_rows];  // keys of the rows of this thread

  __device__ RowTile(const RowWidths& widths, int64_t bh, int64_t H, int64_t tile)
      : bh(bh), b(bh / H) {
    first = tile * Layout::rows;
    const int64_t left = widths.valid(b) - first;
    rows = left < 0 ? 0 : (left < Layout::rows ? left : Layout::rows);
    keys = rows > 0 ? widths(b, first + rows - 1) : 0;
#pragma unroll
    for (int i = 0; i < Layout::thread_rows; ++i) w[i] = widths(b, first + Layout::row(i));
  }
  // Keys of a tile of keys.
  __device__ int64_t keys_from(int64_t key0) const {
    return keys - key0 < Layout::rows ? keys - key0 : int64_t(Layout::rows);
  }
  // The scores of q against the tile of k from key0 on.
  template <class T>
  __device__ ScoreJob<T> scores(const StoredRows<T>& q, const StoredRows<T>& k, T scale,
                                int64_t all_rows, int64_t key0) const {
    const int64_t head = bh * all_rows;
    return {q, k, head + first, rows, head + key0, keys_from(key0), scale};
  }
  // The teacher's map from key0 on, 0 where it is not visible.
  template <class T>
  __device__ void read(Scores<Layout>& t, const TeacherView<T>& teacher, int64_t key0) const {
    each_score<Layout>(t, [&](int i, int n, T& x) {
      const int64_t row = bh * teacher.rows + first + Layout::row(i), key = key0 + Layout::key(n);
      x = key < w[i] ? teacher.map[row * teacher.rows + key] : T(0);
    });
  }
};

// The layout of the tiles in the shared memory of a block that computes the student's scores (1
// side), or also those of a teacher (2). On tensor cores loading takes longer than multiplying, so
// the stationary rows keep a tile each if a tile has all their columns.
template <class Layout, int kSides = 2, class T = typename Layout::T>
class ScoreTiles {
  static constexpr bool kKeeps = Layout::weights == 0;

 public:
  static constexpr int count = kKeeps ? kSides + 1 : 2;

  __device__ explicit ScoreTiles(T* room)
      : stay_(room),
        teacher_(kKeeps ? room + kTileSize<Layout> : room),
        move_(room + (count - 1) * kTileSize<Layout>) {}

  __device__ void score(Scores<Layout>& scores, const ScoreJob<T>& job) {
    score_tile<Layout>(scores, stay_, move_, job, loaded_);
    loaded_ = kKeeps && job.stays.d <= kSide;
  }
  __device__ void score_teacher(Scores<Layout>& scores, const ScoreJob<T>& job) {
    static_assert(kSides == 2);
    score_tile<Layout>(scores, teacher_, move_, job, teacher_loaded_);
    teacher_loaded_ = kKeeps && job.stays.d <= kSide;
  }
  // The last 64 columns of the last moving rows.
  __device__ T* moved() const { return move_; }
  // Shared memory after the tiles.
  __device__ T* rest() const { return move_ + kTileSize<Layout>; }

 private:
  T *stay_, *teacher_, *move_;
  bool loaded_ = false, teacher_loaded_ = false;
};

template <class Layout>
__host__ __device__ inline int64_t tiles_of(int64_t rows) {
  return (rows + Layout::rows - 1) / Layout::rows;
}

// The tile of rows of a block in a grid of heads x tiles. The long rows of a causal mask come
// first, so that blocks finish at similar times.
template <class Layout>
__device__ inline RowTile<Layout> last_tiles_first(const RowWidths& widths, int64_t heads,
                                                   int64_t H) {
  const int64_t turn = int64_t(blockIdx.x) / heads;
  return RowTile<Layout>(widths, int64_t(blockIdx.x) % heads, H,
                         tiles_of<Layout>(widths.rows) - 1 - turn);
}

// Calls f<Layout>() with the layout for scores of all these factors, sums in T.
template <class T, class F>
void dispatch_scores(std::initializer_list<Tensor> factors, F&& f) {
  if constexpr (sizeof(T) == 4) {
    bool fast = true;
    for (const Tensor& x : factors) fast = fast && (!x.defined() || tensor_cores(x.dtype()));
    if (fast) return f.template operator()<TensorScores>();
  }
  f.template operator()<PlainScores<T>>();
}

// Shared memory of a block. It fits on every device: 64 KB, and 99 KB on those used to test f64.
template <class Layout>
constexpr size_t tile_bytes(int tiles, int more = 0) {
  return size_t(tiles * kTileSize<Layout> + more) * sizeof(typename Layout::T);
}
static_assert(tile_bytes<PlainScores<float>>(3) <= 64 * 1024);
static_assert(tile_bytes<TensorScores>(3) <= 64 * 1024);
static_assert(tile_bytes<PlainScores<double>>(3) <= 99 * 1024);

}  // namespace brine::cuda
