// Sharing weights between a teacher and its student.
#include "nn/io/shared_student.h"

#include <algorithm>
#include <unordered_map>

#include "autograd/node.h"
#include "nn/optim/parameter_store.h"

namespace brine::nn {
namespace {

std::unordered_map<const Parameter*, std::string> paths_of(Module& root) {
  std::unordered_map<const Parameter*, std::string> out;
  for (const auto& p : root.named_parameters()) out[p.parameter] = p.path;
  return out;
}

void share_parameters(Model& student, Model& teacher) {
  std::unordered_map<std::string, Tensor> theirs;
  for (const NamedTensor& t : state_of(teacher)) theirs[t.name] = t.tensor;
  auto share = [&](const std::string& path, Tensor& value) {
    if (student.is_attention_tensor(path)) return;
    const auto found = theirs.find(path);
    check(found != theirs.end() && found->second.shape() == value.shape(), "student: the teacher ",
          "has no ", path, " ", value.shape());
    value = found->second;
  };
  for (const auto& p : student.named_parameters()) share(p.path, p.parameter->value);
  for (const auto& b : student.named_buffers()) share(b.path, b.buffer->value);
}

// Products of packed parameters read their common value.
void share_packed(Model& student, Model& teacher) {
  const auto ours = paths_of(student), names = paths_of(teacher);
  std::unordered_map<std::string, const Packed*> theirs;  // by the path of the first member
  for (const Packed* p : teacher.packed()) {
    if (!p->members.empty()) theirs[names.at(p->members[0])] = p;
  }
  for (Packed* p : student.packed()) {
    if (p->members.empty()) continue;
    const auto found = theirs.find(ours.at(p->members[0]));
    if (found != theirs.end()) p->value = found->second->value;
  }
}

void initialise_attention(Model& student, const ModelConfig& config, uint64_t seed) {
  Init init{.random = {.seed = seed, .stream = 1}};
  for (int64_t i = 0; i < student.shape().layers; ++i) {
    const std::unique_ptr<Attention> made = config.method().make(init, student.shape().attention());
    const auto from = made->named_parameters(), to = student.attention(i).named_parameters();
    for (size_t p = 0; p < to.size(); ++p) to[p].parameter->value = from[p].parameter->value;
    const auto drawn = made->named_buffers(), empty = student.attention(i).named_buffers();
    for (size_t b = 0; b < empty.size(); ++b) empty[b].buffer->value = drawn[b].buffer->value;
  }
}

}  // namespace

std::unique_ptr<Model> make_shared_student(const ModelConfig& config, Model& teacher,
                                           uint64_t seed) {
  std::unique_ptr<Model> student =
      make_model(config, Init{.random = {.seed = seed, .stream = 1}, .device = Device::meta});
  share_parameters(*student, teacher);
  share_packed(*student, teacher);
  initialise_attention(*student, config, seed);
  return student;
}

int64_t calibrate_attention(Model& student, Model& teacher, const Tensor& ids) {
  struct Calibration : AttentionObserver {
    explicit Calibration(Model& student) : student(student) {}
    void observe(const AttentionInput& in, const Tensor&) override {
      student.attention(layer++).calibrate(in.k.detach(), in.visible);
    }
    Model& student;
    int64_t layer = 0;
  } calibration(student);
  NoGrad off;
  const int64_t T = std::min({ids.dim(1), kCalibrationTokens, teacher.shape().max_positions});
  teacher.hidden(
      {.ids = ids.slice(0, 0, 1).slice(1, 0, T).contiguous(), .attention_observer = &calibration});
  return T;
}

int64_t calibrate_attention(const LoadedModel& m, const Tensor& ids) {
  ModelConfig config = m.config;
  config.attention = "flash";
  const std::unique_ptr<Model> teacher = make_shared_student(config, *m.model, 0);
  m.uncalibrated = false;
  return calibrate_attention(*m.model, *teacher, ids);
}

void replace_attention(LoadedModel& m) {
  const std::shared_ptr<Model> former = m.model;
  m.model = make_shared_student(m.config, *former, 0);
  if (former->attention_name() == m.model->attention_name()) {
    std::vector<NamedTensor> learned = state_of(*former);
    std::erase_if(learned,
                  [&](const NamedTensor& t) { return !former->is_attention_tensor(t.name); });
    load_state(*m.model, learned, "model", [](const std::string&) { return true; });
  } else {
    m.uncalibrated = m.model->attention_traits().calibrates;
  }
  const auto of_attention = [&](const Module::NamedParameter& p) {
    return m.model->is_attention_tensor(p.path);
  };
  m.store.reset();
  if (std::ranges::any_of(m.model->named_parameters(), of_attention)) {
    m.store = std::make_unique<ParameterStore>(*m.model, of_attention);
  } else {
    move_buffers(*m.model, default_device());
  }
}

}  // namespace brine::nn
