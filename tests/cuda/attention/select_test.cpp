// Selections of the device are those of the CPU, to the last tie.
#include "tensor/kernels/attention.h"
#include "tests/cuda/compare.h"
#include "tests/sparse_oracle.h"

using namespace brine;
using namespace brine::test;

namespace {

std::vector<Tensor> select_on(const On& on, const Tensor& estimate, const MaskCase& m,
                              const Visibility& visible) {
  Tensor x = on(estimate);
  Shape groups{m.B, m.T};
  if (m.mode == SelectMode::per_query) groups = {m.B, m.H, m.T};
  if (m.mode == SelectMode::per_head) groups = {m.B, m.H};
  if (m.mode == SelectMode::per_batch) groups = {m.B};
  Tensor selected = Tensor::empty(x.shape(), Dtype::u8, x.device());
  Tensor n_sel = Tensor::empty(groups, Dtype::i64, x.device());
  Tensor nans = Tensor::empty({1}, Dtype::i64, x.device());
  BRINE_CALL(x, select_columns, selected, n_sel, nans, x, visible, m.config());
  return {selected, n_sel, nans};
}

void compare_selection(const MaskCase& m, const Tensor& x) {
  compare_both(
      m.name(),
      [&](const On& on, Dtype dtype) { return select_on(on, x.to(dtype), m, m.visible()); },
      {0, 0});
}

// NaN at every n-th index.
Tensor with_nans(Tensor x, int64_t n) {
  for (int64_t i = 2; i < x.numel(); i += n) x.data<float>()[i] = std::nanf("");
  return x;
}

}  // namespace

TEST_CASE("cuda: selection in every mode, with ties and NaN") {
  std::vector<MaskCase> cases = mask_cases();
  cases.push_back({.B = 1, .H = 2, .T = 70, .K = 12, .k = 3, .first = 5});
  for (const MaskCase& m : cases) {
    const Shape shape{m.B, m.H, m.T, m.K};
    for (const Tensor& x :
         {normal(shape, 11), plateaus(shape, 12, 2), plateaus(shape, 13, 1),
          with_nans(uniform(shape, 14, 0, 1), 7), with_nans(uniform(shape, 15, 0, 1), 97)}) {
      compare_selection(m, x);
    }
  }
}

TEST_CASE("cuda: selection with lists for a block, in shared memory and beyond") {
  using enum SelectMode;
  const std::vector<MaskCase> cases = {
      {.B = 1, .H = 70, .T = 4, .K = 64, .k = 1},                      // rows of 4480 columns
      {.B = 2, .H = 2, .T = 3, .K = 2500, .k = 1, .mode = per_query},  // K > w
      {.B = 2,
       .H = 2,
       .T = 90,
       .K = 64,
       .k = 3,
       .causal = false,
       .lengths = {90, 71},
       .mode = per_head},
      {.B = 2,
       .H = 4,
       .T = 230,
       .K = 64,
       .k = 3,
       .causal = false,
       .lengths = {0, 225},
       .mode = per_batch},
      {.B = 1, .H = 1, .T = 270, .K = 64, .k = 9, .causal = false, .mode = per_head},   // pieces
      {.B = 1, .H = 1, .T = 25, .K = 700, .k = 2, .causal = false, .mode = per_batch},  // K > w
  };
  for (const MaskCase& m : cases) {
    const Shape shape{m.B, m.H, m.T, m.K};
    compare_selection(m, plateaus(shape, 21, 3));
    if (m.lengths.empty()) compare_selection(m, plateaus(shape, 23, 1));
    compare_selection(m, with_nans(uniform(shape, 22, 0, 1), 5000));
  }
}

TEST_CASE("cuda: selection of rows that face more keys, of nothing, and by lengths of the device") {
  const MaskCase decode{
      .B = 3, .H = 3, .T = 1, .K = 8, .k = 4, .causal = false, .lengths = {29, 0, 1}};
  const MaskCase nothing{.B = 0, .H = 2, .T = 3, .K = 4, .k = 2};
  const MaskCase no_rows{
      .B = 2, .H = 2, .T = 0, .K = 4, .k = 2, .causal = false, .mode = SelectMode::per_head};
  for (const MaskCase& m : {decode, nothing, no_rows}) {
    compare_selection(m, normal({m.B, m.H, m.T, m.K}, 31));
  }
  compare_both("lengths of the device",
               [&](const On& on, Dtype dtype) {
                 Visibility visible = decode.visible();
                 visible.lengths = on(visible.lengths);
                 return select_on(on, plateaus({3, 3, 1, 8}, 32, 2).to(dtype), decode, visible);
               },
               {0, 0});
}
