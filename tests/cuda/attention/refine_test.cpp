// The refinement of masks: the device against the CPU, in all widths of rows, with ties, with more
// columns than entries.
#include "tensor/kernels/attention.h"
#include "tests/cuda/compare.h"
#include "tests/sparse_oracle.h"

using namespace brine;
using namespace brine::test;

namespace {

struct RefineCase {
  MaskCase mask;     // of the candidates
  int64_t kept = 3;  // of them
  int64_t d = 32, groups = 1;
  int64_t keys = 0;   // 0: as many as rows
  int64_t spare = 0;  // columns beyond the entries
};

// Small whole numbers, whose products are exact and often equal.
Tensor whole_numbers(const Shape& shape, uint64_t seed, Dtype dtype) {
  Tensor x = ids(shape, seed, 4, Dtype::f64);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] -= 1;
  return x.to(dtype);
}

std::vector<Tensor> refined_on(const On& on, Dtype dtype, const RefineCase& c, const FlatCsr& csr) {
  const MaskCase& m = c.mask;
  const Tensor q = on(whole_numbers({m.B, m.H, m.T, c.d}, 1, dtype));
  const Tensor k =
      on(whole_numbers({m.B, c.groups, csr.keys, c.d}, 2, stored(dtype, c.groups == 1)));
  FlatCsr from = csr, fine{{}, {}, {}, m.B, m.H, m.T, csr.keys};
  from.row_pointers = on(csr.row_pointers);
  from.head_offsets = on(csr.head_offsets);
  from.columns = on(csr.columns);
  fine.row_pointers = Tensor::empty(csr.row_pointers.shape(), Dtype::i64, on.device);
  fine.head_offsets = Tensor::empty(csr.head_offsets.shape(), Dtype::i32, on.device);
  BRINE_CALL(q, count_refined, fine, from, c.kept);
  const Tensor pointers = fine.row_pointers.to(kCpu);
  const int64_t entries = pointers.numel() ? pointers.data<int64_t>()[pointers.numel() - 1] : 0;
  fine.columns = on(ids({entries + c.spare}, 99, 1000));  // the spare ones keep their bytes
  BRINE_CALL(q, refine, fine, q, k, from, c.kept);
  return {fine.row_pointers, fine.head_offsets, fine.columns};
}

void compare_refined(const RefineCase& c) {
  const MaskCase& m = c.mask;
  const Tensor x = uniform({m.B, m.H, m.T, m.K}, 11, 0, 1);
  const FlatCsr csr =
      build_csr(select_columns(x, m.visible(), m.config()).selected, m.visible(), m.k, c.keys);
  compare_both(join(m.name(), " d", c.d, " G", c.groups),
               [&](const On& on, Dtype dtype) { return refined_on(on, dtype, c, csr); },
               {.f32 = 0, .f64 = 0});
}

}  // namespace

TEST_CASE("cuda: refined masks of every kind") {
  for (const MaskCase& m : mask_cases()) {
    compare_refined({.mask = m, .kept = 2, .d = 8, .groups = m.H, .spare = 5});
  }
}

TEST_CASE("cuda: refined masks with many candidates, in rows of every width, of groups of heads") {
  const MaskCase m{.B = 2, .H = 6, .T = 90, .K = 16, .k = 70, .lengths = {90, 41}};
  for (int64_t d : {1, 5, 33, 64, 128}) compare_refined({.mask = m, .kept = 33, .d = d});
  for (int64_t G : {2, 3, 6}) compare_refined({.mask = m, .kept = 7, .groups = G});
}

TEST_CASE("cuda: refined masks of one row that faces all keys, and of nothing") {
  const MaskCase decode{
      .B = 3, .H = 4, .T = 1, .K = 8, .k = 50, .causal = false, .lengths = {129, 0, 3}};
  compare_refined({.mask = decode, .kept = 9, .groups = 2, .keys = 130});
  compare_refined({.mask = {.B = 0, .H = 2, .T = 3, .K = 4, .k = 2}});
  compare_refined({.mask = {.B = 2, .H = 2, .T = 0, .K = 4, .k = 2}});
}

TEST_CASE("cuda: refine without the number of entries gives the mask of the CPU") {
  const MaskCase m{.B = 2, .H = 4, .T = 40, .K = 8, .k = 12, .lengths = {40, 17}};
  const Tensor x = uniform({m.B, m.H, m.T, m.K}, 11, 0, 1);
  compare("refine", 0, [&](const On& on) {
    const Selection chosen = select_columns(on(x), m.visible(), m.config());
    const FlatCsr csr = build_csr(chosen.selected, m.visible(), m.k, 0, chosen.most_entries);
    const Tensor q = on(whole_numbers({m.B, m.H, m.T, 16}, 1, Dtype::f32));
    const Tensor k = on(whole_numbers({m.B, 2, m.T, 16}, 2, Dtype::f32));
    return std::vector{csr_to_mask(refine(q, k, csr, 3, m.visible()))};
  });
}
