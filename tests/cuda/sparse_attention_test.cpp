// Attention on masks and its gradients: the device against the CPU, in all widths of rows, with
// more columns than entries, for some of the gradients only.
#include <cstring>

#include "tensor/kernels_sparse.h"
#include "tests/cuda/compare.h"
#include "tests/sparse_oracle.h"

using namespace brine;
using namespace brine::test;

namespace {

struct SparseCase {
  MaskCase mask;
  int64_t d = 32;
  int64_t keys = 0;   // 0: as many as rows
  int64_t spare = 0;  // columns beyond the entries
  bool dq = true, dk = true, dv = true;
  int64_t shift = 0;  // numbers by which rows begin off their alignment
};

// A mask of the CPU; `spare` columns more than it has entries, of no meaning.
FlatCsr mask_of(const SparseCase& c) {
  const MaskCase& m = c.mask;
  Tensor x = uniform({m.B, m.H, m.T, m.K}, 11, 0, 1);
  FlatCsr csr = build_csr(select_columns(x, m.see(), m.config()).selected, m.see(), m.k, c.keys);
  if (c.spare == 0) return csr;
  Tensor more = Tensor::full({csr.entries() + c.spare}, -77, Dtype::i32);
  std::copy_n(csr.columns.data<int32_t>(), csr.entries(), more.data<int32_t>());
  csr.columns = more;
  return csr;
}

// The same numbers, `shift` into a longer tensor.
Tensor shifted(const On& on, const Tensor& x, int64_t shift) {
  if (shift == 0) return on(x);
  Tensor more = Tensor::zeros({x.numel() + shift}, x.dtype());
  const size_t size = item_size(x.dtype());
  std::memcpy(more.raw() + size_t(shift) * size, x.raw(), size_t(x.numel()) * size);
  return on(more).slice(0, shift, x.numel()).view(x.shape());
}

std::vector<Tensor> attention_on(const On& on, Dtype dtype, const SparseCase& c,
                                 const FlatCsr& mask) {
  const MaskCase& m = c.mask;
  const Shape row_shape{m.B, m.H, m.T, c.d}, key_shape{m.B, m.H, mask.keys, c.d};
  FlatCsr csr = mask;
  csr.row_pointers = on(mask.row_pointers);
  csr.head_offsets = on(mask.head_offsets);
  csr.columns = on(mask.columns);
  Tensor q = shifted(on, normal(row_shape, 1, dtype), c.shift);
  Tensor k = shifted(on, normal(key_shape, 2, dtype), c.shift);
  Tensor v = shifted(on, normal(key_shape, 3, dtype), c.shift);
  Tensor dy = shifted(on, normal(row_shape, 4, dtype), c.shift);
  Tensor p = on(normal({csr.entries()}, 5, dtype)), y = Tensor::like(q);
  const double scale = 1 / std::sqrt(double(c.d));
  BRINE_CALL(q, sparse_attention, y, p, q, k, v, csr, scale);
  Tensor dq = c.dq ? Tensor::like(q) : Tensor(), dk = c.dk ? Tensor::like(k) : Tensor();
  Tensor dv = c.dv ? Tensor::like(v) : Tensor();
  BRINE_CALL(q, sparse_attention_backward, dq, dk, dv, dy, q, k, v, p, csr, scale);
  return {y, p, dq, dk, dv};
}

void compare_attention(const SparseCase& c) {
  const FlatCsr mask = mask_of(c);
  compare_both(join(c.mask.name(), " d", c.d),
               [&](const On& on, Dtype dtype) { return attention_on(on, dtype, c, mask); });
}

}  // namespace

TEST_CASE("cuda: sparse attention and its gradients under every kind of mask") {
  for (const MaskCase& m : mask_cases()) compare_attention({.mask = m, .d = 8, .spare = 3});
}

TEST_CASE("cuda: sparse attention in rows of every width") {
  const MaskCase m{.B = 2, .H = 2, .T = 25, .K = 16, .k = 9, .lengths = {25, 12}};
  for (int64_t d : {1, 31, 32, 33, 64, 128, 130}) compare_attention({.mask = m, .d = d});
  for (int64_t d : {32, 64, 128}) compare_attention({.mask = m, .d = d, .shift = 1});
}

TEST_CASE("cuda: sparse attention with many entries in a row and of a key, and many chunks") {
  compare_attention({.mask = {.B = 1, .H = 2, .T = 140, .K = 16, .k = 70}, .d = 64, .spare = 100});
  compare_attention({.mask = {.B = 1, .H = 2, .T = 171, .K = 8, .k = 3}, .d = 32});
  // So many heads that each is one chunk, of several steps.
  const std::vector<int64_t> lengths = {97, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 70};
  compare_attention(
      {.mask = {.B = 13, .H = 10, .T = 97, .K = 4, .k = 2, .lengths = lengths}, .d = 2});
}

TEST_CASE("cuda: sparse attention asked for some gradients, of nothing, with more keys than rows") {
  const MaskCase m{.B = 2, .H = 2, .T = 20, .K = 8, .k = 4, .lengths = {20, 11}};
  for (int wanted = 0; wanted < 7; ++wanted) {
    compare_attention({.mask = m,
                       .d = 32,
                       .dq = (wanted & 1) != 0,
                       .dk = (wanted & 2) != 0,
                       .dv = (wanted & 4) != 0});
  }
  compare_attention({.mask = {.B = 2, .H = 2, .T = 5, .K = 4, .k = 2, .lengths = {0, 0}}, .d = 32});
  compare_attention({.mask = {.B = 0, .H = 2, .T = 5, .K = 4, .k = 2}, .d = 32});
  compare_attention({.mask = {.B = 2, .H = 2, .T = 0, .K = 4, .k = 2}, .d = 32});
  const MaskCase decode{
      .B = 3, .H = 3, .T = 1, .K = 8, .k = 4, .causal = false, .lengths = {29, 0, 130}};
  compare_attention({.mask = decode, .d = 64, .keys = 130});
}

TEST_CASE("cuda: gradients of sparse attention repeat to the bit") {
  if (!has_device()) return;
  const SparseCase c{.mask = {.B = 1, .H = 2, .T = 80, .K = 16, .k = 20}, .d = 64};
  const FlatCsr mask = mask_of(c);
  const auto once = attention_on(On{kCuda}, Dtype::f32, c, mask);
  const auto again = attention_on(On{kCuda}, Dtype::f32, c, mask);
  for (size_t i = 0; i < once.size(); ++i) {
    CHECK(same_bits(once[i].to(kCpu), again[i].to(kCpu)));
  }
}
