// Stage `attention`: the teacher's layers, from a model or a dump, the losses of the student's
// blocks on their inputs, and the report of them by layer.
#include "distill/runs/stages/attention_stage.h"

#include <numeric>

#include "autograd/compute_type.h"
#include "distill/evaluation/health/mask_health.h"
#include "distill/losses/loss_table.h"

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
        seen.input->q_content = back_->rotated(seen.input->q, {});
        seen.input->k_content = back_->rotated(seen.input->k, {});
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

namespace {

constexpr const char* kLayerPrefix = "layer.";

void check_losses(const LossConfig& config) {
  bool any = false;
  for (const Loss& loss : losses()) {
    if (config[loss.name] == 0) continue;
    any = true;
    check(loss.name != "prob",
          "stage attention: the loss prob is constant here, since q and k are "
          "the teacher's; set its weight to 0");
    auto has = [](const std::string& part) {
      return part == data::part::attention || part == data::part::attention_outputs;
    };
    bool known = bool(loss.layer);
    for (const std::string& part : loss.needs) known = known && !source_of(part, has).empty();
    check(known, "stage attention: the loss ", loss.name,
          " is not one of a layer's attention; set its weight to 0");
  }
  check(any, "stage attention: every weight of a loss is 0");
}

}  // namespace

AttentionStage::AttentionStage(std::shared_ptr<LayerInputs> teacher, nn::Model& student,
                               const LossConfig& losses, std::vector<int64_t> layers)
    : teacher_(std::move(teacher)), student_(student), config_(losses), layers_(std::move(layers)) {
  check_losses(config_);
  const int64_t count = student_.shape().layers;
  check(teacher_->layers() == count, "stage attention: the teacher has ", teacher_->layers(),
        " layers, the student ", count);
  if (layers_.empty()) {
    layers_.resize(size_t(count));
    std::iota(layers_.begin(), layers_.end(), int64_t(0));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    check(layers_[i] >= 0 && layers_[i] < count && (i == 0 || layers_[i] > layers_[i - 1]),
          "stage attention: layers must ascend within 0 to ", count - 1, ", got ", layers_[i]);
  }
}

std::vector<PendingTerm> AttentionStage::block_terms(const Batch& batch, int64_t layer,
                                                     const SeenLayer& seen, Tensor& sum,
                                                     const BlockObserver& observer) const {
  nn::AttentionInput in = *seen.input;
  nn::Tap tap(student_.attention_name());
  in.tap = &tap;
  in.random = nullptr;
  in.returns_aux_loss = true;
  in.options = {};
  tap.request("scores");
  if (observer) tap.request("mask");
  const int64_t times = in.q.dim(1) / in.k.dim(1);
  tap.put("q", in.q);
  tap.put("k", repeat_heads(in.k, times));
  tap.put("v", repeat_heads(in.v, times));
  tap.put("attention_output", student_.attention(layer).forward(in));
  // Rounded as the teacher's products round them (--compute).
  const ProductInput rounded{product_type(in.q.dtype())};
  TeacherLayer teacher;
  teacher["query"] = rounded(in.q);
  teacher["key"] = rounded(tap.get("k"));
  teacher["attention_output"] = seen.output;
  const Tensor no_output;
  const LayerLossCall call{.config = config_,
                           .student = tap,
                           .output = no_output,
                           .teacher = teacher,
                           .batch = batch,
                           .visible = in.visible};
  std::vector<PendingTerm> terms;
  for (const Loss& loss : losses()) {
    if (config_[loss.name] == 0) continue;
    const Tensor weighted = scale(loss.layer(call), config_[loss.name]);
    terms.push_back({.name = loss.name, .value = weighted.detach()});
    sum = sum.defined() ? add(sum, weighted) : weighted;
  }
  if (tap.has("selection_loss")) {  // of a method that learns which keys to select
    const Tensor selection_loss = tap.get("selection_loss");
    terms.push_back({.name = "selection", .value = selection_loss.detach()});
    sum = sum.defined() ? add(sum, selection_loss) : selection_loss;
  }
  if (observer) {
    observer({.layer = layer,
              .teacher = teacher,
              .block = tap,
              .visible = in.visible,
              .loss = sum.item()});
  }
  return terms;
}

PendingTerms AttentionStage::accumulate(const Batch& batch, const Call& call) {
  PendingTerms all;
  teacher_->show(batch, layers_, [&](int64_t layer, const SeenLayer& seen) {
    Tensor sum;
    for (PendingTerm& term : block_terms(batch, layer, seen, sum, {})) {
      term.factor = call.share / double(layers_.size());
      all.push_back(std::move(term));
    }
    all.push_back({.name = join(kLayerPrefix, layer),
                   .value = sum.detach(),
                   .factor = call.share,
                   .in_sum = false});
    backward(scale(sum, call.share));
  });
  return all;
}

void AttentionStage::summarize(LossTerms& terms) const {
  double worst = 0;
  int64_t at = -1;
  for (const int64_t layer : layers_) {
    const auto found = terms.find(join(kLayerPrefix, layer));
    if (found == terms.end()) continue;
    if (at < 0 || found->second > worst) worst = found->second, at = layer;
    terms.erase(found);
  }
  if (at < 0) return;
  terms["worst_loss"] = worst;
  terms["worst_layer"] = double(at);
}

void AttentionStage::evaluate(const Batch& batch, const BlockObserver& observer) const {
  NoGrad off;
  teacher_->show(batch, layers_, [&](int64_t layer, const SeenLayer& seen) {
    Tensor sum;
    block_terms(batch, layer, seen, sum, observer);
  });
}

int64_t AttentionStage::index_of(const std::string& path) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (path.rfind(student_.attention_prefix(layers_[i]), 0) == 0) return int64_t(i);
  }
  return -1;
}

bool AttentionStage::trains(const nn::Module::NamedParameter& p) const {
  return p.group == nn::ParameterGroup::attention && index_of(p.path) >= 0;
}

nn::ParameterPlanner AttentionStage::plan(double rate, double feature_rate) const {
  return [this, rate, feature_rate](const nn::ParameterStore::Entry& e) {
    const int64_t part = index_of(e.path);
    const std::string name = e.path.substr(student_.attention_prefix(layers_[size_t(part)]).size());
    const bool feature = name.rfind("prior.query.", 0) == 0 || name.rfind("prior.key.", 0) == 0;
    return nn::ParameterPlan{.rate = feature ? feature_rate : rate, .part = part};
  };
}

namespace {

// K of the best columns that the mask is compared with.
int64_t columns_of(const nn::Tap& block) {
  constexpr int64_t kColumns = 64;  // of a mask without columns
  return block.has("estimate") ? block.get("estimate").dim(-1) : kColumns;
}

}  // namespace

BlockReport::BlockReport(const nn::ModelConfig& student) : layers_(size_t(student.shape().layers)) {
  const nn::MaskSettings mask = student.method().mask();
  if (mask.mode && mask.k) select_ = {.k = *mask.k, .mode = *mask.mode};
}

void BlockReport::add(const BlockView& view, double share) {
  Layer& layer = layers_.at(size_t(view.layer));
  layer.loss += share * view.loss;
  if (!select_ || !view.block.has("row_pointers")) return;
  layer.recall += attention_recall(attention_of(view.teacher), mask_of(view.block),
                                   columns_of(view.block), view.visible, *select_);
}

Values BlockReport::values() const {
  double sum = 0, worst = 0;
  int64_t at = 0;
  Values by_layer;
  std::vector<Recall> recalls;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    sum += layer.loss;
    if (layer.loss > worst) worst = layer.loss, at = int64_t(i);
    by_layer.emplace_back(join("layer.", i, ".loss"), layer.loss);
    if (layer.recall.rows == 0) continue;
    by_layer.emplace_back(join("layer.", i, ".recall"), layer.recall.mean(recall::kMask));
    recalls.push_back(layer.recall);
  }
  Values out = {{"block_loss", sum / double(layers_.size())},
                {"worst_loss", worst},
                {"worst_layer", double(at)}};
  for (const auto& [name, value] : log_values(mask_health(recalls))) {
    out.emplace_back("block_" + name, value);
  }
  out.insert(out.end(), by_layer.begin(), by_layer.end());
  return out;
}

}  // namespace brine::distill
