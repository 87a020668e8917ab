// log_sum_exp, and kl_logits of teachers of any total mass, on the device as on the CPU; other
// losses are in tests/ops/op_table.h.
#include <algorithm>
#include <numeric>

#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: log_sum_exp") { compare_all(table::log_sum_exp_cases()); }

namespace {

// Distinct ids, n for each row of V.
Tensor some_ids(int64_t rows, int64_t n, int64_t V, uint64_t seed) {
  Tensor out = Tensor::empty({rows, n}, Dtype::i32);
  std::vector<int32_t> all(static_cast<size_t>(V));
  for (int64_t r = 0; r < rows; ++r) {
    std::iota(all.begin(), all.end(), 0);
    RandomSlice slice{seed, 1, uint64_t(r * n)};
    for (int64_t i = 0; i < n; ++i) {
      const int64_t other = i + int64_t(slice.uniform(uint64_t(i)) * double(V - i));
      std::swap(all[size_t(i)], all[size_t(other)]);
      out.data<int32_t>()[r * n + i] = all[size_t(i)];
    }
  }
  return out;
}

// Rows of a teacher's logits: values, and the log-sum-exp at which their total mass is `mass`.
Tensor lse_for(const Tensor& values, double mass) {
  const int64_t rows = values.rows(), n = values.dim(-1);
  Tensor out = Tensor::empty({rows}, Dtype::f64);
  const std::vector<double> v = values.to_vector();
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(v[size_t(r * n + i)]);
    out.data<double>()[r] = std::log(sum / mass);
  }
  return out;
}

}  // namespace

TEST_CASE("cuda: kl_logits of listed values and its gradient") {
  struct Case {
    int64_t rows, V, n;
    double mass;
  };
  for (const Case& c :
       {Case{0, 9, 3, 0.5}, Case{1, 1, 1, 1}, Case{5, 9, 9, 1}, Case{4, 9, 8, 0.7},
        Case{4, 9, 9, 0.8}, Case{3, 700, 5, 1.1}, Case{3, 700, 1, 0.2}, Case{4, 3000, 300, 0.9},
        Case{2, 3000, 20, 1}, Case{2, 70001, 40, 0.6}, Case{1, 65536, 33, 0.8}}) {
    compare_both(join("kl_logits ", c.rows, " x ", c.V, ", listed ", c.n), [&](const On& on,
                                                                               Dtype dtype) {
      Tensor x = on(normal({c.rows, c.V}, 1, dtype, 0, 3)),
             values = normal({c.rows, c.n}, 2, Dtype::f64, 0, 2);
      Tensor teacher_lse = on(lse_for(values, c.mass).to(dtype));
      Tensor dloss = normal({c.rows}, 3, Dtype::f64), listed = some_ids(c.rows, c.n, c.V, 4);
      if (c.rows > 2) dloss.data<double>()[2] = 0;
      if (c.n != 20) listed = on(listed);
      values = on(values.to(dtype));
      dloss = on(dloss.to(dtype));
      Tensor loss = Tensor::like(dloss), lse = Tensor::like(dloss), unlisted = Tensor::like(dloss);
      Tensor dx = Tensor::like(x);
      BRINE_CALL(x, kl_logits, loss, lse, unlisted, x, values, listed, teacher_lse);
      BRINE_CALL(x, kl_logits_backward, dx, dloss, x, lse, unlisted, values, listed, teacher_lse);
      BRINE_CALL(x, kl_logits_backward, x, dloss, x, lse, unlisted, values, listed, teacher_lse);
      return std::vector{loss, lse, unlisted, dx, x};
    });
  }
}
