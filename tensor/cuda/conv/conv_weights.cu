// Gradient of convolution weights and bias: runs of positions of fixed lengths, a block of threads
// for a tile of every run's sums; the sums of the runs are then added up by bands.
#include "tensor/cuda/conv/conv.cuh"
#include "tensor/cuda/core/band_sums.cuh"

namespace brine::cuda {
namespace {

constexpr int kWeightSide = 16;  // a block is 16 x 16 threads
constexpr int kWeightRows = 4;   // sums per thread, vertically
constexpr int kHeight = kWeightSide * kWeightRows;
constexpr int kWeightStep = 32;     // positions in shared memory at a time
constexpr int64_t kShortest = 512;  // positions of a run, at least
constexpr int64_t kBlocks = 1024;   // target number of runs: several for every processor of a large
                                    // device

template <class T, class Y>
struct Weights {
  ConvSizes s;
  Y* parts;  // [runs, height, O]
  const T* x;
  const Y *dy, *y;
  // Sums `first` and on; sum i is of channel i % C at tap i / C, sum C taps of the bias.
  int first, height;
  int64_t positions, run;
};

// One of kWeightStep positions: the start of its row of x (in columns), its column, and the start
// of its channels of dy; -1: it is 0.
struct Steps {
  int64_t row[kWeightStep], out[kWeightStep];
  int column[kWeightStep];
  int any;
};

template <class T, class Y>
__device__ inline void find_positions(Steps& steps, const Weights<T, Y>& p, int64_t at,
                                      int64_t end) {
  const ConvSizes& s = p.s;
  const int i = int(threadIdx.x);
  bool live = at + i < end;
  if (live) {
    const int64_t row = quotient(at + i, s.W), b = quotient(row, s.rows), r = row - b * s.rows;
    const int64_t column = at + i - row * s.W;
    live = r < s.live(b);
    steps.row[i] = (b * s.rows_in + r * s.stride) * s.W;
    steps.column[i] = int(column);
    steps.out[i] = live ? ((b * s.rows_out + s.before + r) * s.W + column) * s.O : -1;
  } else {
    steps.out[i] = -1;
  }
  const unsigned any = __ballot_sync(kAllLanes, live);
  if (i == 0) steps.any = any != 0;
}

// The inputs of one sum at a position.
struct Sum {
  int64_t row = 0, aside = 0;  // columns from a position's row; offset in columns
  int channel = -1;            // -1: ones, the bias
  bool valid = false;

  template <class T, class Y>
  __device__ Sum(const Weights<T, Y>& p, int i) : valid(i < p.height) {
    const int64_t at = p.first + i, C = p.s.C, tap = C > 0 ? at / C : 0;
    if (!valid || at >= C * p.s.kT * p.s.kW) return;
    channel = int(at % C);
    row = tap / p.s.kW * p.s.dilation * p.s.W;
    aside = tap % p.s.kW * p.s.dilation - p.s.margin;
  }
  template <class T, class Y>
  __device__ Y at(const Weights<T, Y>& p, const Steps& steps, int i) const {
    if (!valid || steps.out[i] < 0) return 0;
    if (channel < 0) return 1;
    const int64_t column = steps.column[i] + aside;
    if (column < 0 || column >= p.s.W) return 0;
    return Y(p.x[(steps.row[i] + row + column) * p.s.C + channel]);
  }
};

template <class T, class Y, int columns>
__global__ void __launch_bounds__(kWeightSide* kWeightSide)
    weight_runs_kernel(Weights<T, Y> p, int across) {
  __shared__ __align__(16) Y left[kWeightStep][kHeight];
  __shared__ Y right[kWeightStep][kWeightSide * columns];
  __shared__ Steps steps;
  constexpr int kThreads = kWeightSide * kWeightSide;
  const int t = int(threadIdx.x), tx = t % kWeightSide, ty = t / kWeightSide, O = int(p.s.O);
  const int down = int(blockIdx.x) / across * kHeight;
  const int column = int(blockIdx.x) % across * kWeightSide * columns + tx;
  const int64_t start = int64_t(blockIdx.y) * p.run;
  const int64_t end = start + p.run < p.positions ? start + p.run : p.positions;
  const Sum source(p, down + t % kHeight);
  Y sum[kWeightRows][columns] = {};
  for (int64_t at = start; at < end; at += kWeightStep) {
    if (t < kWeightStep) find_positions(steps, p, at, end);
    __syncthreads();
    const bool any = steps.any;
    for (int i = t / kHeight; any && i < kWeightStep; i += kThreads / kHeight) {
      left[i][t % kHeight] = source.at(p, steps, i);
    }
    for (int i = ty; any && i < kWeightStep; i += kWeightSide) {
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        const int o = column + j * kWeightSide;
        const int64_t from = steps.out[i] + o;
        const bool inside = o < O && steps.out[i] >= 0 && (!p.y || p.y[from] > 0);
        right[i][tx + j * kWeightSide] = inside ? p.dy[from] : Y(0);
      }
    }
    __syncthreads();
    if (!any) continue;
#pragma unroll 4
    for (int k = 0; k < kWeightStep; ++k) {
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        const Y b = right[k][tx + j * kWeightSide];
#pragma unroll
        for (int i = 0; i < kWeightRows; ++i) sum[i][j] += left[k][ty * kWeightRows + i] * b;
      }
    }
    // The next positions are written while the slowest warps still multiply; these do not read
    // them.
  }
  Y* parts = p.parts + int64_t(blockIdx.y) * p.height * O;
#pragma unroll
  for (int i = 0; i < kWeightRows; ++i) {
    const int row = down + ty * kWeightRows + i;
    if (row >= p.height) break;
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      const int o = column + j * kWeightSide;
      if (o < O) parts[int64_t(row) * O + o] = sum[i][j];
    }
  }
}

// The parts of the runs, size = height O numbers each.
template <class Y>
struct RunTerms {
  const Y* parts;
  int64_t size;
  __device__ void operator()(double (&sum)[1], int64_t, int64_t run, int64_t i) const {
    sum[0] += double(parts[run * size + i]);
  }
};

// dw [O, C, taps] and db [O] += the sums of all runs.
template <class Y>
struct AddWeights {
  Y *dw, *db;
  int64_t first, C, taps, O;
  __device__ void operator()(int64_t, int64_t, int64_t i, const double (&sum)[1]) const {
    const int64_t row = quotient(i, O), o = i - row * O, at = first + row;
    if (at == C * taps) {
      db[o] += Y(sum[0]);
    } else {
      const int64_t tap = quotient(at, C);
      dw[(o * C + at - tap * C) * taps + tap] += Y(sum[0]);
    }
  }
};

template <int columns, class T, class Y>
void launch_runs(const Weights<T, Y>& p, int64_t runs) {
  const int across = int((p.s.O + kWeightSide * columns - 1) / (kWeightSide * columns));
  const dim3 grid(blocks_for(p.height, kHeight) * unsigned(across), unsigned(runs));
  launch("conv2d_backward", weight_runs_kernel<T, Y, columns>, grid,
         dim3(kWeightSide * kWeightSide), 0, p, across);
}

template <class T, class Y>
void weight_gradient(Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor y, const ConvSizes& s) {
  const int64_t all = s.C * s.taps(), positions = s.B * s.rows * s.W;
  const int64_t first = dw.defined() ? 0 : all, height = (db.defined() ? all + 1 : all) - first;
  if (positions == 0 || height == 0 || s.O == 0) return;
  int best = 1;
  for (int columns = 2; columns <= 4; ++columns) {
    auto filled = [&](int c) { return (s.O + kWeightSide * c - 1) / (kWeightSide * c) * c; };
    if (filled(columns) <= filled(best)) best = columns;
  }
  const int64_t tiles =
      (height + kHeight - 1) / kHeight * ((s.O + kWeightSide * best - 1) / (kWeightSide * best));
  const int64_t wanted = std::max<int64_t>(1, kBlocks / tiles);
  const int64_t run = (std::max((positions + wanted - 1) / wanted, kShortest) + kWeightStep - 1) /
                      kWeightStep * kWeightStep;
  const int64_t runs = (positions + run - 1) / run;
  Tensor parts = Tensor::empty({runs, height, s.O}, DtypeOf<Y>::value, x.device());
  const Weights<T, Y> p{.s = s,
                        .parts = parts.data<Y>(),
                        .x = x.data<T>(),
                        .dy = dy.data<Y>(),
                        .y = s.relu ? y.data<Y>() : nullptr,
                        .first = int(first),
                        .height = int(height),
                        .positions = positions,
                        .run = run};
  const auto launch_best = best == 1   ? launch_runs<1, T, Y>
                           : best == 2 ? launch_runs<2, T, Y>
                           : best == 3 ? launch_runs<3, T, Y>
                                       : launch_runs<4, T, Y>;
  launch_best(p, runs);
  Y* to_w = dw.defined() ? dw.data<Y>() : nullptr;
  Y* to_b = db.defined() ? db.data<Y>() : nullptr;
  sum_bands<1>("conv2d_backward", 1, runs, height * s.O, RunTerms<Y>{p.parts, height * s.O},
               AddWeights<Y>{to_w, to_b, first, s.C, s.taps(), s.O}, x.device());
}

}  // namespace

void conv2d_weight_gradient(Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                            const Convolution& conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, conf, lengths);
  dispatch_image(x.dtype(),
                 [&]<class T, class Y>() { weight_gradient<T, Y>(dw, db, dy, x, y, s); });
}

}  // namespace brine::cuda
