// Independent pieces of work, shared among threads when there is enough of it.
#pragma once

#include "tensor/kernel.h"
#include "tensor/parallel.h"

namespace brine::BRINE_CPU {

// f(i) for every i in [0, n). `work` is about how many multiply-adds all pieces take together;
// little work stays on the calling thread, where it is done before others would have woken up.
template <class F>
void for_pieces(int64_t n, int64_t work, F&& f) {
  constexpr int64_t kShared = 1 << 15;
  parallel_for(n, work < kShared ? n : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

}  // namespace brine::BRINE_CPU
