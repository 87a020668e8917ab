// The parts of blocks: clusters of neighbouring rows around rows that are far apart.
#include <cmath>
#include <limits>
#include <vector>

#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/blocks.h"

namespace brine::BRINE_CPU {
namespace {

template <class T>
class Clusters {
 public:
  // means [parts, d], logs [parts] of rows x [size, d] with the logarithms of their keys, or null.
  void write(T* means, T* logs, const T* x, const T* x_logs, int64_t size, int64_t parts,
             int64_t d) {
    size_ = size;
    parts_ = parts;
    d_ = d;
    step_ = whole_vectors<T>(size);
    turned_.resize(size_t(step_ * d));
    turn<true>(Lanes<T>{turned_.data(), step_}, Lanes<const T>{x, d}, size, d,
               [](int64_t) { return T(1); });
    assign(x, x_logs);
    std::fill_n(means, parts_ * d_, T(0));
    keys_.assign(size_t(parts_), T(0));
    for (int64_t s = 0; s < size_; ++s) {
      const T keys = x_logs ? std::round(std::exp(x_logs[s])) : T(1);
      keys_[size_t(owner_[size_t(s)])] += keys;
      T* mean = means + owner_[size_t(s)] * d_;
#pragma omp simd
      for (int64_t c = 0; c < d_; ++c) mean[c] += keys * x[s * d_ + c];
    }
    for (int64_t p = 0; p < parts_; ++p) {
      const T keys = keys_[size_t(p)];
      logs[p] = keys > 0 ? std::log(keys) : T(kNoKeysLog);
      for (int64_t c = 0; c < d_ && keys > 0; ++c) means[p * d_ + c] /= keys;
    }
  }

 private:
  void assign(const T* x, const T* x_logs) {
    owner_.assign(size_t(size_), 0);
    nearest_.resize(size_t(size_));
    for (int64_t s = 0; s < size_; ++s) {
      // A row of no keys is never a centre.
      nearest_[size_t(s)] =
          x_logs && x_logs[s] <= T(kNoKeysLog) ? T(-1) : std::numeric_limits<T>::infinity();
    }
    for (int64_t p = 0, centre = 0; p < parts_; ++p) {
      distance_.assign(size_t(step_), T(0));
      for (int64_t c = 0; c < d_; ++c) {
        const T at = x[centre * d_ + c];
        const T* row = turned_.data() + c * step_;
#pragma omp simd
        for (int64_t s = 0; s < step_; ++s) {
          const T difference = row[s] - at;
          distance_[size_t(s)] += difference * difference;
        }
      }
      centre = 0;
      for (int64_t s = 0; s < size_; ++s) {
        if (distance_[size_t(s)] < nearest_[size_t(s)]) {
          nearest_[size_t(s)] = distance_[size_t(s)];
          owner_[size_t(s)] = p;
        }
        if (nearest_[size_t(s)] > nearest_[size_t(centre)]) centre = s;
      }
    }
  }

  int64_t size_ = 0, parts_ = 0, d_ = 0, step_ = 0;
  std::vector<T> turned_;  // [d, step]
  std::vector<T> nearest_, distance_, keys_;
  std::vector<int64_t> owner_;
};

}  // namespace

void block_parts(Tensor means, Tensor logs, Tensor x, Tensor x_logs, int64_t size, int64_t parts) {
  const int64_t N = logs.dim(2) / parts, rows = x.dim(2), d = x.dim(3);
  dispatch_float(x.dtype(), [&]<class T>() {
    for_pieces(x.dim(0) * x.dim(1) * N, x.numel() * parts, [&](int64_t i) {
      thread_local Clusters<T> clusters;
      const int64_t first = i / N * rows + i % N * size;
      clusters.write(means.data<T>() + i * parts * d, logs.data<T>() + i * parts,
                     x.data<T>() + first * d, x_logs.defined() ? x_logs.data<T>() + first : nullptr,
                     size, parts, d);
    });
  });
}

}  // namespace brine::BRINE_CPU
