// The estimate of a table's columns in one pass: prior, mean keys and softmax of a cached row.
#include <cmath>
#include <limits>
#include <vector>

#include "tensor/cpu/core/softmax_row.h"
#include "tensor/cpu/estimator/column_passes.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {
namespace {

// y = softmax over the columns of the row that own a key, 0 elsewhere. begin [K + 1].
template <class T>
void softmax_of_owners(T* y, T* row, const int32_t* begin, int64_t w, int64_t K) {
  if (w < K) {
    for (int64_t c = 0; c < K; ++c) {
      if (begin[c + 1] == begin[c]) row[c] = -std::numeric_limits<T>::infinity();
    }
  }
  softmax_row(y, row, K);
}

// The rows of tasks.
template <class T>
class Estimates {
 public:
  // bias [H, K], gain and mean_gain [H].
  Estimates(const ColumnSums<T>& shares, const ColumnSums<T>& means, const T* bias, const T* gain,
            const T* mean_gain, double floor)
      : shares_(shares),
        means_(means),
        bias_(bias),
        gain_(gain),
        mean_gain_(mean_gain),
        floor_(floor),
        scale_(1 / std::sqrt(double(means.m))) {}

  // y [B, H, T, K] from the task's rows.
  void operator()(int64_t task, const ColumnMemory<T>& of_shares, const ColumnMemory<T>& of_means,
                  const PieceMemory<T>& rows, T* y) const {
    const auto wide = of_shares.wide.lease(), wide_means = of_means.wide.lease();
    const auto share_sums = of_shares.sums.lease(), mean_sums = of_means.sums.lease(),
               room = rows.lease();
    ColumnGroup<T> share(shares_, task, wide.data(), share_sums.data());
    ColumnGroup<T> mean(means_, task, wide_means.data(), mean_sums.data());
    const int64_t K = shares_.K, of_head = shares_.rows * K, of_room = ColumnSums<T>::kRows * K;
    T* to = y + share.head(0) * of_head;
    T *row = room.data(), *means = row + shares_.task_heads() * of_room;
    std::vector<int32_t> begin(size_t(K + 1));
    auto one = [](int64_t) { return T(1); };
    auto band = [&](int64_t first, int64_t count) {
      T *q = share_sums.data() + 2 * shares_.window_array(),
        *q_means = mean_sums.data() + 2 * means_.window_array();
      share.load_queries(first, count, one, q);
      share.products(first, count, q, row, of_room);
      mean.enter(first);
      mean.load_queries(first, count, one, q_means);
      mean.products(first, count, q_means, means, of_room);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t w = share.width(first + r);
        shares_.fill_starts(w, 0, K + 1, begin.data());
        for (int64_t h = 0; h < shares_.task_heads(); ++h) {
          const int64_t at = h * of_room + r * K;
          estimate(share.head(h), first + r, w, begin.data(), row + at, means + at,
                   to + h * of_head + (first + r) * K);
        }
      }
    };
    const int64_t seen = share.bands(band, [](const auto&) {});
    for (int64_t h = 0; h < shares_.task_heads(); ++h) {
      std::fill(to + h * of_head + seen * K, to + h * of_head + share.end_row() * K, T(0));
    }
  }

 private:
  // The products of a row become its estimate.
  void estimate(int64_t n, int64_t r, int64_t w, const int32_t* begin, T* row, T* means,
                T* y) const {
    const int64_t K = shares_.K, h = n % shares_.heads;
    shares_.share_row(begin, n, r, floor_).add_logs(row, bias_ + h * K, gain_[h], row);
    take_means(begin, w, K, shares_.unit_of(w), scale_, means, means);
    add_scaled(row, row, means, mean_gain_[h], K);
    softmax_of_owners(y, row, begin, w, K);
  }

  const ColumnSums<T>&shares_, &means_;
  const T *bias_, *gain_, *mean_gain_;
  double floor_, scale_;
};

}  // namespace

void table_estimate(Tensor y, Tensor bias, Tensor gain, Tensor phi_q, Tensor phi_k,
                    Tensor mean_gain, Tensor q, Tensor k, Visibility visible, ColumnGrid grid,
                    double floor) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t K = y.dim(3);
    const ColumnSums<T> shares(phi_q, phi_k, visible, K, grid), means(q, k, visible, K, grid);
    const ColumnMemory<T> of_shares(shares, false), of_means(means, false);
    const PieceMemory<T> rows(shares.tasks(), 2 * shares.task_heads() * ColumnSums<T>::kRows * K);
    const Estimates<T> estimates(shares, means, bias.data<T>(), gain.data<T>(), mean_gain.data<T>(),
                                 floor);
    T* to = y.data<T>();
    parallel_for(shares.tasks(), 1,
                 [&](int64_t task, int64_t) { estimates(task, of_shares, of_means, rows, to); });
  });
}

}  // namespace brine::BRINE_CPU
