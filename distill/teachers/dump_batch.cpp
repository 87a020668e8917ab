// The tensors of a batch for a dump, by the table of a teacher's tensors, and the comparison of a
// dump's sample with an online teacher.
#include "distill/teachers/dump_batch.h"

#include <algorithm>
#include <cmath>

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

namespace {

// Tokens of a causal sample that are compared: a pass of them takes a second or two.
constexpr int64_t kTokens = 256;
// The largest relative distance of a tensor that the types of the dump and of the teacher explain:
// 16-bit passes through many layers differ by some percent, the mistakes below by more than half.
constexpr double kTolerance = 0.1;

struct Sums {
  double xx = 0, xy = 0, yy = 0;
  double distance(double factor = 1) const {  // of factor x from y, relative to y
    return std::sqrt(std::max(0.0, factor * factor * xx - 2 * factor * xy + yy) /
                     std::max(yy, 1e-300));
  }
  double best_factor() const { return xx > 0 ? xy / xx : 1; }
};

Sums sums_of(const std::vector<double>& x, const std::vector<double>& y) {
  Sums out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.xx += x[i] * x[i];
    out.xy += x[i] * y[i];
    out.yy += y[i] * y[i];
  }
  return out;
}

std::string percent(double share) { return join(std::llround(100 * share), " %"); }

// Whether rows [.., T, d] have the lengths of the others and are equal at the first position, as
// before and after a rotation by positions.
bool is_rotation(const std::vector<double>& x, const std::vector<double>& y, int64_t T, int64_t d) {
  double norms = 0, first = 0, all = 0, all_first = 0;
  for (size_t row = 0; row < x.size() / size_t(d); ++row) {
    double of_x = 0, of_y = 0, difference = 0;
    for (int64_t i = 0; i < d; ++i) {
      const double a = x[row * size_t(d) + size_t(i)], b = y[row * size_t(d) + size_t(i)];
      of_x += a * a;
      of_y += b * b;
      difference += (a - b) * (a - b);
    }
    norms += std::abs(of_x - of_y);
    all += of_y;
    if (int64_t(row) % T == 0) first += difference, all_first += of_y;
  }
  return norms < kTolerance * all && first < kTolerance * kTolerance * all_first;
}

struct Comparison {
  const data::DumpReader& dump;
  int64_t sample, tokens;
  std::shared_ptr<nn::Model> teacher;

  void compare(const data::TeacherTensor& tensor, int64_t layer, const Tensor& stored,
               const Tensor& given);
  std::string reason(const data::TeacherTensor& tensor, int64_t layer, const Tensor& given,
                     const std::vector<double>& x, const std::vector<double>& y) const;
  bool any_equal = false;  // a tensor before this one is the teacher's
};

std::string Comparison::reason(const data::TeacherTensor& tensor, int64_t layer,
                               const Tensor& given, const std::vector<double>& x,
                               const std::vector<double>& y) const {
  const std::string& name = tensor.name;
  if (name == "output" && layer + 1 == dump.spec().layers) {
    const std::vector<double> normed = teacher->finish(given.to(default_device())).to_vector();
    if (normed.size() == x.size() && sums_of(x, normed).distance() < kTolerance)
      return "it is from after the final norm, as transformers' last hidden_states; store the "
             "output of the last layer";
  }
  const bool head = name == "query" || name == "key";
  if (head && is_rotation(x, y, tokens, dump.spec().head_size))
    return "its rows have the right lengths and other directions: it is from before the rotation "
           "by positions, store it after the rotation";
  const Sums sums = sums_of(x, y);
  const double factor = sums.best_factor();
  if (sums.distance(factor) < kTolerance) {
    const int64_t d = dump.spec().head_size;
    const bool by_scale = std::abs(factor / std::sqrt(double(d)) - 1) < 0.05;
    return join("it is the teacher's divided by ", std::round(factor * 1e4) / 1e4,
                by_scale ? join(", the root of the head size ", d,
                                ": store q before the scale of attention")
                         : "");
  }
  if (!any_equal) return "the dump is of other tokens or of other weights";
  return "what was stored before it is the teacher's, so it is another tensor";
}

void Comparison::compare(const data::TeacherTensor& tensor, int64_t layer, const Tensor& stored,
                         const Tensor& given) {
  const std::vector<double> x = tensor.first_tokens(stored, tokens).to_vector(),
                            y = given.to_vector();
  const std::string what = join(dump.dir().string(), ": sample ", sample, ": ", tensor.path(layer));
  check(x.size() == y.size(), what, ": has ", x.size(), " values of ", tokens,
        " tokens, the teacher gives ", y.size());
  const double distance = sums_of(x, y).distance();
  check(std::isfinite(distance), what, ": has a value that is not finite");
  check(distance < kTolerance, what, ": differs by ", percent(distance),
        " from what the teacher gives; ", reason(tensor, layer, given, x, y));
  any_equal = true;
}

}  // namespace

void compare_with_teacher(const data::DumpReader& dump, int64_t sample,
                          std::shared_ptr<nn::Model> teacher, const Tensor& ids,
                          const Tensor& type_ids) {
  NoGrad off;
  data::DumpSpec spec = dump.spec();
  const data::DumpBatch stored = dump.read(std::vector<int64_t>{sample});
  int64_t T = stored.lengths.data<int64_t>()[0];
  check(ids.dim(1) >= T, dump.dir().string(), ": sample ", sample, " has ", T,
        " tokens, given are ", ids.dim(1));
  if (spec.causal) T = std::min(T, kTokens);
  auto first = [T](const Tensor& x) {
    return x.defined() ? x.slice(1, 0, T).contiguous() : Tensor();
  };
  const Batch batch{
      .ids = first(ids), .lengths = {}, .windows = {}, .tokens = T, .type_ids = first(type_ids)};
  spec.stores_tokens = false;  // compared before with the run's
  OnlineTeacher online(teacher, spec.logits == data::DumpLogits::top ? spec.top_n : 0);
  Downloads arriving;
  data::DumpBatch given = dump_batch(online, batch, spec, arriving);
  arriving.finish();
  if (spec.logits == data::DumpLogits::top && !given.tensors["logit_ids"].defined()) {
    const Tensor all = given.tensors["logits"];  // N is the vocabulary: they are not sorted
    data::keep_top_logits(given, all, spec.top_n);
  }
  Comparison comparison{.dump = dump, .sample = sample, .tokens = T, .teacher = teacher};
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    for (const data::TeacherTensor* tensor : data::teacher_tensors()) {
      if (!tensor->of_layer || !tensor->stored_in(spec)) continue;
      comparison.compare(*tensor, layer, stored.layers[size_t(layer)][tensor->name],
                         given.layers[size_t(layer)][tensor->name]);
    }
  }
  for (const data::TeacherTensor* tensor : data::teacher_tensors()) {
    if (tensor->of_layer || !tensor->is_float() || !tensor->stored_in(spec)) continue;
    comparison.compare(*tensor, 0, stored.tensors[tensor->name], given.tensors[tensor->name]);
  }
}

}  // namespace brine::distill
