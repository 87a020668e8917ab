// The teacher's mass in blocks of keys, by tiles of rows and keys: one pass for the log-sum-exp of
// the rows, one for the masses.
#include "tensor/cuda/teacher/score_tile.cuh"
#include "tensor/kernels/teacher.h"
#include "tensor/mask/blocks.h"

namespace brine::cuda {
namespace {

// The rows of q are those of `places` tiles (null: 0, 1, 2...).
struct TileRows {
  const int32_t* places;
  const int64_t* lengths;  // null: no padding
  int64_t H, group, rows, T, R;

  // Keys that a row of q sees; its ordinal is that less 1. 0: padding.
  __device__ int64_t keys(int64_t b, int64_t row) const {
    if (row >= rows) return 0;
    const int64_t n = row / R, t = (places ? places[n] : n) * R + row % R;
    return t < T && (!lengths || t < lengths[b]) ? t + 1 : 0;
  }
};

// The columns of a row: super-blocks of `keys` keys.
struct Columns {
  int64_t keys = 1, count = 0;
  __device__ Columns(const BlockConfig& config, int64_t w) {
    if (w == 0) return;
    const int64_t block = (w - 1) / config.block;
    const int z = config.level(block);
    keys = config.block << z;
    count = block >> z;
  }
};

// mass += the shares of a tile's keys from key0 on, shown in shared memory. A column belongs to the
// same thread in every tile, so that thread may accumulate in memory.
template <class Layout, class T>
__device__ void add_columns(T* mass, const T* row, const Columns& of, int64_t key0, int part) {
  constexpr int parts = Layout::threads / Layout::rows;
  const int64_t all = of.count * of.keys, tile_end = key0 + Layout::rows;
  const int64_t end = all < tile_end ? all : tile_end;
  if (key0 >= end) return;
  int64_t c = key0 / of.keys;
  c += (part - c % parts + parts) % parts;
  for (; c * of.keys < end; c += parts) {
    const int64_t begin = c * of.keys, last = begin + of.keys;
    const int from = int((begin > key0 ? begin : key0) - key0);
    const int to = int((last < end ? last : end) - key0);
    T sum = 0;
    for (int j = from; j < to; ++j) sum += row[j];
    mass[c] += sum;
  }
}

template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, kScoreBlocks<Layout>)
    block_mass_kernel(T* mass, StoredRows<T> q, StoredRows<T> k, TileRows of, BlockConfig config,
                      int64_t heads, int64_t C, T scale) {
  constexpr int M = Layout::rows, parts = Layout::threads / M;
  ScoreTiles<Layout, 1> tiles(dynamic_shared<T>());
  T* const shown = tiles.moved();  // the keys' tile, after the scores are computed
  // The rows of many keys come first, so that blocks finish at similar times.
  const int64_t bh = int64_t(blockIdx.x) % heads, b = bh / of.H;
  const int64_t first = (tiles_of<Layout>(of.rows) - 1 - int64_t(blockIdx.x) / heads) * M;
  const int64_t here = of.rows - first < M ? of.rows - first : int64_t(M);
  T* const to = mass + (bh * of.rows + first) * C;
  for (int64_t e = threadIdx.x; e < here * C; e += Layout::threads) to[e] = 0;
  int64_t w[Layout::thread_rows], max_keys = 0;
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) w[i] = of.keys(b, first + Layout::row(i));
  const int64_t row = threadIdx.x / parts, row_keys = of.keys(b, first + row);
  max_keys = block_reduce(row_keys, int64_t(0), Max{});
  auto job = [&](int64_t key0) {
    const int64_t left = max_keys - key0;
    return ScoreJob<T>{q,
                       k,
                       bh * of.rows + first,
                       here,
                       bh / of.group * of.T + key0,
                       left < M ? left : int64_t(M),
                       scale};
  };
  TileLse<Layout> running[Layout::thread_rows];
  for (int64_t key0 = 0; key0 < max_keys; key0 += M) {
    Scores<Layout> s;
    tiles.score(s, job(key0));
#pragma unroll
    for (int i = 0; i < Layout::thread_rows; ++i) running[i].add(s[i], w[i] - key0);
  }
  T lse[Layout::thread_rows];
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) lse[i] = running[i].whole();
  const Columns columns(config, row_keys);
  const int64_t end = block_reduce(columns.count * columns.keys, int64_t(0), Max{});
  for (int64_t key0 = 0; key0 < end; key0 += M) {
    Scores<Layout> s;
    tiles.score(s, job(key0));
    __syncthreads();  // the keys' tile may still be read
    each_score<Layout>(s, [&](int i, int n, T& x) {
      const bool seen = key0 + Layout::key(n) < w[i];
      shown[Layout::row(i) * Layout::score_step + Layout::key(n)] =
          seen ? math::exp(x - lse[i]) : T(0);
    });
    __syncthreads();
    if (row < here) {
      add_columns<Layout>(to + row * C, shown + row * Layout::score_step, columns, key0,
                          int(threadIdx.x) % parts);
    }
  }
}

}  // namespace

void block_mass(Tensor mass, Tensor q, Tensor k, Tensor tiles, BlockConfig config,
                Visibility visible, double scale) {
  const int64_t heads = q.dim(0) * q.dim(1), rows = q.dim(2), C = mass.dim(3);
  if (heads * rows == 0) return;
  const OnDevice places(tiles, q.device()), lengths(visible.lengths, q.device());
  const TileRows of{.places = places.data<int32_t>(),
                    .lengths = lengths.data<int64_t>(),
                    .H = q.dim(1),
                    .group = q.dim(1) / k.dim(1),
                    .rows = rows,
                    .T = k.dim(2),
                    .R = config.tile};
  dispatch_float(mass.dtype(), [&]<class T>() {
    dispatch_scores<T>({q, k}, [&]<class Layout>() {
      launch("block_mass", block_mass_kernel<Layout>,
             dim3(blocks_for(heads * tiles_of<Layout>(rows), 1)), dim3(Layout::threads),
             tile_bytes<Layout>(ScoreTiles<Layout, 1>::count), mass.data<T>(), StoredRows<T>(q),
             StoredRows<T>(k), of, config, heads, C, T(scale));
    });
  });
}

}  // namespace brine::cuda
