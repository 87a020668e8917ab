// Rows of a layer's attention.
#include "distill/maps/layer_view.h"

#include <cmath>

#include "autograd/ops.h"

namespace brine::distill {
namespace {

Tensor on_cpu(const Tensor& x) {
  if (!x.defined()) return x;
  const Tensor here = x.detach().to(Device{});
  return is_float(here.dtype()) ? here.to(Dtype::f32).contiguous() : here.contiguous();
}

Tensor entry(const nn::Tap& tap, const std::string& name) {
  return tap.has(name) ? on_cpu(tap.get(name)) : Tensor();
}

}  // namespace

int64_t LayerView::heads() const {
  return teacher.map.defined() ? teacher.map.dim(1) : teacher.q.dim(1);
}

int64_t LayerView::tokens() const {
  return teacher.map.defined() ? teacher.map.dim(2) : teacher.q.dim(2);
}

LayerView view_of(const nn::Tap& tap, const TeacherAttention& teacher, bool causal) {
  LayerView view{
      .teacher = {.map = on_cpu(teacher.map), .q = on_cpu(teacher.q), .k = on_cpu(teacher.k)},
      .causal = causal,
      .estimate = entry(tap, "estimate"),
      .mask = {.row_pointers = entry(tap, "row_pointers"),
               .head_offsets = entry(tap, "head_offsets"),
               .columns = entry(tap, "columns")},
      .probabilities = entry(tap, "probabilities")};
  check(view.teacher.map.defined() || view.teacher.q.dim(0) == 1, "maps: ", view.teacher.q.dim(0),
        " sequences, wanted one");
  view.mask.batch = 1;
  view.mask.heads = view.heads();
  view.mask.length = view.mask.keys = view.tokens();
  return view;
}

Tensor teacher_tile(const LayerView& view, int64_t head, int64_t first, int64_t count) {
  NoGrad off;
  const TeacherAttention& teacher = view.teacher;
  const int64_t T = view.tokens();
  if (teacher.map.defined()) return teacher.map.select(0, 0).select(0, head).slice(0, first, count);
  const Tensor q = teacher.q.select(0, 0).select(0, head).slice(0, first, count);  // [count, d]
  const Tensor k = teacher.k.select(0, 0).select(0, head);                         // [T, d]
  // Each row as a separate sequence, whose length is the number of keys that the row sees.
  Tensor seen = Tensor::empty({count}, Dtype::i64);
  for (int64_t i = 0; i < count; ++i) seen.data<int64_t>()[i] = view.keys_of(first + i);
  const Tensor scores = matmul(q.contiguous(), k.contiguous(), false, true);
  return softmax(scores.view({count, 1, 1, T}), 1 / std::sqrt(double(q.dim(1))),
                 {.causal = false, .lengths = seen})
      .view({count, T});
}

void widen_row(const LayerView& view, int64_t head, int64_t t, std::vector<KeyMass>& out) {
  const int64_t T = view.tokens(), K = view.columns(), w = view.keys_of(t);
  const float* p = view.estimate.data<float>() + (head * T + t) * K;
  out.clear();
  double sum = 0;
  for (int64_t c = 0; c < K; ++c) {
    const int64_t first = math::column_begin(c, w, K), end = math::column_begin(c + 1, w, K);
    if (first == end) continue;
    out.push_back({first, end, p[c]});
    sum += double(p[c]) * double(end - first);
  }
  if (sum <= 0) return;
  for (KeyMass& column : out) column.mass = float(column.mass / sum);
}

void kept_keys(const LayerView& view, int64_t head, int64_t t, std::vector<KeptKey>& out) {
  const int64_t T = view.tokens();
  const RowEntries row = MaskRows(view.mask)(0, head, t);
  const bool by_entry = view.probabilities.rank() == 1;
  const float* masses =
      view.probabilities.data<float>() + (by_entry ? row.first : (head * T + t) * T);
  out.clear();
  for (int64_t i = 0; i < row.count; ++i) {
    const int64_t key = row.columns[i] - row.base;
    out.push_back({key, masses[by_entry ? i : key]});
  }
}

}  // namespace brine::distill
