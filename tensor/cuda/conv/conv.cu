// Convolution of channels-last images: forward and the gradient of the image, both as one product
// of the neighbourhoods of all positions with the weights, gathered tile by tile; of few channels,
// by a thread for each position.
#include "tensor/cuda/conv/conv.cuh"

#include "tensor/cuda/conv/fused.h"
#include "tensor/cuda/core/packs.cuh"

namespace brine::cuda {
namespace {

constexpr int kSide = 16;               // a block is 16 x 16 threads
constexpr int kPlaces = 8;              // positions of a thread
constexpr int kTile = kSide * kPlaces;  // positions of a block
constexpr int kStep = 16;               // of the sum, in shared memory at a time
constexpr int kFewResults = 8;          // channels that a thread sums for one position, at most
constexpr int kFewInputs = 16;
constexpr int kPadded = kTile + 4;  // distributes the stores over the banks, keeps vectors
                                    // whole

// A position of the result of such a product.
struct Place {
  int sequence, row, column;
  bool live;  // it may be nonzero
};

// The input of the product in the forward pass: x [B, rows_in, W, C].
template <class T, class Y>
struct Image {
  ConvSizes s;
  const T* x;

  int64_t positions() const { return s.B * s.rows_out * s.W; }
  int64_t results() const { return s.O; }
  __device__ int channels() const { return int(s.C); }

  __device__ Place place(int64_t p) const {
    const int64_t row = quotient(p, s.W), b = quotient(row, s.rows_out);
    const int64_t r = row - b * s.rows_out - s.before;
    return {int(b), int(r), int(p - row * s.W), r >= 0 && r < s.live(b)};
  }
  // The offset of tap (t, k) of a position in x; -1: it reads 0.
  __device__ int64_t offset(const Place& p, int t, int k) const {
    const int column = p.column + k * int(s.dilation) - int(s.margin);
    const int row = p.row * int(s.stride) + t * int(s.dilation);
    if (!p.live || column < 0 || column >= int(s.W)) return -1;
    return ((p.sequence * s.rows_in + row) * s.W + column) * s.C;
  }
  __device__ Y value(int64_t at) const { return Y(x[at]); }
};

// The input of the product in the data gradient: dy [B, rows_out, W, O] where y > 0, rounded to T.
template <class T, class Y>
struct Gradient {
  ConvSizes s;
  const Y *dy, *y;

  int64_t positions() const { return s.B * s.rows_in * s.W; }
  int64_t results() const { return s.C; }
  __device__ int channels() const { return int(s.O); }

  __device__ Place place(int64_t p) const {
    const int64_t row = quotient(p, s.W), b = quotient(row, s.rows_in), r = row - b * s.rows_in;
    const int64_t live = s.live(b);
    const bool reached = live > 0 && r <= (live - 1) * s.stride + (s.kT - 1) * s.dilation;
    return {int(b), int(r), int(p - row * s.W), reached};
  }
  __device__ int64_t offset(const Place& p, int t, int k) const {
    const int column = p.column - k * int(s.dilation) + int(s.margin);
    const int row = p.row - t * int(s.dilation), r = row / int(s.stride);
    if (!p.live || column < 0 || column >= int(s.W)) return -1;
    if (row < 0 || r * int(s.stride) != row || r >= s.live(p.sequence)) return -1;
    return ((p.sequence * s.rows_out + s.before + r) * s.W + column) * s.O;
  }
  __device__ Y value(int64_t at) const {
    if (s.relu && !(y[at] > 0)) return 0;
    return Y(T(dy[at]));
  }
};

// The part of the sum that a thread reads: a tap and a channel.
struct Term {
  int t = 0, k = 0, c = 0;

  // Advances; true when the tap changed.
  __device__ bool move(int by, int channels, int kW) {
    c += by;
    if (c < channels || channels == 0) return false;
    for (; c >= channels; c -= channels) {
      if (++k == kW) {
        k = 0;
        ++t;
      }
    }
    return true;
  }
};

// sum += left [steps, positions from `place` on] x right [steps, every 16th column from `column`
// on].
template <class Y, int columns>
__device__ inline void add_step(Y (&sum)[kPlaces][columns], const Y (&left)[kStep][kPadded],
                                const Y (&right)[kStep][kSide * columns], int place, int column) {
#pragma unroll 4
  for (int k = 0; k < kStep; ++k) {
    Y a[kPlaces];
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) a[i] = left[k][place + i];
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      const Y b = right[k][column + j * kSide];
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) sum[i][j] += a[i] * b;
    }
  }
}

// out [positions, N] = the sum over taps and channels of source * w [taps channels, N] + bias; 0 at
// positions that are not live. Threads take 8 positions and every 16th of 16 `columns` results.
template <class Source, class Y, int columns>
__global__ void __launch_bounds__(kSide* kSide)
    image_product_kernel(Source source, Y* out, const Y* w, const Y* bias, int64_t positions, int K,
                         int N, bool relu) {
  __shared__ __align__(16) Y left[kStep][kPadded];
  __shared__ Y right[kStep][kSide * columns];
  __shared__ Place places[kTile];
  const int tx = int(threadIdx.x) % kSide, ty = int(threadIdx.x) / kSide;
  const int64_t first = int64_t(blockIdx.x) * kTile + ty * kPlaces;
  const int column = int(blockIdx.y) * kSide * columns + tx;
  int any = 0;
  if (int(threadIdx.x) < kTile) {
    const int64_t p = int64_t(blockIdx.x) * kTile + threadIdx.x;
    const Place position = p < positions ? source.place(p) : Place{0, 0, 0, false};
    places[threadIdx.x] = position;
    any = position.live;
  }
  // Blocks that contain only padding have nothing to sum.
  const int end = block_reduce(any, 0, Max{}) ? K : 0;
  int64_t offsets[kPlaces];
  Y sum[kPlaces][columns] = {};
  Term term;
  bool moved = true;
  term.move(tx, source.channels(), int(source.s.kW));
  for (int k0 = 0; k0 < end; k0 += kStep) {
    if (moved) {
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        offsets[i] = source.offset(places[ty * kPlaces + i], term.t, term.k);
      }
    }
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const bool inside = k0 + tx < K && offsets[i] >= 0;
      left[tx][ty * kPlaces + i] = inside ? source.value(offsets[i] + term.c) : Y(0);
    }
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      const int o = column + j * kSide;
      right[ty][tx + j * kSide] = k0 + ty < K && o < N ? w[int64_t(k0 + ty) * N + o] : Y(0);
    }
    __syncthreads();
    add_step(sum, left, right, ty * kPlaces, tx);
    __syncthreads();
    moved = term.move(kStep, source.channels(), int(source.s.kW));
  }
#pragma unroll
  for (int i = 0; i < kPlaces; ++i) {
    if (first + i >= positions) break;
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      const int o = column + j * kSide;
      if (o >= N) continue;
      Y value = bias ? sum[i][j] + bias[o] : sum[i][j];
      if (!places[ty * kPlaces + i].live || (relu && !(value > 0))) value = 0;
      out[(first + i) * N + o] = value;
    }
  }
}

// The same for N <= kN results, which one thread sums; a block has the weights in shared memory,
// and neighbours read most of what a thread reads, so that it comes from the first cache.
template <class Source, class Y, int kN>
__global__ void __launch_bounds__(kThreads)
    few_channels_kernel(Source source, Y* out, const Y* w, const Y* bias, int64_t positions, int K,
                        int N, bool relu) {
  Y* weights = dynamic_shared<Y>();  // [taps channels, kN]
  for (int i = int(threadIdx.x); i < K * kN; i += kThreads) {
    weights[i] = i % kN < N ? w[i / kN * N + i % kN] : Y(0);
  }
  __syncthreads();
  const int64_t p = piece();
  if (p >= positions) return;
  const Place at = source.place(p);
  const int channels = source.channels(), kW = int(source.s.kW);
  Y sum[kN] = {};
  for (int tap = 0; at.live && tap < int(source.s.kT) * kW; ++tap) {
    const int64_t from = source.offset(at, tap / kW, tap % kW);
    if (from < 0) continue;
    for (int c = 0; c < channels; ++c) {
      Y weight[kN];
      load_wide<kN>(weight, weights + (tap * channels + c) * kN);
      const Y x = source.value(from + c);
#pragma unroll
      for (int o = 0; o < kN; ++o) sum[o] += x * weight[o];
    }
  }
#pragma unroll
  for (int o = 0; o < kN; ++o) {
    if (o >= N) break;
    Y value = bias ? sum[o] + bias[o] : sum[o];
    if (!at.live || (relu && !(value > 0))) value = 0;
    out[p * N + o] = value;
  }
}

// packed [taps, in, out] of w [O, C, taps]: `in` is C forward, O in the data gradient.
template <class T, class Y>
__global__ void pack_weights_kernel(Y* packed, const T* w, int64_t O, int64_t C, int64_t taps,
                                    bool forward) {
  const int64_t i = piece();
  if (i >= O * C * taps) return;
  const int64_t outs = forward ? O : C, ins = forward ? C : O;
  const int64_t to = i % outs, from = i / outs % ins, tap = i / outs / ins;
  packed[i] = Y(w[((forward ? to : from) * C + (forward ? from : to)) * taps + tap]);
}

template <int columns, class Source, class Y>
void launch_product(const Source& source, Y* out, const Y* w, const Y* bias, int64_t K, bool relu) {
  const int64_t positions = source.positions(), N = source.results();
  const dim3 grid(blocks_for(positions, kTile), blocks_for(N, kSide * columns));
  check(grid.y <= 65535, "conv2d: ", N, " channels are too many for one launch");
  launch("conv2d", image_product_kernel<Source, Y, columns>, grid, dim3(kSide * kSide), 0, source,
         out, w, bias, positions, int(K), int(N), relu);
}

template <int kN, class Source, class Y>
void launch_few(const Source& source, Y* out, const Y* w, const Y* bias, int64_t K, bool relu) {
  const int64_t positions = source.positions();
  launch("conv2d", few_channels_kernel<Source, Y, kN>, dim3(blocks_for(positions, kThreads)),
         dim3(kThreads), size_t(K * kN) * sizeof(Y), source, out, w, bias, positions, int(K),
         int(source.results()), relu);
}

// The columns of a tile: the number that leaves the fewest results unused; on a tie the larger one.
template <class T, class Source, class Y>
void multiply(const Source& source, Tensor out, Tensor w, const Y* bias, bool forward) {
  const ConvSizes& s = source.s;
  const int64_t N = source.results(), n = s.O * s.C * s.taps();
  if (source.positions() == 0 || N == 0) return;
  Tensor packed = Tensor::empty({n}, DtypeOf<Y>::value, w.device());
  launch_each("conv2d", n, pack_weights_kernel<T, Y>, packed.data<Y>(), w.data<T>(), s.O, s.C,
              s.taps(), forward);
  int best = 1;
  for (int columns = 2; columns <= 4; ++columns) {
    auto filled = [&](int c) { return (N + kSide * c - 1) / (kSide * c) * c; };
    if (filled(columns) <= filled(best)) best = columns;
  }
  const int64_t K = n / N;
  const bool relu = forward && s.relu;
  const bool few = N <= kFewResults && K <= kFewInputs * s.taps() &&
                   K * kFewResults * int64_t(sizeof(Y)) <= 32 * 1024;
  const auto run = few && N == 1   ? launch_few<1, Source, Y>
                   : few && N == 2 ? launch_few<2, Source, Y>
                   : few && N <= 4 ? launch_few<4, Source, Y>
                   : few           ? launch_few<8, Source, Y>
                   : best == 1     ? launch_product<1, Source, Y>
                   : best == 2     ? launch_product<2, Source, Y>
                   : best == 3     ? launch_product<3, Source, Y>
                                   : launch_product<4, Source, Y>;
  run(source, out.data<Y>(), packed.data<Y>(), bias, K, relu);
}

template <class T, class Y>
void forward(Tensor y, Tensor x, Tensor w, Tensor b, const ConvSizes& s) {
  multiply<T>(Image<T, Y>{s, x.data<T>()}, y, w, b.defined() ? b.data<Y>() : nullptr, true);
}

template <class T, class Y>
void data_gradient(Tensor dx, Tensor dy, Tensor w, Tensor y, const ConvSizes& s) {
  const Y* kept = s.relu ? y.data<Y>() : nullptr;
  multiply<T>(Gradient<T, Y>{s, dy.data<Y>(), kept}, dx, w, static_cast<const Y*>(nullptr), false);
}

}  // namespace

void conv2d(Tensor y, Tensor x, Tensor w, Tensor b, Convolution conf) {
  if (fused_conv2d(y, x, w, b, conf)) return;
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, conf, lengths);
  dispatch_image(x.dtype(), [&]<class T, class Y>() { forward<T, Y>(y, x, w, b, s); });
}

void conv2d_backward(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                     Convolution conf) {
  const OnDevice lengths(conf.lengths, x.device());
  if (dx.defined() && !fused_data_gradient(dx, dy, x, w, y, conf)) {
    const ConvSizes s(x, w, conf, lengths);
    dispatch_image(w.dtype(), [&]<class T, class Y>() { data_gradient<T, Y>(dx, dy, w, y, s); });
  }
  if (dw.defined() && fused_weight_gradient(dw, dy, x, w, y, conf)) dw = Tensor();
  if (dw.defined() || db.defined()) conv2d_weight_gradient(dw, db, dy, x, w, y, conf);
}

}  // namespace brine::cuda
