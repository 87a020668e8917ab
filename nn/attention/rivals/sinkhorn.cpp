// Attention to the bucket of tokens that contains the query and to one that is sorted to it: the
// blocks of keys and values are mixed by a matrix of scores between buckets that Sinkhorn's
// iterations balance to nearly a permutation (Tay et al. 2020, "Sparse Sinkhorn Attention"). The
// scores are products of the mean query and the mean key of buckets plus learned vectors of their
// positions. In a decoder only earlier buckets are sorted to a bucket, whose mean query is that of
// all tokens up to its first one, and columns are normalised over the rows so far. Time
// O(T k + T^2 / k), memory O(T k) and maps of (T / k)^2.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "nn/attention/attention.h"
#include "nn/attention/rivals/row_tiles.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct SinkhornConfig {
  int64_t k = 64, iterations = 8;
  double temperature = 0.75;
  bool gumbel = true;

  void describe(data::Schema& s) {
    s.field("k", k, "Tokens of a bucket; a query sees its own and a sorted one", {.min = 1});
    s.field("iterations", iterations, "Sinkhorn iterations", {.min = 1});
    s.field("temperature", temperature, "Divides the scores between buckets", {.min = 1e-3});
    s.field("gumbel", gumbel, "Training adds Gumbel noise to the scores between buckets");
  }
};

// One sequence of L tokens in buckets of k, the last one padded with zeros.
struct TokenBuckets {
  int64_t length, size, count;

  TokenBuckets(int64_t length, int64_t size)
      : length(length), size(size), count((length + size - 1) / size) {}

  // x [1, H, T, d] -> [H, buckets, size, d].
  Tensor cut(const Tensor& x) const {
    const int64_t H = x.dim(1), d = x.dim(3), rest = count * size - length;
    Tensor y = slice(x, 2, 0, length);
    if (rest > 0) y = concat({y, Tensor::zeros({1, H, rest, d}, x.dtype(), x.device())}, 2);
    return reshape(y, {H, count, size, d});
  }
  // The mean of each bucket of x [H, buckets, size, d]: [H, buckets, d].
  Tensor means(const Tensor& x) const {
    const Tensor share = Tensor::computed({count, 1}, x.dtype(), x.device(), [&](int64_t i) {
      return 1 / double(std::min(size, length - i * size));
    });
    return sum(x, {2}) * share;
  }
  // u8 [H, buckets, size, 2 size]: which keys of the sorted and of the local bucket a query sees.
  Tensor seen(int64_t H, bool causal, Device device) const {
    const Shape shape{H, count, size, 2 * size};
    return Tensor::filled(shape, Dtype::u8, device, [&](const Tensor& x) {
      uint8_t* to = x.data<uint8_t>();
      for (int64_t t = 0; t < count * size; ++t) {
        const int64_t bucket = t / size;
        for (int64_t p = 0; p < size; ++p)
          to[2 * size * t + p] = t < length && (causal ? bucket > 0 : count > 1 || p < length);
        for (int64_t p = 0; p < size; ++p) {
          const int64_t key = bucket * size + p;
          to[2 * size * t + size + p] = t < length && key < length && (!causal || key <= t);
        }
      }
      const int64_t one = count * size * 2 * size;
      for (int64_t h = 1; h < H; ++h) std::copy_n(to, one, to + h * one);
    });
  }
  // u8 [buckets, buckets]: which buckets (columns) may be sorted to which (rows).
  Tensor sortable(bool causal, Device device) const {
    return Tensor::filled({count, count}, Dtype::u8, device, [&](const Tensor& x) {
      for (int64_t i = 0; i < x.numel(); ++i)
        x.data<uint8_t>()[i] = !causal || i % count < i / count;
    });
  }
};

class Sinkhorn : public Attention {
 public:
  Sinkhorn(Init& init, const AttentionShape& shape, const SinkhornConfig& config)
      : config_(config),
        shape_(shape),
        query_positions_(parameter("query_positions", positions(init), false)),
        key_positions_(parameter("key_positions", positions(init), false)) {}

  AttentionTraits traits() const override { return {.quadratic = true, .groups = true}; }

  Tensor forward(const AttentionInput& in) override {
    const int64_t B = in.q.dim(0), T = in.q.dim(2);
    check(T <= shape_.max_positions, "sinkhorn: ", T, " tokens, but the model has ",
          shape_.max_positions, " positions");
    CostScope part("attention");
    const RowWidths widths(in.visible, T);
    const Tensor k = repeat_heads(in.k, shape_.heads_per_group());
    const Tensor v = repeat_heads(in.v, shape_.heads_per_group());
    std::vector<Tensor> parts;
    for (int64_t b = 0; b < B; ++b) {
      auto sequence_slice = [b](const Tensor& x) { return slice(x, 0, b, 1); };
      parts.push_back(sequence(sequence_slice(in.q), sequence_slice(k), sequence_slice(v),
                               widths.valid(b), in.random));
    }
    return merge_heads(concat(parts, 0));
  }

 private:
  Tensor positions(Init& init) const {
    const int64_t buckets = (shape_.max_positions + config_.k - 1) / config_.k;
    return init.normal({shape_.heads, buckets, shape_.head_size}, init.linear_std);
  }

  // q, k and v [1, H, T, d] -> [1, H, T, d], 0 from row L on.
  Tensor sequence(const Tensor& q, const Tensor& k, const Tensor& v, int64_t L,
                  RandomStream* random) const {
    const int64_t H = q.dim(1), T = q.dim(2), d = q.dim(3);
    auto zeros = [&](int64_t rows) {
      return Tensor::zeros({1, H, rows, d}, q.dtype(), q.device());
    };
    if (L == 0) return zeros(T);
    const TokenBuckets buckets(L, config_.k);
    const Tensor keys = buckets.cut(k), values = buckets.cut(v);
    const Tensor R = balanced(bucket_scores(q, keys, buckets, random), buckets);
    const Tensor y =
        attended(buckets.cut(q), with_sorted(R, keys), with_sorted(R, values), buckets);
    const Tensor valid = slice(reshape(y, {1, H, buckets.count * buckets.size, d}), 2, 0, L);
    return L == T ? valid : concat({valid, zeros(T - L)}, 2);
  }

  // [H, buckets, buckets]: scores of buckets of keys (columns) for those of queries.
  Tensor bucket_scores(const Tensor& q, const Tensor& keys, const TokenBuckets& buckets,
                       RandomStream* random) const {
    const int64_t H = q.dim(1), d = q.dim(3), n = buckets.count;
    const Tensor mean_q =
        shape_.causal
            ? reshape(every_nth_row(running_mean(slice(q, 2, 0, buckets.length)), buckets.size),
                      {H, n, d})
            : buckets.means(buckets.cut(q));
    const Tensor a = mean_q + slice(query_positions_, 1, 0, n);
    const Tensor b = buckets.means(keys) + slice(key_positions_, 1, 0, n);
    Tensor scores = matmul(a, b, false, true, 1 / std::sqrt(double(d)));
    if (random && config_.gumbel) scores = scores + gumbel_noise(scores, *random);
    return scale(scores, 1 / config_.temperature);
  }

  static Tensor gumbel_noise(const Tensor& like, RandomStream& random) {
    const RandomSlice slice = random.take(uint64_t(like.numel()));
    return Tensor::computed(like.shape(), like.dtype(), like.device(), [&](int64_t i) {
      return -std::log(-std::log(slice.uniform(uint64_t(i))));
    });
  }

  // Columns and rows normalised in turn, rows last, so that a sorted bucket is a mean of buckets.
  Tensor balanced(const Tensor& scores, const TokenBuckets& buckets) const {
    const Tensor allowed = buckets.sortable(shape_.causal, scores.device());
    Tensor x = log_softmax_where(scores, allowed);
    for (int64_t i = 0; i < config_.iterations; ++i) {
      const Tensor weights = exp_where(x, allowed);
      const Tensor columns = shape_.causal ? cumsum(weights, -2) : sum(weights, {-2}, true);
      // 1e-30: all weights of a column may be 0 after rounding.
      x = log_softmax_where(x - log(columns + 1e-30), allowed);
    }
    return exp_where(x, allowed);
  }

  // For each bucket of x [H, buckets, size, d] the sorted one, then x: [H, buckets, 2 size, d].
  static Tensor with_sorted(const Tensor& R, const Tensor& x) {
    const int64_t H = x.dim(0), n = x.dim(1);
    const Tensor sorted = matmul(R, reshape(x, {H, n, x.dim(2) * x.dim(3)}));
    return concat({reshape(sorted, x.shape()), x}, 2);
  }

  Tensor attended(const Tensor& q, const Tensor& keys, const Tensor& values,
                  const TokenBuckets& buckets) const {
    const Tensor scores = matmul(q, keys, false, true);
    const Tensor p = masked_softmax(scores, buckets.seen(q.dim(0), shape_.causal, q.device()),
                                    1 / std::sqrt(double(q.dim(3))));
    return matmul(p, values);
  }

  SinkhornConfig config_;
  AttentionShape shape_;
  Parameter &query_positions_, &key_positions_;  // [H, buckets, d]
};
const RegisterAttention<Sinkhorn, SinkhornConfig> registration("sinkhorn");

}  // namespace
}  // namespace brine::nn
