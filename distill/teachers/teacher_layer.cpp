// How tensors of a teacher are computed from its other tensors.
#include "distill/teachers/teacher_layer.h"

#include <cmath>
#include <map>

#include "autograd/ops.h"

namespace brine::distill {
namespace {

struct Computation {
  std::vector<std::string> from;
  TeacherFunction compute;
};

// softmax(q k^T / sqrt(d)) over the visible keys.
void compute_map(const TeacherView& view) {
  const Tensor &q = view.layer["query"], &k = view.layer["key"];
  check(q.defined() && k.defined(), "teacher: a map of attention needs query and key");
  const Tensor scores = matmul(q, k, false, true);
  view.layer["attention"] = softmax(scores, 1 / std::sqrt(double(q.dim(-1))), view.visible);
}

void compute_pooled(const TeacherView& view) {
  check(view.columns > 0, "teacher: pooled attention needs the number of columns");
  const TeacherSummary s = summarize_teacher(attention_of(view.layer), view.columns, view.visible);
  view.layer["tau"] = s.tau;
  view.layer["t_log_t"] = s.t_log_t;
  view.layer["t_square"] = s.t_square;
}

std::map<std::string, Computation, std::less<>>& computations() {
  static std::map<std::string, Computation, std::less<>> all = {
      {"attention", {{data::part::attention}, compute_map}},
      {"tau", {{data::part::attention}, compute_pooled}},
      {"t_log_t", {{data::part::attention}, compute_pooled}},
      {"t_square", {{data::part::attention}, compute_pooled}},
  };
  return all;
}

// How the tensors of a part are computed from other parts; null: they cannot be.
const Computation* computation_of(const std::string& part) {
  for (const data::TeacherTensor* tensor : data::teacher_tensors()) {
    auto found = computations().find(tensor->name);
    if (tensor->part == part && found != computations().end() && found->second.from[0] != part)
      return &found->second;
  }
  return nullptr;
}

}  // namespace

TeacherAttention attention_of(const TeacherLayer& layer) {
  return {.map = layer["attention"], .q = layer["query"], .k = layer["key"]};
}

const Tensor& teacher_tensor(const TeacherView& view, const std::string& name) {
  if (!view.layer.has(name)) {
    auto found = computations().find(name);
    check(found != computations().end(), "teacher: has no ", name, ", and it cannot be computed");
    NoGrad off;
    found->second.compute(view);
    check(view.layer.has(name), "teacher: ", name, " was not computed");
  }
  return view.layer[name];
}

TeacherSummary teacher_summary(const TeacherView& view) {
  const Tensor& tau = teacher_tensor(view, "tau");
  check(tau.dim(-1) == view.columns, "losses: the teacher's attention is pooled into ", tau.dim(-1),
        " columns, the student has ", view.columns);
  return {tau, teacher_tensor(view, "t_log_t"), teacher_tensor(view, "t_square")};
}

std::vector<std::string> sources_of(const std::string& part,
                                    const std::function<bool(const std::string&)>& has) {
  if (has(part)) return {part};
  const Computation* computation = computation_of(part);
  if (!computation) return {};
  std::vector<std::string> all;
  for (const std::string& from : computation->from) {
    const std::vector<std::string> sources = sources_of(from, has);
    if (sources.empty()) return {};
    all.insert(all.end(), sources.begin(), sources.end());
  }
  return all;
}

std::string computed_from(const std::string& part) {
  const Computation* computation = computation_of(part);
  std::string text;
  if (computation) {
    for (const std::string& from : computation->from) text += (text.empty() ? "" : " and ") + from;
  }
  return text;
}

RegisterTeacherTensor::RegisterTeacherTensor(data::TeacherTensor tensor,
                                             std::vector<std::string> from,
                                             TeacherFunction compute) {
  const std::string name = tensor.name;
  check(!from.empty() && compute, "teacher: tensor '", name,
        "' needs at least one part to be computed from");
  for (const std::string& part : from) {
    bool known = part == kRunningModel;
    for (const data::TeacherTensor* other : data::teacher_tensors()) known |= other->part == part;
    check(known, "teacher: tensor '", name, "' is computed from '", part, "', which is not a part");
  }
  data::register_teacher_tensor(std::move(tensor));
  computations()[name] = {std::move(from), std::move(compute)};
}

}  // namespace brine::distill
