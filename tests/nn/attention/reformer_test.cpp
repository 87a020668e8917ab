// reformer against rounds of chunks in plain loops, combined by their logsumexp; scatterbrain,
// which adds linear attention to it.
#include <map>
#include <set>

#include "nn/attention/rivals/hashed_keys.h"
#include "tests/nn/attention/mask_check.h"

namespace brine::test {
namespace {

Block reformer(bool causal, int64_t k, int64_t rounds) {
  return make_block("reformer", causal, Dtype::f64, 5, 300,
                    {{"k", std::to_string(k)}, {"rounds", std::to_string(rounds)}});
}

// The buckets of one round of a sequence of L tokens, by the rules: the direction, one of +-R_i,
// with the largest product; R is drawn as the method says, [d, rounds * half].
std::vector<int64_t> naive_buckets(const Numbers& q, const MaskCase& m, int64_t b, int64_t h,
                                   int64_t round, int64_t rounds) {
  const int64_t L = m.length(b);
  if (L <= m.k) return std::vector<int64_t>(size_t(L), 0);
  int64_t directions = (L + m.k - 1) / m.k;
  directions = std::max<int64_t>(2, directions + directions % 2);
  REQUIRE(directions <= 64);  // one rotation
  const int64_t half = directions / 2, columns = rounds * half;
  const RandomSlice normals{0, 0x4c5348, 0};
  std::vector<int64_t> bucket;
  for (int64_t t = 0; t < L; ++t) {
    double largest = -1;
    int64_t best = 0;
    for (int64_t i = 0; i < half; ++i) {
      double x = 0;
      for (int64_t c = 0; c < kSize; ++c)
        x += q[m.index(b, h, t, c, kSize)] *
             normals.normal(uint64_t(c * columns + round * half + i));
      if (std::abs(x) > largest) largest = std::abs(x), best = x > 0 ? i : half + i;
    }
    bucket.push_back(best);
  }
  return bucket;
}

// The tokens that token t sees in a round.
std::set<int64_t> naive_seen(const std::vector<int64_t>& bucket, int64_t t, const MaskCase& m) {
  std::vector<std::pair<int64_t, int64_t>> order;  // (bucket, token)
  for (size_t i = 0; i < bucket.size(); ++i) {
    if (m.causal && bucket[i] != bucket[size_t(t)]) continue;
    order.push_back({bucket[i], int64_t(i)});
  }
  std::sort(order.begin(), order.end());
  int64_t position = 0;
  while (order[size_t(position)].second != t) ++position;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < int64_t(order.size()); ++i) {
    const int64_t token = order[size_t(i)].second, chunks = position / m.k - i / m.k;
    if (token == t || (m.causal && token > t)) continue;
    if (chunks == 0 || chunks == 1) seen.insert(token);
  }
  return seen;
}

// [B, T, H d]: the softmax of each round, combined by logsumexp with -log of the number of rounds
// that contain a pair; and the keys of all rounds.
struct Expected {
  Numbers y, mask;
};

Expected naive_reformer(const Inputs& in, const MaskCase& m, int64_t rounds) {
  const Numbers q = in.q.to_vector(), v = in.v.to_vector();
  Expected out{Numbers(size_t(m.B * m.T * m.H * kSize), 0),
               Numbers(size_t(m.B * m.H * m.T * m.T), 0)};
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t h = 0; h < m.H; ++h) {
      std::vector<std::vector<int64_t>> buckets;
      for (int64_t r = 0; r < rounds && m.length(b) > 0; ++r)
        buckets.push_back(naive_buckets(q, m, b, h, r, rounds));
      for (int64_t t = 0; t < m.length(b); ++t) {
        std::vector<std::set<int64_t>> seen;
        std::map<int64_t, int> times;
        for (const auto& round : buckets) {
          seen.push_back(naive_seen(round, t, m));
          for (int64_t j : seen.back()) ++times[j];
        }
        if (times.empty()) seen[0].insert(t), times[t] = 1;
        auto score = [&](int64_t j) {
          double dot = 0, square = 0;
          for (int64_t c = 0; c < kSize; ++c) {
            dot += q[m.index(b, h, t, c, kSize)] * q[m.index(b, h, j, c, kSize)];
            square += q[m.index(b, h, j, c, kSize)] * q[m.index(b, h, j, c, kSize)];
          }
          return dot / std::sqrt(square) / std::sqrt(double(kSize)) - std::log(times[j]);
        };
        Numbers lse;
        for (const auto& round : seen) {
          double z = 0;
          for (int64_t j : round) z += std::exp(score(j));
          lse.push_back(std::log(z));
        }
        double all = 0;
        for (double x : lse) all += std::exp(x);
        for (size_t r = 0; r < seen.size(); ++r) {
          for (int64_t j : seen[r]) {
            out.mask[m.index(b, h, t, j, m.T)] = 1;
            // The round's softmax times its share of all rounds.
            const double p = std::exp(score(j) - lse[r]) * std::exp(lse[r]) / all;
            for (int64_t c = 0; c < kSize; ++c)
              out.y[size_t(((b * m.T + t) * m.H + h) * kSize + c)] +=
                  p * v[m.index(b, h, j, c, kSize)];
          }
        }
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("reformer attends within chunks of the order by buckets, in rounds") {
  for (int64_t k : {2, 5}) {
    for (int64_t rounds : {1, 3}) {
      for (const MaskCase& m : rival_cases(k)) {
        INFO(m.name() << " rounds " << rounds);
        const Inputs in = inputs(m.B, m.T, Dtype::f64);
        Block block = reformer(m.causal, k, rounds);
        nn::Tap tap("reformer");
        const Tensor y = pass(block, in, m.visible().lengths, {}, {}, &tap).y;
        const Expected wanted = naive_reformer(in, m, rounds);
        CHECK(seen_mask(tap, m).to_vector() == wanted.mask);
        CHECK(close(y.to_vector(), wanted.y, 1e-11, 1e-11));
      }
    }
  }
}

TEST_CASE("reformer: equal queries share a bucket in every round, also of several rotations") {
  const int64_t T = 300;
  Tensor q = normal({1, 1, T, kSize}, 4, Dtype::f64);
  Tensor twin = q.slice(2, 210, 1);
  copy_into(twin, q.slice(2, 37, 1).contiguous());
  // More than 64 buckets: two rotations for each round.
  const FlatCsr csr = nn::hashed_keys(q, {.chunk = 3, .rounds = 2}, {.causal = true});
  const Numbers mask = csr_to_mask(csr).to_vector();
  CHECK(mask[size_t(210 * T + 37)] == 1);
  double entries = 0;
  for (double x : mask) entries += x;
  CHECK(entries < 2.0 * 2 * 3 * double(T));  // at most two chunks a round
}

TEST_CASE("reformer: keys are not used, and training draws no other rotations") {
  const MaskCase m{.B = 1, .H = kHeads, .T = 40, .k = 3};
  Inputs in = inputs(m.B, m.T, Dtype::f64);
  Block block = reformer(true, m.k, 2);
  const Tensor first = pass(block, in).y;
  in.k = normal(in.k.shape(), 77, Dtype::f64);
  CHECK(same_bits(pass(block, in).y, first));
  CHECK(same_bits(train_pass(block, in, m).y.detach(), first));
}

TEST_CASE("scatterbrain is the sum of LSH attention and of linear attention of random features") {
  for (const MaskCase& m : rival_cases(3)) {
    INFO(m.name());
    const Inputs in = inputs(m.B, m.T, Dtype::f64);
    auto of = [&](const char* method, std::map<std::string, std::string> settings) {
      return make_block(method, m.causal, Dtype::f64, 5, 300, settings);
    };
    Block block = of("scatterbrain", {{"k", "3"}, {"rounds", "2"}}),
          sparse = of("reformer", {{"k", "3"}, {"rounds", "2"}}), low = of("performer", {});
    low.module->named_buffers()[0].buffer->value = block.module->named_buffers()[0].buffer->value;
    auto y = [&](Block& b, nn::Tap* tap = nullptr) {
      return pass(b, in, m.visible().lengths, {}, {}, tap).y;
    };
    nn::Tap ours("scatterbrain"), theirs("reformer");
    CHECK(close(y(block, &ours), add(y(sparse, &theirs), y(low)), 1e-13, 1e-13));
    CHECK(same_bits(seen_mask(ours, m), seen_mask(theirs, m)));
  }
}

}  // namespace brine::test
