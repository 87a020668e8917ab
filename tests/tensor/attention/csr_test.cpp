// Flat compressed rows against the dense mask made by the written rules.
#include "tests/sparse_oracle.h"

namespace brine::test {

// The three arrays of the format, read off a dense mask.
static void check_csr_format(const FlatCsr& csr, const std::vector<double>& mask,
                             const MaskCase& m) {
  std::vector<double> pointers, offsets, columns;
  double total = 0;
  for (int64_t b = 0; b < m.B; ++b) {
    pointers.push_back(total);
    for (int64_t t = 0; t < m.T; ++t) {
      double row = 0;
      offsets.push_back(0);
      for (int64_t h = 0; h < m.H; ++h) {
        for (int64_t j = 0; j < m.T; ++j) {
          if (mask[m.index(b, h, t, j, m.T)] == 0) continue;
          columns.push_back(double(h * m.T + j));
          ++row;
        }
        offsets.push_back(row);
      }
      total += row;
      pointers.push_back(total);
    }
  }
  CHECK(csr.row_pointers.to_vector() == pointers);
  CHECK(csr.head_offsets.to_vector() == offsets);
  CHECK(csr.columns.to_vector() == columns);
  CHECK(csr.row_pointers.dtype() == Dtype::i64);
  CHECK(csr.columns.dtype() == Dtype::i32);
}

TEST_CASE("CSR rows equal the dense mask in every mode, and so does its way back") {
  for (const MaskCase& m : mask_cases()) {
    INFO(m.name());
    Tensor x = uniform({m.B, m.H, m.T, m.K}, 31, 0, 1);
    std::vector<double> mask = naive_mask(naive_select(x.to_vector(), m).selected, m);
    for (int n : {1, 2, 3}) {
      Threads set(n);
      Selection chosen = select_columns(x, m.visible(), m.config());
      FlatCsr csr = build_csr(chosen.selected, m.visible(), m.k);
      check_csr_format(csr, mask, m);
      CHECK(csr_to_mask(csr).to_vector() == mask);
    }
  }
}

TEST_CASE("a forced selection keeps the rules: short rows see all, wide columns are thinned") {
  MaskCase m{.B = 1, .H = 2, .T = 50, .K = 4, .k = 3};
  for (double fill : {0.0, 1.0}) {
    Tensor selected = Tensor::full({m.B, m.H, m.T, m.K}, fill, Dtype::u8);
    FlatCsr csr = build_csr(selected, m.visible(), m.k);
    check_csr_format(csr, naive_mask(selected.to_vector(), m), m);
    CHECK(csr.head_offsets.to_vector()[2 * 3 + 1] == 3);  // row 2 sees three keys in each head
  }
  // Row 49: columns of 12 and 13 keys; the last, keys 37..49, keeps 49 - floor(i 13 / 3).
  Tensor selected = Tensor::zeros({1, 2, 50, 4}, Dtype::u8);
  selected.data<uint8_t>()[49 * 4 + 3] = 1;
  FlatCsr csr = build_csr(selected, m.visible(), m.k);
  std::vector<double> columns = csr.columns.to_vector();
  CHECK(std::vector<double>(columns.end() - 3, columns.end()) == std::vector<double>{41, 45, 49});
}

TEST_CASE("build_csr refuses wrong input") {
  Tensor selected = Tensor::zeros({1, 2, 5, 4}, Dtype::u8);
  CHECK_THROWS_AS(build_csr(selected.to(Dtype::f32), {}, 2), Error);
  CHECK_THROWS_AS(build_csr(selected, {}, 0), Error);
  CHECK_THROWS_AS(build_csr(selected, {}, 2, 4), Error);
  CHECK_THROWS_AS(build_csr(selected, {false, {}}, 2, 9), Error);
  CHECK_THROWS_AS(build_csr(selected, {}, 2, int64_t(1) << 31), Error);
}

}  // namespace brine::test
