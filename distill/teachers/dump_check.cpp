// Finds a dump that is not what its teacher gives.
#include "distill/teachers/dump_check.h"

#include <algorithm>
#include <cmath>

#include "distill/teachers/dump_batch.h"

namespace brine::distill {
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
