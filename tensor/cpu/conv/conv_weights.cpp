// Gradient of convolution weights and bias: one small product per tap, accumulated in registers.
//
// oneDNN's implementation uses im2col for dilated images and splits by threads. Here a block of
// rows is packed so that for every tap the sum over positions reads two contiguous streams: x as
// [tile of C][row][W + margins][kRows], dy as [tile of O][row][W][vectors].
#include <cstring>
#include <vector>

#include "tensor/cpu/conv/conv.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/vectors.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int kBytes = kVectorBytes;
// Sums in registers: 16, 16 or 24 of 32 (with one vector per row there would be too few to hide the
// latency of the additions), or twelve of 16, which are enough for that.
constexpr int rows_for(int vectors) {
  if (kRegisters == 32) return vectors == 1 ? 16 : 8;
  return vectors == 3 ? 4 : 6;
}

constexpr int64_t kPositions = 256;  // of dy that are packed at a time

// acc [height, NV vectors] += sum over rows and columns of x [height] (outer) dy [NV vectors]. Not
// inlined: inlined, GCC does not keep the sums in registers.
template <class T, int NV>
[[gnu::noinline]] void add_positions(T* acc, const T* x, int64_t x_row, const T* dy, int64_t rows,
                                     int64_t W) {
  typedef T V __attribute__((vector_size(kBytes), aligned(sizeof(T))));
  constexpr int kLanes = kBytes / int(sizeof(T)), kRows = rows_for(NV);
  V c[kRows][NV];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < NV; ++j) c[i][j] = *reinterpret_cast<const V*>(acc + (i * NV + j) * kLanes);
  }
  for (int64_t r = 0; r < rows; ++r, x += x_row) {
    const T* a = x;
    for (int64_t p = 0; p < W; ++p, a += kRows, dy += NV * kLanes) {
      V b[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        b[j] = *reinterpret_cast<const V*>(dy + j * kLanes);
        // Otherwise GCC reloads the vector for every use.
#if defined(__AVX__)
        asm("" : "+x"(b[j]));
#elif defined(__aarch64__)
        asm("" : "+w"(b[j]));
#endif
      }
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        V v = a[i] - V{};
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) c[i][j] += v * b[j];
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < NV; ++j) *reinterpret_cast<V*>(acc + (i * NV + j) * kLanes) = c[i][j];
  }
}

// One run of row blocks: its packed block and its sums.
template <class T>
struct WeightRun {
  static constexpr int kLanes = kBytes / int(sizeof(T));
  const ConvSizes& s;
  const Convolution& conf;
  int64_t block;  // rows of dy packed at a time
  int vectors;    // per tile of O
  int height;     // channels of a tile of C
  int64_t tiles_c, tiles_o, wide;
  T *x = nullptr, *dy = nullptr;  // packed, in aligned memory; zeros where nothing is written
  std::vector<T> row, total;

  WeightRun(const ConvSizes& s, const Convolution& conf)
      : s(s),
        conf(conf),
        block(std::max<int64_t>(1, (kPositions + s.W - 1) / s.W)),
        vectors(vectors_for(s.O)),
        height(rows_for(vectors)),
        tiles_c((s.C + height - 1) / height),
        tiles_o((s.O + vectors * kLanes - 1) / (vectors * kLanes)),
        wide(s.W + 2 * s.margin) {}

  // The number of vectors per tile that leaves the fewest lanes unused; on a tie the larger one.
  static int vectors_for(int64_t O) {
    int64_t all = (O + kLanes - 1) / kLanes;
    int best = 1;
    for (int v = 2; v <= 3; ++v) {
      if ((all + v - 1) / v * v <= (all + best - 1) / best * best) best = v;
    }
    return best;
  }

  int64_t rows_of_x() const { return (block - 1) * conf.stride + 1 + s.reach; }
  int64_t tile() const { return height * vectors * kLanes; }
  // Sums [tap, tile of C, tile of O, height, lanes].
  int64_t sums() const { return s.kT * s.kW * tiles_c * tiles_o * tile(); }

  int64_t packed_x() const {  // whole cache lines
    return (tiles_c * rows_of_x() * wide * height + 15) / 16 * 16;
  }
  int64_t memory() const { return packed_x() + tiles_o * block * s.W * vectors * kLanes; }

  void place(T* memory_of_run) {
    x = memory_of_run;
    dy = x + packed_x();
    std::fill(x, x + memory(), T(0));
    row.resize(size_t(s.W * s.O));
    total.resize(size_t(s.O));
  }

  void pack_x(const T* from, int64_t rows) {
    if (height == 4) {
      pack_x<4>(from, rows);
    } else if (height == 6) {
      pack_x<6>(from, rows);
    } else if (height == 8) {
      pack_x<8>(from, rows);
    } else {
      pack_x<16>(from, rows);
    }
  }

  template <int H>
  void pack_x(const T* from, int64_t rows) {
    for (int64_t t = 0; t < tiles_c; ++t) {
      int64_t n = std::min<int64_t>(H, s.C - t * H);
      for (int64_t r = 0; r < rows; ++r) {
        const T* in = from + r * s.W * s.C + t * H;
        T* out = x + ((t * rows_of_x() + r) * wide + s.margin) * H;
        for (int64_t w = 0; w < s.W; ++w, in += s.C, out += H) {
          if (n == H) {
            std::memcpy(out, in, H * sizeof(T));
          } else {
            std::copy(in, in + n, out);
          }
        }
      }
    }
  }

  // Packs and sums the rows of the gradient; db [O] in f64 is accumulated by row.
  void pack_dy(const T* from, const T* y, int64_t rows, double* bias) {
    int64_t width = vectors * kLanes, n = s.W * s.O;
    for (int64_t r = 0; r < rows; ++r, from += n) {
      const T* in = from;
      if (y) {
        sum_gradient_row(row.data(), from, y + r * n, n, true);
        in = row.data();
      }
      for (int64_t t = 0; t < tiles_o; ++t) {
        int64_t lanes = std::min(width, s.O - t * width);
        T* out = dy + (t * block + r) * s.W * width;
        for (int64_t w = 0; w < s.W; ++w) {
          std::memcpy(out + w * width, in + w * s.O + t * width, size_t(lanes) * sizeof(T));
        }
      }
      std::fill(total.begin(), total.end(), T(0));
      for (int64_t w = 0; w < s.W; ++w) {
#pragma omp simd
        for (int64_t o = 0; o < s.O; ++o) total[size_t(o)] += in[w * s.O + o];
      }
      for (int64_t o = 0; o < s.O; ++o) bias[o] += double(total[size_t(o)]);
    }
  }

  void multiply(T* sums, int64_t rows) const {
    int64_t width = vectors * kLanes, step = conf.stride * wide * height;
    for (int64_t o = 0; o < tiles_o; ++o) {
      const T* b = dy + o * block * s.W * width;
      for (int64_t c = 0; c < tiles_c; ++c) {
        for (int64_t tap = 0; tap < s.kT * s.kW; ++tap) {
          int64_t down = tap / s.kW * conf.dilation, aside = tap % s.kW * conf.dilation;
          const T* a = x + ((c * rows_of_x() + down) * wide + aside) * height;
          T* acc = sums + ((tap * tiles_c + c) * tiles_o + o) * tile();
          if (vectors == 1) {
            add_positions<T, 1>(acc, a, step, b, rows, s.W);
          } else if (vectors == 2) {
            add_positions<T, 2>(acc, a, step, b, rows, s.W);
          } else {
            add_positions<T, 3>(acc, a, step, b, rows, s.W);
          }
        }
      }
    }
  }

  // The index in the sums of the weight of channels c -> o at a tap.
  int64_t place_of(int64_t o, int64_t c, int64_t tap) const {
    const int64_t width = vectors * kLanes;
    return ((tap * tiles_c + c / height) * tiles_o + o / width) * tile() + c % height * width +
           o % width;
  }
};

template <class T>
void weight_gradient(Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                     const Convolution& conf) {
  const ConvSizes s(x, w, conf);
  const WeightRun<T> plan(s, conf);
  const int64_t blocks = (s.rows + plan.block - 1) / plan.block, all = s.B * blocks;
  // At most 32 runs, of at least 4 blocks: each has separate sums, which are added in order.
  const int64_t length = std::max<int64_t>(4, (all + 31) / 32), runs = (all + length - 1) / length;
  Tensor sums = Tensor::empty({runs, plan.sums()}, x.dtype());
  Tensor biases = Tensor::empty({runs, s.O}, Dtype::f64);
  const PieceMemory<T> memory(runs, plan.memory());
  parallel_for(runs, 1, [&](int64_t run, int64_t) {
    const auto lease = memory.lease();
    WeightRun<T> local(s, conf);
    local.place(lease.data());
    T* sum = sums.data<T>() + run * plan.sums();
    double* bias = biases.data<double>() + run * s.O;
    std::fill(sum, sum + plan.sums(), T(0));
    std::fill(bias, bias + s.O, 0.0);
    for (int64_t i = run * length; i < std::min(all, (run + 1) * length); ++i) {
      int64_t sequence = i / blocks, r = i % blocks * plan.block;
      int64_t rows = std::min(plan.block, live_rows(conf, sequence, s.rows) - r);
      if (rows <= 0) continue;
      int64_t at = s.result_row(sequence, r);
      local.pack_dy(dy.data<T>() + at, conf.relu ? y.data<T>() + at : nullptr, rows, bias);
      if (!dw.defined()) continue;
      local.pack_x(x.data<T>() + (sequence * s.rows_in + r * conf.stride) * s.W * s.C,
                   (rows - 1) * conf.stride + 1 + s.reach);
      local.multiply(sum, rows);
    }
  });
  // The runs' sums are added in place, in order, and then unpacked.
  Tensor totals = Tensor::empty({plan.sums()}, Dtype::f64);
  double* total = totals.data<double>();
  parallel_for(dw.defined() ? plan.sums() : 0, 1024, [&](int64_t begin, int64_t end) {
    std::fill(total + begin, total + end, 0.0);
    for (int64_t run = 0; run < runs; ++run) {
      const T* from = sums.data<T>() + run * plan.sums();
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) total[i] += double(from[i]);
    }
  });
  const int64_t taps = s.kT * s.kW;
  for (int64_t o = 0; o < s.O; ++o) {
    for (int64_t i = 0; dw.defined() && i < s.C * taps; ++i) {
      dw.data<T>()[o * s.C * taps + i] += T(total[plan.place_of(o, i / taps, i % taps)]);
    }
    double sum = 0;
    for (int64_t run = 0; run < runs; ++run) sum += biases.data<double>()[run * s.O + o];
    if (db.defined()) db.data<T>()[o] += T(sum);
  }
}

}  // namespace

void conv2d_weight_gradient(Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                            const Convolution& conf) {
  dispatch_float(x.dtype(), [&]<class T>() { weight_gradient<T>(dw, db, dy, x, w, y, conf); });
}

}  // namespace brine::BRINE_CPU
