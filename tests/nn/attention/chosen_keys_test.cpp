// The methods that choose keys by exact scores, top and best-columns, against full sorts over T x T
// maps in f64.
#include "tests/nn/attention/mask_check.h"

namespace brine::test {
namespace {

// The attention mass of every column, [B, H, T, K].
std::vector<double> column_mass(const std::vector<double>& attention, const MaskCase& m) {
  std::vector<double> mass(size_t(m.B * m.H * m.T * m.K), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    const std::vector<int64_t> column = columns_of_keys(m.width(b, t), m.K);
    for (size_t j = 0; j < column.size(); ++j)
      mass[m.index(b, h, t, column[j], m.K)] += attention[m.index(b, h, t, int64_t(j), m.T)];
  });
  return mass;
}

}  // namespace

TEST_CASE("top attends to the k largest scores of every row and head") {
  for (const MaskCase& m : rival_cases(4)) {
    INFO(m.name());
    const Inputs in = inputs(m.B, m.T, Dtype::f64);
    check_method("top", m, in,
                 largest_scores(products(in.q.to_vector(), in.k.to_vector(), kSize, m), m));
  }
}

TEST_CASE("top takes the later of keys with equal scores") {
  MaskCase m{.B = 1, .H = kHeads, .T = 19, .k = 4};
  Inputs in = inputs(1, 19, Dtype::f64);
  // All scores of a row are equal, in whichever order a product adds: the sums are exact.
  in.k = Tensor::full(in.k.shape(), 1, Dtype::f64);
  std::vector<double> whole = in.q.to_vector();
  for (double& x : whole) x = std::round(8 * x);
  in.q = Tensor::from(whole, in.q.shape());
  check_method("top", m, in, mask_by(m, [](int64_t, int64_t t, int64_t j) { return j > t - 4; }));
}

TEST_CASE("best-columns attends to the columns with the largest attention mass") {
  for (const MaskCase& m : rival_cases(4)) {
    INFO(m.name());
    const Inputs in = inputs(m.B, m.T, Dtype::f64);
    const std::vector<double> dense =
        naive_attention(in.q.to_vector(), in.k.to_vector(), {}, kSize, m);
    check_method("best-columns", m, in,
                 naive_mask(naive_select(column_mass(dense, m), m).selected, m));
  }
}

}  // namespace brine::test
