// Independent pieces of work, distributed over threads if there is enough of it.
#pragma once

#include <atomic>
#include <memory>

#include "tensor/base/dtype.h"
#include "tensor/base/parallel.h"
#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

// f(i) for every i in [0, n). `work` is the approximate number of multiply-adds of all pieces;
// little work stays on the calling thread, which finishes before other threads would have started.
template <class F>
void for_pieces(int64_t n, int64_t work, F&& f) {
  constexpr int64_t kShared = 1 << 15;
  parallel_for(n, work < kShared ? n : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

constexpr int64_t kGrain = 16384;  // elements of a piece of an elementwise loop

// f(row) for each of `rows` rows of C elements, in parallel pieces of about kGrain elements.
template <class F>
void each_row(int64_t rows, int64_t C, F f) {
  parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(C, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) f(r);
               });
}

// Memory for the pieces of a parallel loop, one part for each that may run concurrently. It is
// allocated before the loop: if pieces allocated it, the peak would depend on scheduling, and with
// many threads a late training step could still request memory from the system.
template <class T>
class PieceMemory {
 public:
  // `size` numbers for each of `pieces`.
  PieceMemory(int64_t pieces, int64_t size)
      : size_((size + kLine - 1) / kLine * kLine),
        parts_(omp_in_parallel() ? 1 : std::min<int64_t>(pieces, omp_get_max_threads())),
        taken_(new std::atomic_flag[size_t(parts_)]()),
        all_(Tensor::empty({parts_, size_}, DtypeOf<T>::value)) {}

  // A part that is not shared while the lease lives; it starts at a cache line and has unspecified
  // contents.
  class Lease : NonCopyable {
   public:
    explicit Lease(const PieceMemory& from) {
      int64_t i = 0;
      while (from.taken_[size_t(i)].test_and_set(std::memory_order_acquire)) {
        i = i + 1 == from.parts_ ? 0 : i + 1;
      }
      taken_ = &from.taken_[size_t(i)];
      data_ = from.all_.template data<T>() + i * from.size_;
    }
    ~Lease() { taken_->clear(std::memory_order_release); }
    T* data() const { return data_; }

   private:
    std::atomic_flag* taken_;
    T* data_;
  };
  Lease lease() const { return Lease(*this); }

 private:
  static constexpr int64_t kLine = 64 / sizeof(T);
  int64_t size_, parts_;
  std::unique_ptr<std::atomic_flag[]> taken_;
  Tensor all_;
};

}  // namespace brine::BRINE_CPU
