// sinkhorn against its definition in plain loops.
#include "tests/nn/attention/mask_check.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kIterations = 5;
constexpr double kTemperature = 0.6;

Block sinkhorn(bool causal, int64_t k, int64_t positions = 100) {
  return make_block("sinkhorn", causal, Dtype::f64, 5, positions,
                    {{"k", std::to_string(k)},
                     {"iterations", std::to_string(kIterations)},
                     {"temperature", std::to_string(kTemperature)}});
}

// One head of one sequence.
struct Head {
  const MaskCase& m;
  int64_t b, h, L, n;  // n buckets
  Numbers q, k, v, query_positions, key_positions;
  int64_t table;  // rows of the positions

  double at(const Numbers& x, int64_t t, int64_t c) const { return x[m.index(b, h, t, c, kSize)]; }
  int64_t size(int64_t bucket) const { return std::min(m.k, L - bucket * m.k); }

  double mean(const Numbers& x, int64_t from, int64_t to, int64_t c) const {
    double sum = 0;
    for (int64_t t = from; t < to; ++t) sum += at(x, t, c);
    return sum / double(to - from);
  }

  bool allowed(int64_t i, int64_t j) const { return !m.causal || j < i; }

  // Weights [n, n] of buckets j in the bucket sorted to i.
  Numbers sorting() const {
    Numbers w(size_t(n * n), 0);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        if (!allowed(i, j)) continue;
        double dot = 0;
        for (int64_t c = 0; c < kSize; ++c) {
          const double x =
              m.causal ? mean(q, 0, i * m.k + 1, c) : mean(q, i * m.k, i * m.k + size(i), c);
          dot += (x + query_positions[size_t((h * table + i) * kSize + c)]) *
                 (mean(k, j * m.k, j * m.k + size(j), c) +
                  key_positions[size_t((h * table + j) * kSize + c)]);
        }
        w[size_t(i * n + j)] = std::exp(dot / std::sqrt(double(kSize)) / kTemperature);
      }
    }
    for (int64_t turn = 0; turn <= kIterations; ++turn) {
      if (turn > 0) {  // columns, by the rows so far in a decoder
        const Numbers before = w;
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (int64_t r = 0; r < (m.causal ? i + 1 : n); ++r) sum += before[size_t(r * n + j)];
            if (sum > 0) w[size_t(i * n + j)] /= sum;
          }
        }
      }
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += w[size_t(i * n + j)];
        for (int64_t j = 0; sum > 0 && j < n; ++j) w[size_t(i * n + j)] /= sum;
      }
    }
    return w;
  }

  // Token p of the bucket sorted to i, of x; a token that a bucket does not have is 0.
  double sorted(const Numbers& w, const Numbers& x, int64_t i, int64_t p, int64_t c) const {
    double sum = 0;
    for (int64_t j = 0; j < n; ++j)
      if (p < size(j)) sum += w[size_t(i * n + j)] * at(x, j * m.k + p, c);
    return sum;
  }

  // The output of token t [d].
  Numbers row(const Numbers& w, int64_t t) const {
    const int64_t i = t / m.k;
    double total = 0;
    Numbers y(size_t(kSize), 0);
    auto add = [&](auto key, auto value) {
      double dot = 0;
      for (int64_t c = 0; c < kSize; ++c) dot += at(q, t, c) * key(c);
      const double p = std::exp(dot / std::sqrt(double(kSize)));
      total += p;
      for (int64_t c = 0; c < kSize; ++c) y[size_t(c)] += p * value(c);
    };
    for (int64_t p = 0; p < m.k; ++p) {
      if (m.causal ? i == 0 : n == 1 && p >= L) continue;
      add([&](int64_t c) { return sorted(w, k, i, p, c); },
          [&](int64_t c) { return sorted(w, v, i, p, c); });
    }
    for (int64_t j = i * m.k; j < i * m.k + size(i); ++j) {
      if (m.causal && j > t) continue;
      add([&](int64_t c) { return at(k, j, c); }, [&](int64_t c) { return at(v, j, c); });
    }
    for (double& x : y) x /= total;
    return y;
  }
};

Numbers naive_sinkhorn(Block& block, const Inputs& in, const MaskCase& m) {
  Numbers tables[2];
  int64_t table = 0;
  for (const auto& p : block.module->named_parameters()) {
    tables[p.path == "key_positions"] = p.parameter->value.to_vector();
    table = p.parameter->value.dim(1);
  }
  Numbers y(size_t(m.B * m.T * m.H * kSize), 0);
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t h = 0; h < m.H; ++h) {
      const int64_t L = m.length(b);
      if (L == 0) continue;
      const Head head{m,
                      b,
                      h,
                      L,
                      (L + m.k - 1) / m.k,
                      in.q.to_vector(),
                      in.k.to_vector(),
                      in.v.to_vector(),
                      tables[0],
                      tables[1],
                      table};
      const Numbers w = head.sorting();
      for (int64_t t = 0; t < L; ++t) {
        const Numbers row = head.row(w, t);
        for (int64_t c = 0; c < kSize; ++c)
          y[size_t(((b * m.T + t) * m.H + h) * kSize + c)] = row[size_t(c)];
      }
    }
  }
  return y;
}

}  // namespace

TEST_CASE("sinkhorn attends to the own bucket and to the one that is sorted to it") {
  for (int64_t k : {1, 4, 10}) {
    for (const MaskCase& m : rival_cases(k)) {
      INFO(m.name());
      const Inputs in = inputs(m.B, m.T, Dtype::f64);
      Block block = sinkhorn(m.causal, k);
      const Tensor y = pass(block, in, m.visible().lengths).y;
      CHECK(close(y.to_vector(), naive_sinkhorn(block, in, m), 1e-11, 1e-11));
    }
  }
}

TEST_CASE("sinkhorn: training adds noise to the sorting that its random stream repeats") {
  const MaskCase m{.B = 1, .H = kHeads, .T = 23, .k = 4};
  const Inputs in = inputs(m.B, m.T, Dtype::f64);
  Block block = sinkhorn(true, m.k);
  const Tensor calm = pass(block, in).y, noisy = train_pass(block, in, m).y.detach();
  CHECK(same_bits(rows(calm, 1, 0, m.k), rows(noisy, 1, 0, m.k)));  // they see no sorted bucket
  CHECK_FALSE(same_bits(calm, noisy));
  CHECK(same_bits(train_pass(block, in, m).y.detach(), noisy));
}

TEST_CASE("sinkhorn: more tokens than positions are refused") {
  Block block = sinkhorn(true, 4, 16);
  CHECK_NOTHROW(pass(block, inputs(1, 16, Dtype::f64)));
  CHECK_REFUSES(pass(block, inputs(1, 17, Dtype::f64)), "sinkhorn", "17", "16");
}

}  // namespace brine::test
