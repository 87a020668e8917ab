// Host code of linear attention: the length of chunks, the groups per turn, and the launches that
// sum the chunks.
#pragma once

#include "tensor/cuda/core/running_sum.cuh"
#include "tensor/cuda/core/scratch.h"
#include "tensor/cuda/estimator/chunk_length.h"
#include "tensor/cuda/estimator/linear_attention.cuh"

namespace brine::cuda::chunked {

constexpr int64_t kManyChunks = 64;  // of a group, if all its rows see all its keys

// Chunks also grow if even one group's states take too much memory.
inline int64_t chunk_rows(int64_t tokens, int64_t m, int64_t e, int64_t heads, bool causal,
                          bool backward, int64_t item) {
  int64_t rows = causal ? causal_chunk(m, e, heads, backward)
                        : kTile * std::max<int64_t>(1, tokens / (kTile * kManyChunks));
  while (rows < tokens && (tokens + rows - 1) / rows * m * e * item > scratch_limit()) rows *= 2;
  return rows;
}

// Tiles of a triangle that a block keeps: those of its chunk, if the device has room for them.
template <class T>
int kept_tiles(int64_t chunk, int64_t sets) {
  const int64_t room =
      (int64_t(most_shared()) - int64_t(sizeof(Shared<T>))) / int64_t(sizeof(WeightTile<T>));
  return int(std::max<int64_t>(1, std::min({room, chunk_limits().kept, chunk / kTile * sets})));
}

template <class T>
Work<T> work_of(const Tensor& phi_q, const Tensor& phi_k, const Tensor& identity, const Tensor& v,
                const RowWidths& widths, bool backward) {
  Work<T> work{};
  work.groups = phi_k.dim(1);
  work.heads = phi_q.dim(1) / phi_k.dim(1);
  work.tokens = int(phi_k.dim(2));
  work.m = int(phi_k.dim(3));
  work.i = identity.defined() ? int(identity.dim(-1)) : 0;
  work.d = int(v.dim(3));
  work.identity_step = work.i && identity.rank() == 3 ? phi_k.dim(2) * work.i : 0;
  work.chunk = int(chunk_rows(work.tokens, work.m, work.e(), work.heads, widths.causal, backward,
                              int64_t(sizeof(T))));
  work.chunks = (work.tokens + work.chunk - 1) / work.chunk;
  work.kept = widths.causal ? kept_tiles<T>(work.chunk, backward ? work.heads : 1) : 0;
  work.widths = widths;
  work.q = phi_q.data<T>();
  work.k = phi_k.data<T>();
  work.v = v.data<T>();
  work.identity = work.i ? identity.data<T>() : nullptr;
  auto whole = [](int64_t numbers) { return numbers % kPack<T> == 0; };
  work.m_whole = whole(work.m) && aligned(16, work.q, work.k);
  // The gradient of the values begins at column i where that of the identity is not needed.
  work.e_whole = whole(work.e()) && whole(work.i);
  work.values_whole = whole(work.i) && whole(work.d) && aligned(16, work.v, work.identity);
  return work;
}

// A kernel whose blocks compute tiles of the rows of `heads` heads and of `columns` columns; its
// last argument is the columns of a block.
template <class T, class... P, class... A>
void launch_tiles(const char* name, const Work<T>& work, int64_t heads, int64_t columns,
                  void (*kernel)(P...), A... args) {
  const int64_t rows = heads * tiles_in(work.tokens);
  const int64_t span = block_columns(rows, columns, work.widths.causal);
  launch(name, kernel, dim3(blocks_for(rows * ((columns + span - 1) / span), 1)), dim3(kThreads),
         kept_bytes<T>(work.kept), args..., int(span));
}

// Groups of one turn, and the memory of their states. Without a causal mask the chunks are summed
// into one total.
template <class T>
class Turn {
 public:
  Turn(const Work<T>& work, int64_t all, Device device) : work_(work) {
    const int64_t size = int64_t(work.m) * work.e(), chunks = std::max(1, work.chunks);
    groups_ = heads_per_turn(all, chunks * size * int64_t(sizeof(T)));
    state_ = Tensor::empty(Shape{groups_, chunks, work.m, work.e()}, DtypeOf<T>::value, device);
    sums_ = Tensor::empty(Shape{groups_, chunks, work.m}, Dtype::f64, device);
    if (work.widths.causal) return;
    total_ = Tensor::empty(Shape{groups_, work.m, work.e()}, DtypeOf<T>::value, device);
    total_sums_ = Tensor::empty(Shape{groups_, work.m}, Dtype::f64, device);
  }

  int64_t groups() const { return groups_; }

  // The start values of all rows of `count` groups from `first` on: the sums over the chunks before
  // their chunk, kLater: after it.
  template <bool kLater>
  States<T> states(const char* name, int64_t first, int64_t count) const {
    const bool causal = work_.widths.causal;
    chunk_sums<kLater>(name, first, count);
    if (!causal) {
      total(name, total_.template data<T>(), total_sums_.data<double>(), count);
      return {total_.template data<T>(), total_sums_.data<double>()};
    }
    const int64_t size = int64_t(work_.m) * work_.e(), m = work_.m;
    sums_before(name, state_.template data<T>(), count, work_.chunks, size, kLater,
                state_.device());
    sums_before(name, sums_.data<double>(), count, work_.chunks, m, kLater, state_.device());
    return {state_.template data<T>(), sums_.data<double>()};
  }

  // state [count, m, e] and sums [count, m] over all keys.
  void all_keys(const char* name, T* state, double* sums, int64_t first, int64_t count) const {
    chunk_sums<false>(name, first, count);
    total(name, state, sums, count);
  }

 private:
  template <bool kLater>
  void chunk_sums(const char* name, int64_t first, int64_t count) const {
    const int64_t blocks = count * work_.chunks * tiles_in(work_.m) * tiles_in(work_.e());
    if (blocks == 0) return;
    dispatch_products<T>([&]<bool kTensor>() {
      launch(name, chunk_sums_kernel<T, kLater, kTensor>, dim3(blocks_for(blocks, 1)),
             dim3(kThreads), 0, state_.template data<T>(), sums_.data<double>(), work_, first);
    });
  }

  void total(const char* name, T* state, double* sums, int64_t count) const {
    const int64_t size = int64_t(work_.m) * work_.e(), m = work_.m;
    sum_chunks(name, state, state_.template data<T>(), count, work_.chunks, size, state_.device());
    sum_chunks(name, sums, sums_.data<double>(), count, work_.chunks, m, state_.device());
  }

  Work<T> work_;
  int64_t groups_ = 0;
  Tensor state_, sums_, total_, total_sums_;
};

}  // namespace brine::cuda::chunked
