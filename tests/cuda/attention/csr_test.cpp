// Compressed rows of the device are those of the CPU, in columns of their size and of a larger one.
#include "tensor/kernels/attention.h"
#include "tests/cuda/compare.h"
#include "tests/sparse_oracle.h"

using namespace brine;
using namespace brine::test;

namespace {

// `spare` more columns than entries. On the device those must keep their bytes.
std::vector<Tensor> csr_on(const On& on, const Tensor& chosen, const MaskCase& m,
                           const Visibility& visible, int64_t keys, int64_t spare) {
  Tensor selected = on(chosen);
  FlatCsr csr{{}, {}, {}, m.B, m.H, m.T, keys};
  csr.row_pointers = Tensor::empty({m.B, m.T + 1}, Dtype::i64, on.device);
  csr.head_offsets = Tensor::empty({m.B, m.T, m.H + 1}, Dtype::i32, on.device);
  BRINE_CALL(selected, count_csr, csr, selected, visible, m.k);
  Tensor pointers = csr.row_pointers.to(kCpu);
  const int64_t entries = pointers.numel() ? pointers.data<int64_t>()[pointers.numel() - 1] : 0;
  csr.columns = on(ids({entries + spare}, 99, 1000));
  BRINE_CALL(selected, fill_csr, csr, selected, visible, m.k);
  return {csr.row_pointers, csr.head_offsets, csr.columns};
}

void compare_csr(const MaskCase& m, const Tensor& selected, int64_t keys = 0) {
  for (int64_t spare : {0, 37}) {
    compare(m.name(), 0, [&](const On& on) {
      return csr_on(on, selected, m, m.visible(), keys ? keys : m.first + m.T, spare);
    });
  }
}

Tensor random_columns(const MaskCase& m, int64_t one_in) {
  Tensor x = ids({m.B, m.H, m.T, m.K}, 17, one_in, Dtype::i32);
  Tensor selected = Tensor::empty(x.shape(), Dtype::u8);
  for (int64_t i = 0; i < x.numel(); ++i) {
    selected.data<uint8_t>()[i] = x.data<int32_t>()[i] == 0;
  }
  return selected;
}

}  // namespace

TEST_CASE("cuda: compressed rows of selections") {
  for (const MaskCase& m : mask_cases()) {
    Tensor x = uniform({m.B, m.H, m.T, m.K}, 11, 0, 1);
    compare_csr(m, select_columns(x, m.visible(), m.config()).selected);
  }
}

TEST_CASE("cuda: compressed rows of any columns, of many and of few") {
  const std::vector<MaskCase> cases = {
      {.B = 1, .H = 3, .T = 150, .K = 70, .k = 1},
      {.B = 1, .H = 2, .T = 300, .K = 3, .k = 40},  // columns of more keys than a warp has lanes
      {.B = 3, .H = 2, .T = 700, .K = 8, .k = 3, .lengths = {700, 0, 333}},  // tiles of the sum
      {.B = 2, .H = 1, .T = 90, .K = 33, .k = 2, .causal = false, .lengths = {90, 41}},
      {.B = 1, .H = 2, .T = 70, .K = 12, .k = 3, .first = 101},
  };
  for (const MaskCase& m : cases) {
    for (int64_t one_in : {1, 5}) compare_csr(m, random_columns(m, one_in));
  }
}

TEST_CASE("cuda: compressed rows of one row that faces all keys, and of nothing") {
  const MaskCase decode{
      .B = 3, .H = 3, .T = 1, .K = 8, .k = 4, .causal = false, .lengths = {129, 0, 3}};
  compare_csr(decode, random_columns(decode, 2), 130);
  const MaskCase no_batch{.B = 0, .H = 2, .T = 3, .K = 4, .k = 2};
  compare_csr(no_batch, random_columns(no_batch, 2));
  const MaskCase no_rows{.B = 2, .H = 2, .T = 0, .K = 4, .k = 2};
  compare_csr(no_rows, random_columns(no_rows, 2));
  compare("lengths of the device", 0, [&](const On& on) {
    Visibility visible = decode.visible();
    visible.lengths = on(visible.lengths);
    return csr_on(on, random_columns(decode, 2), decode, visible, 130, 5);
  });
}
