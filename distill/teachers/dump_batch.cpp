// The tensors of a batch for a dump, by the table of a teacher's tensors.
#include "distill/teachers/dump_batch.h"

#include <algorithm>

namespace brine::distill {
namespace {

// Heads [B, H, T, d] of which those of a group are equal -> one of each [B, G, T, d].
Tensor one_of_group(const Tensor& x, int64_t groups) {
  if (x.dim(1) == groups) return x;
  const int64_t B = x.dim(0), T = x.dim(2), d = x.dim(3), row = T * d;
  const Tensor first = x.contiguous().view({B, groups, x.numel() / (B * groups)}).slice(2, 0, row);
  return first.contiguous().view({B, groups, T, d});
}

// All rows; the whole logits exist only if they are what is kept.
TopLogits logits_of(OnlineTeacher& teacher, int64_t rows) {
  const int64_t step = teacher.model().rows_of_logits();
  TopLogits all;
  for (int64_t first = 0; first < rows; first += step) {
    const TopLogits part = teacher.logits(first, std::min(step, rows - first));
    if (rows <= step) return part;
    auto put = [&](Tensor& whole, const Tensor& x) {
      if (!x.defined()) return;
      if (!whole.defined()) {
        Shape shape = x.shape();
        shape[0] = rows;
        whole = Tensor::empty(shape, x.dtype(), x.device());
      }
      copy_into(whole.slice(0, first, x.dim(0)), x);
    };
    put(all.values, part.values);
    put(all.ids, part.ids);
    put(all.lse, part.lse);
  }
  return all;
}

}  // namespace

data::DumpBatch dump_batch(OnlineTeacher& teacher, const Batch& batch, const data::DumpSpec& spec,
                           Downloads& arriving, bool narrow) {
  std::vector<const data::TeacherTensor*> of_layers;
  TeacherNeeds needs;
  for (const data::TeacherTensor* tensor : data::teacher_tensors()) {
    if (!tensor->stored_in(spec) || !tensor->of_layer) continue;
    of_layers.push_back(tensor);
    needs.push_back({tensor->part, {}});
  }
  teacher.require(needs);
  data::DumpBatch out;
  auto download = [&](const Tensor& x, const std::string& name) {
    const data::TeacherTensor& tensor = *data::find_teacher_tensor(name);
    const bool narrows = narrow && !tensor.is_map() && tensor.is_float();
    return arriving.start(narrows ? x.to(tensor.dtype(spec)) : x);
  };
  teacher.begin(batch);
  for (int64_t i = 0; i < spec.layers; ++i) {
    TeacherLayer given = teacher.layer(i);
    const TeacherView view{.layer = given,
                           .visible = {.causal = spec.causal, .lengths = batch.lengths},
                           .columns = spec.columns};
    data::TensorSet kept;
    for (const data::TeacherTensor* tensor : of_layers) {
      const Tensor& x = teacher_tensor(view, tensor->name);
      const bool grouped = tensor->shape[0] == data::Axis::key_heads;
      kept[tensor->name] = download(grouped ? one_of_group(x, spec.key_heads) : x, tensor->name);
    }
    out.layers.push_back(std::move(kept));
  }
  if (spec.has(data::part::logits)) {
    const int64_t B = batch.ids.dim(0), T = batch.ids.dim(1);
    const TopLogits top = logits_of(teacher, B * T);
    // All of them where the largest are stored: they are still to be sorted.
    const bool unsorted = spec.logits == data::DumpLogits::top && !top.ids.defined();
    const Tensor values = unsorted ? arriving.start(top.values) : download(top.values, "logits");
    out.tensors["logits"] = values.view({B, T, top.values.dim(-1)});
    if (top.ids.defined())
      out.tensors["logit_ids"] = download(top.ids, "logit_ids").view({B, T, top.ids.dim(-1)});
    out.tensors["lse"] = download(top.lse, "lse").view({B, T});
  }
  if (spec.has(data::part::classes))
    out.tensors["classes"] = download(teacher.class_logits(), "classes");
  if (spec.stores_tokens) out.tensors["tokens"] = batch.ids;
  out.lengths = batch.lengths;
  out.windows = batch.windows;
  return out;
}

}  // namespace brine::distill
