// What the attention methods of a teacher's layers read and give.
#include "distill/runs/stages/layer_inputs.h"

namespace brine::distill {
namespace {

void check_has_keys(const DumpTeacher& dump) {
  check(dump.spec().content == data::DumpContent::qk, dump.dir(), ": has no q and k, which stage ",
        "attention reads; dump the teacher with content qk");
}

class ModelInputs : public LayerInputs {
 public:
  explicit ModelInputs(std::shared_ptr<nn::Model> teacher) : teacher_(std::move(teacher)) {}

  int64_t layers() const override { return teacher_->shape().layers; }

  void show(const Batch& batch, const std::vector<int64_t>& layers,
            const std::function<void(int64_t, const SeenLayer&)>& at) override {
    nn::ModelCall call =
        nn::pack_rows({.ids = batch.ids, .lengths = batch.lengths, .type_ids = batch.type_ids});
    Tensor x;
    {
      NoGrad off;
      x = teacher_->embed(call);
    }
    auto wanted = layers.begin();
    for (int64_t i = 0; i <= layers.back(); ++i) {
      SeenLayer seen;
      {
        NoGrad off;
        call.attention_observer = i == *wanted ? &seen : nullptr;
        x = teacher_->layer(i, x, call, nullptr).detach();
      }
      if (i != *wanted) continue;
      ++wanted;
      check(seen.input.has_value(), "stage attention: layer ", i,
            " of the teacher showed no input of its attention");
      at(i, seen);
    }
  }

 private:
  std::shared_ptr<nn::Model> teacher_;
};

class DumpInputs : public LayerInputs {
 public:
  // back: of the positions, if q and k before them are wanted.
  DumpInputs(std::shared_ptr<DumpTeacher> dump, std::optional<nn::Positions> back)
      : dump_(std::move(dump)), back_(std::move(back)) {}

  int64_t layers() const override { return dump_->spec().layers; }

  void show(const Batch& batch, const std::vector<int64_t>& layers,
            const std::function<void(int64_t, const SeenLayer&)>& at) override {
    dump_->begin(batch);
    auto wide = [](const Tensor& x) { return x.to(sum_type(x.dtype())); };
    for (const int64_t i : layers) {
      const TeacherLayer layer = dump_->grouped_layer(i);
      SeenLayer seen;
      seen.input = {.q = wide(layer["query"]),
                    .k = wide(layer["key"]),
                    .v = wide(layer["value"]),
                    .hidden = {},
                    .visible = {.causal = dump_->spec().causal, .lengths = batch.lengths}};
      if (back_) {
        seen.input->q_content = back_->turned(seen.input->q, {});
        seen.input->k_content = back_->turned(seen.input->k, {});
      }
      seen.output = layer["attention_output"];
      at(i, seen);
    }
  }

 private:
  std::shared_ptr<DumpTeacher> dump_;
  std::optional<nn::Positions> back_;
};

}  // namespace

void calibrate_from(DumpTeacher& dump, const Batch& batch, nn::Model& student) {
  check_has_keys(dump);
  dump.require({{.part = data::part::attention, .losses = {"calibration"}}});
  dump.begin(batch);
  for (int64_t i = 0; i < student.shape().layers; ++i) {
    const Tensor keys = dump.grouped_layer(i)["key"];
    student.attention(i).calibrate(keys.to(sum_type(keys.dtype())),
                                   {.causal = dump.spec().causal, .lengths = batch.lengths});
  }
}

std::shared_ptr<LayerInputs> inputs_of(std::shared_ptr<nn::Model> teacher) {
  return std::make_shared<ModelInputs>(std::move(teacher));
}

std::shared_ptr<LayerInputs> inputs_of(std::shared_ptr<DumpTeacher> dump, const nn::Model& student,
                                       bool context) {
  const std::string dir = dump->dir();
  const nn::AttentionTraits method = student.attention_traits();
  check_has_keys(*dump);
  check(dump->spec().value, dir, ": has no values, which stage attention reads; dump the teacher ",
        "with values (brine dump --value, or value=True in Python)");
  check(!method.reads_hidden, dir, ": has no inputs of the layers, which this attention method ",
        "reads; let the teacher run (--data, without --dump)");
  TeacherNeeds needs = {{.part = data::part::attention, .losses = {"approx"}},
                        {.part = data::part::values, .losses = {"approx"}}};
  if (context) needs.push_back({.part = data::part::attention_outputs, .losses = {"context"}});
  dump->require(needs);
  std::optional<nn::Positions> back;
  const nn::Positions* positions = student.rotary_positions();
  if (method.reads_content && positions) back = positions->reversed();
  return std::make_shared<DumpInputs>(std::move(dump), std::move(back));
}

}  // namespace brine::distill
