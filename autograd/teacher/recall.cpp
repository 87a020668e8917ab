// The teacher's attention mass on a mask and on masks to compare it with; no gradient.
#include "tensor/mask/recall.h"
#include "autograd/ops_teacher.h"
#include "tensor/kernels/teacher.h"

namespace brine {

RecallSums recall_sums(const TeacherAttention& given, const FlatCsr& csr, int64_t K,
                       const Visibility& visible, const SelectConfig& config, int64_t from) {
  Tensor like = given.map.defined() ? given.map : given.q;
  check(like.defined() && like.rank() == 4 && like.dim(0) == csr.batch &&
            like.dim(1) == csr.heads && like.dim(2) == csr.length && csr.keys == csr.length,
        "attention_recall: the teacher does not fit a mask of ", csr.batch, " sequences, ",
        csr.heads, " heads, ", csr.length, " rows and ", csr.keys, " keys");
  auto packed = [](const Tensor& t) {
    return t.defined() ? t.detach().to(sum_type(t.dtype())).contiguous() : t;
  };
  TeacherAttention teacher{packed(given.map), packed(given.q), packed(given.k)};
  TeacherSummary summary = summarize_teacher(teacher, K, visible);
  FlatCsr best =
      build_csr(select_columns(summary.tau, visible, config).selected, visible, config.k);
  RecallSums out{Tensor::empty({recall::kWays, csr.heads}, Dtype::f64, like.device()),
                 Tensor::empty({1}, Dtype::i64, like.device())};
  BRINE_CALL(like, attention_recall, out.sums, out.rows, teacher, csr, best, visible, config, from);
  return out;
}

}  // namespace brine
