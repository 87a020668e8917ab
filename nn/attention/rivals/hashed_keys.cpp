// Buckets by random rotations, the order by buckets, and the lists of keys that follow from it.
#include "nn/attention/rivals/hashed_keys.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/ops.h"
#include "nn/attention/chosen_keys.h"
#include "tensor/base/parallel.h"
#include "tensor/functions/key_lists.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

constexpr int64_t kMaxDirections = 64;  // buckets of one rotation
constexpr int64_t kRotatedOfTile = int64_t(1) << 18;
constexpr uint64_t kRotations = 0x4c5348;  // a stream of random numbers
constexpr uint64_t kMetaQueries = 0x4d455441;

// The buckets of a sequence: each round has `factors` rotations into `directions` each, and a
// bucket is a combination of one direction of each. A sequence of one chunk is one bucket.
struct Buckets {
  int64_t factors = 0, directions = 2;

  Buckets(int64_t tokens, int64_t chunk) {
    if (tokens <= chunk) return;
    factors = 1;
    const double wanted = std::max(2.0, std::ceil(double(tokens) / double(chunk)));
    while (std::pow(double(kMaxDirections), double(factors)) < wanted) ++factors;
    const double each = std::ceil(std::pow(wanted, 1 / double(factors)) - 1e-9);
    directions = std::max<int64_t>(2, (int64_t(each) + 1) / 2 * 2);
  }
  int64_t columns(int64_t rounds) const { return rounds * factors * directions / 2; }
  int64_t count() const {
    int64_t n = 1;
    for (int64_t i = 0; i < factors; ++i) n *= directions;
    return n;
  }
};

// Gaussian columns, [d, columns].
Tensor rotations(int64_t d, int64_t columns, const Hashing& h, Dtype dtype, Device device) {
  const RandomSlice slice{h.seed, kRotations, 0};
  return Tensor::computed({d, columns}, dtype, device,
                          [&](int64_t i) { return slice.normal(uint64_t(i)); });
}

// The product of n random queries [n, d] with R [d, columns], by plain loops, so that the meter
// does not count it.
Tensor rotated_random_queries(int64_t n, int64_t d, const Hashing& h, int64_t columns) {
  const Tensor R = rotations(d, columns, h, Dtype::f32, {});
  Tensor y = Tensor::zeros({n, columns});
  const RandomSlice slice{0, kMetaQueries, 0};
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t c = 0; c < d; ++c) {
        const float x = float(slice.normal(uint64_t(i * d + c)));
        const float* from = R.data<float>() + c * columns;
        float* to = y.data<float>() + i * columns;
        for (int64_t j = 0; j < columns; ++j) to[j] += x * from[j];
      }
    }
  });
  return y;
}

// The largest of x and -x: its index among both.
template <class F>
int64_t direction(const F* x, int64_t half) {
  int64_t best = 0;
  F largest = x[0];
  for (int64_t i = 0; i < half; ++i) {
    if (x[i] > largest) largest = x[i], best = i;
    if (-x[i] > largest) largest = -x[i], best = half + i;
  }
  return best;
}

// Calls f(row, x) with every row [columns] of x [n, columns] of the CPU.
template <class F>
void each_row(const Tensor& x, int64_t first, F f) {
  dispatch_float(x.dtype(), [&]<class T>() {
    parallel_for(x.dim(0), 256, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f(first + r, x.data<T>() + r * x.dim(1));
    });
  });
}

// The same for the rotated rows of q [n, d], by tiles. For the meta device, where the products are
// only counted, the rows are random queries of one head.
template <class F>
void each_rotated(const Tensor& q, const Hashing& h, int64_t columns, int64_t rows_of_head, F f) {
  const int64_t n = q.dim(0), step = std::max<int64_t>(16, kRotatedOfTile / columns);
  const Tensor R = rotations(q.dim(1), columns, h, q.dtype(), q.device());
  const bool meta = q.device().is_meta();
  for (int64_t first = 0; first < n; first += step) {
    const Tensor x = matmul(q.slice(0, first, std::min(step, n - first)), R);
    if (!meta) each_row(x.to(Device{}), first, f);
  }
  if (meta) each_row(rotated_random_queries(rows_of_head, q.dim(1), h, columns), 0, f);
}

// The tokens of one head in the order of a round's buckets, and for each token the range of that
// order which it sees.
struct Order {
  int32_t* tokens;       // [L]
  int32_t *begin, *end;  // [L]
};

// bucket [L]; `starts` is for use as memory.
void sort_round(const Order& o, const int32_t* bucket, int64_t L, int64_t buckets, int64_t chunk,
                bool causal, std::vector<int32_t>& starts) {
  starts.assign(size_t(buckets + 1), 0);
  for (int64_t t = 0; t < L; ++t) ++starts[size_t(bucket[t] + 1)];
  for (int64_t i = 0; i < buckets; ++i) starts[size_t(i + 1)] += starts[size_t(i)];
  std::vector<int32_t> next(starts.begin(), starts.end() - 1);
  for (int64_t t = 0; t < L; ++t) {
    const int64_t at = next[size_t(bucket[t])]++;
    o.tokens[at] = int32_t(t);
    // Chunks are counted from the start of the bucket, or of the sequence.
    const int64_t from = causal ? starts[size_t(bucket[t])] : 0;
    const int64_t chunk_begin = from + (at - from) / chunk * chunk;
    o.begin[t] = int32_t(std::max(from, chunk_begin - chunk));
    o.end[t] = int32_t(causal ? at : std::min(L, chunk_begin + chunk));
  }
}

// The orders of all sequences, heads and rounds.
class Orders {
 public:
  // On the meta device one sequence and head of random queries.
  Orders(const Tensor& q, const Hashing& h, const Visibility& visible)
      : meta_(q.device().is_meta()),
        heads_(meta_ ? 1 : q.dim(1)),
        rounds_(h.rounds),
        rows_(q.dim(2)),
        tokens_(Tensor::empty({q.dim(0), heads_, rounds_, rows_}, Dtype::i32)),
        begin_(Tensor::like(tokens_)),
        end_(Tensor::like(tokens_)) {
    const RowWidths widths(visible, rows_);
    for (int64_t b = 0; b < q.dim(0); ++b) {
      const int64_t L = widths.valid(b);
      if (L == 0) continue;
      sort(b, q.slice(0, b, 1).slice(2, 0, L).contiguous().view({q.dim(1) * L, q.dim(3)}), L, h,
           visible.causal);
    }
  }

  // Appends the keys of a row, ascending.
  void list(int64_t b, int64_t h, int64_t t, std::vector<int32_t>& keys) const {
    for (int64_t round = 0; round < rounds_; ++round) {
      const Order o = order(b, meta_ ? 0 : h, round);
      for (int32_t i = o.begin[t]; i < o.end[t]; ++i)
        if (o.tokens[i] != t) keys.push_back(o.tokens[i]);
    }
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    if (keys.empty()) keys.push_back(int32_t(t));
  }

 private:
  Order order(int64_t b, int64_t h, int64_t round) const {
    const int64_t at = ((b * heads_ + h) * rounds_ + round) * rows_;
    return {tokens_.data<int32_t>() + at, begin_.data<int32_t>() + at, end_.data<int32_t>() + at};
  }

  // q [H L, d] of sequence b.
  void sort(int64_t b, const Tensor& q, int64_t L, const Hashing& h, bool causal) {
    const Buckets buckets(L, h.chunk);
    const int64_t half = buckets.directions / 2;
    Tensor bucket = Tensor::zeros({heads_, rounds_, L}, Dtype::i32);
    auto hash = [&](int64_t row, const auto* x) {
      for (int64_t round = 0; round < rounds_; ++round) {
        int64_t bucket_id = 0;
        for (int64_t i = 0; i < buckets.factors; ++i) {
          bucket_id = bucket_id * buckets.directions +
                      direction(x + (round * buckets.factors + i) * half, half);
        }
        bucket.data<int32_t>()[(row / L * rounds_ + round) * L + row % L] = int32_t(bucket_id);
      }
    };
    if (buckets.factors > 0) each_rotated(q, h, buckets.columns(rounds_), L, hash);
    parallel_for(heads_ * rounds_, 1, [&](int64_t first, int64_t last) {
      std::vector<int32_t> starts;
      for (int64_t i = first; i < last; ++i) {
        sort_round(order(b, i / rounds_, i % rounds_), bucket.data<int32_t>() + i * L, L,
                   buckets.count(), h.chunk, causal, starts);
      }
    });
  }

  bool meta_;
  int64_t heads_, rounds_, rows_;
  Tensor tokens_, begin_, end_;  // i32 [B, heads, rounds, T]
};

}  // namespace

FlatCsr hashed_keys(const Tensor& q, const Hashing& hashing, const Visibility& visible) {
  NoGrad off;
  const int64_t T = q.dim(2);
  const Orders orders(q.detach(), hashing, visible);
  const RowWidths widths(visible, T);
  return key_lists({.batch = q.dim(0), .heads = q.dim(1), .rows = T, .keys = T}, q.device(),
                   [&](int64_t b, int64_t h, int64_t t, std::vector<int32_t>& keys) {
                     if (widths(b, t) > 0) orders.list(b, h, t, keys);
                   });
}

void HashingConfig::describe(data::Schema& s) {
  s.field("k", k, "Tokens of a chunk; a row sees at most two chunks in each round", {.min = 1});
  s.field("rounds", rounds, "Rounds of hashing", {.min = 1});
  s.field("seed", seed, "Of the random rotations", {.min = 0});
  s.fixed("redraw_interval", {"0"});  // of files of earlier versions
}

Tensor hashed_attention(const AttentionInput& in, const HashingConfig& c) {
  std::optional<CostScope> part(std::in_place, "mask");
  const Hashing hashing{in.options.kept(c.k), c.rounds, uint64_t(c.seed)};
  const FlatCsr mask = hashed_keys(in.q, hashing, in.visible);
  part.reset();
  AttentionInput shared = in;
  // 1e-12: a query of zeros is a key of zeros.
  shared.k = div(in.q, sqrt(sum(mul(in.q, in.q), {-1}, true) + 1e-12));
  shared.v = repeat_heads(in.v, in.q.dim(1) / in.v.dim(1));
  return attend_on(shared, mask);
}

}  // namespace brine::nn
