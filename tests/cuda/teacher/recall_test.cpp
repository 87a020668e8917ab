// attention_recall on the device, as on the CPU.
#include "tensor/mask/recall.h"
#include "tensor/kernels/teacher.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct RecallCase {
  int64_t B, H, T, K, k;
  std::vector<int64_t> lengths;
  int64_t from = 0;
};

// Few different values, so that every budget ends among equal ones; no row has mass 1.
Tensor coarse_map(const RecallCase& c, Dtype dtype) {
  std::vector<double> map = uniform({c.B, c.H, c.T, c.T}, 1, 0, 5, Dtype::f64).to_vector();
  for (double& x : map) x = std::floor(x) / double(c.T);
  return Tensor::from(map, {c.B, c.H, c.T, c.T}).to(dtype);
}

FlatCsr on_csr(const On& on, FlatCsr csr) {
  csr.row_pointers = on(csr.row_pointers);
  csr.head_offsets = on(csr.head_offsets);
  csr.columns = on(csr.columns);
  return csr;
}

void check_recall(const RecallCase& c, SelectMode mode, bool causal, bool has_map, Dtype dtype) {
  const Visibility visible{causal, c.lengths.empty() ? Tensor() : Tensor::from(c.lengths, {c.B})};
  const SelectConfig config{c.k, mode};
  const std::string what = join("recall ", c.T, " ", name_of(mode), causal, has_map, " ", dtype);
  auto mask = [&](uint64_t seed) {
    Tensor estimate = uniform({c.B, c.H, c.T, c.K}, seed, 0, 1);
    return build_csr(select_columns(estimate, visible, config).selected, visible, c.k);
  };
  const FlatCsr csr = mask(2), best = mask(3);
  const Shape shape{c.B, c.H, c.T, 6};
  const SmallDevice small(dtype);
  compare(what, dtype == Dtype::f32 ? 2e-6 : 1e-12, [&](const On& on) {
    TeacherAttention teacher;
    if (has_map) teacher.map = on(coarse_map(c, dtype));
    if (!has_map) teacher.q = on(normal(shape, 4, dtype));
    if (!has_map) teacher.k = on(normal(shape, 5, dtype));
    Tensor sums = Tensor::empty({recall::kWays, c.H}, Dtype::f64, on.device);
    Tensor rows = Tensor::empty({1}, Dtype::i64, on.device);
    const Tensor like = has_map ? teacher.map : teacher.q;
    BRINE_CALL(like, attention_recall, sums, rows, teacher, on_csr(on, csr), on_csr(on, best),
               visible, config, c.from);
    return std::vector{sums, rows};
  });
}

}  // namespace

TEST_CASE("cuda: attention_recall in every mode, from a map and from q and k") {
  const std::vector<RecallCase> cases = {{1, 1, 1, 1, 1, {}},
                                         {2, 3, 7, 4, 2, {}},
                                         {3, 2, 35, 16, 5, {35, 0, 33}, 9},
                                         {2, 2, 70, 8, 9, {9, 70}, 3},
                                         {2, 1, 9, 4, 4, {0, 0}}};
  for (const RecallCase& c : cases) {
    for (SelectMode mode : {SelectMode::per_query, SelectMode::causal_per_batch,
                            SelectMode::per_head, SelectMode::per_batch}) {
      for (int kind = 0; kind < 8; ++kind) {
        const bool causal = kind % 2, has_map = kind / 2 % 2;
        const bool across_rows = mode == SelectMode::per_head || mode == SelectMode::per_batch;
        if (causal && across_rows) continue;
        check_recall(c, mode, causal, has_map, kind / 4 ? Dtype::f32 : Dtype::f64);
      }
    }
  }
}

TEST_CASE("cuda: attention_recall of more rows than one chunk") {
  RecallCase c{128, 2, 66, 8, 9, std::vector<int64_t>(128, 0)};
  c.lengths[0] = c.lengths[100] = 66;
  c.lengths[127] = 12;
  check_recall(c, SelectMode::per_batch, false, false, Dtype::f32);
  check_recall(c, SelectMode::per_head, false, true, Dtype::f32);
  c.k = 50;
  check_recall(c, SelectMode::causal_per_batch, true, false, Dtype::f32);
  check_recall(c, SelectMode::per_query, true, true, Dtype::f32);
}
