// Stage attention of a distillation: blocks learn from the teacher's layers, one by one.
#include "distill/runs/stages/attention_stage.h"

#include "nn/io/shared_student.h"
#include "tests/distill/runs.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

LossConfig block_losses(double approx = 10, double context = 1) {
  LossConfig c;
  for (const char* loss : {"prob", "kd", "kd_task", "task"}) c[loss] = 0;
  c["approx"] = approx;
  c["context"] = context;
  return c;
}

// A teacher, a student that shares its weights, and the stage.
struct StageWorld {
  explicit StageWorld(const Sizes& s = {}, std::vector<int64_t> layers = {},
                      const LossConfig& losses = block_losses())
      : pair(s),
        student(nn::make_shared_student(pair.config, *pair.teacher, 5)),
        stage(inputs_of(pair.teacher), *student, losses, std::move(layers)) {
    store = std::make_unique<nn::ParameterStore>(
        *student, [&](const nn::Module::NamedParameter& p) { return stage.trains(p); });
  }
  // `micro` micro-batches for the step's windows.
  LossTerms step(nn::Adamw& adamw, int64_t n, int64_t windows, int64_t micro = 1) {
    WindowSource source = pair.source();
    store->zero_gradients();
    std::vector<PendingTerms> pending;
    for (int64_t i = 0; i < micro; ++i) {
      pending.push_back(stage.accumulate(source.batch(n * micro + i, windows / micro),
                                         {.share = 1.0 / double(micro)}));
    }
    LossTerms terms;
    std::vector<double> norms = read_terms(pending, adamw.part_squares(), terms);
    for (double& x : norms) x = std::sqrt(x);
    adamw.step(1, norms);
    return terms;
  }
  std::vector<NamedTensor> block(int64_t i) {
    std::vector<NamedTensor> out;
    for (const auto& t : nn::state_of(*student)) {
      if (t.name.rfind(student->attention_prefix(i), 0) == 0) out.push_back(t);
    }
    return out;
  }

  Pair pair;
  std::unique_ptr<nn::Model> student;
  AttentionStage stage;
  std::unique_ptr<nn::ParameterStore> store;
};

nn::Adamw stage_adamw(StageWorld& w, double clip = 1) {
  return {*w.store, {.clip = clip}, w.stage.plan(1e-2, 2e-2)};
}

bool same_block(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  bool all = a.size() == b.size() && !a.empty();
  for (size_t i = 0; all && i < a.size(); ++i) all = same_bits(a[i].tensor, b[i].tensor);
  return all;
}

}  // namespace

TEST_CASE("stage attention: the base is shared, has no gradients and keeps its bytes") {
  StageWorld w;
  const std::string before = w.pair.hash();
  const std::vector<NamedTensor> block = w.block(0);
  std::vector<Tensor> old;
  for (const auto& t : block) old.push_back(t.tensor.clone());
  int64_t attention = 0, base = 0;
  for (const auto& p : w.student->named_parameters()) {
    const bool trained = p.group == nn::ParameterGroup::attention;
    (trained ? attention : base) += p.parameter->value.numel();
    CHECK(wants_grad(p.parameter->value) == trained);
  }
  int64_t stored = 0;
  for (const auto& e : w.store->entries()) stored += e.size;
  CHECK(stored == attention);
  CHECK(base > 0);
  nn::Adamw adamw = stage_adamw(w);
  for (int64_t n = 0; n < 3; ++n) w.step(adamw, n, 2);
  CHECK(w.pair.hash() == before);
  int64_t moved = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    moved += !same_bits(w.block(0)[i].tensor, old[i]);
  }
  CHECK(moved > 5);
  for (const auto& p : w.student->named_parameters()) {
    if (p.group == nn::ParameterGroup::attention) continue;
    for (const auto& t : w.pair.teacher->named_parameters()) {
      if (t.path == p.path) CHECK(t.parameter->value.raw() == p.parameter->value.raw());
    }
  }
}

TEST_CASE("stage attention: a block sees the teacher's tensors, bit for bit") {
  StageWorld w;
  const Batch batch = w.pair.source().batch(0, 3);
  OnlineTeacher teacher(w.pair.teacher);
  teacher.begin(batch);
  struct First : nn::LayerObserver {
    Tensor scores, output;
    Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor&) override {
      if (layer == 0) scores = tap.get("scores"), output = tap.get("attention_output");
      return {};
    }
  } first;
  NoGrad off;
  w.student->hidden({.ids = batch.ids, .observer = &first});
  int64_t seen = 0;
  w.stage.evaluate(batch, [&](const BlockView& view) {
    CHECK(view.layer == seen++);
    TeacherLayer layer = teacher.layer(view.layer);
    for (const char* name : {"query", "key", "attention_output"}) {
      CHECK_MESSAGE(same_bits(view.teacher[name], layer[name]), name);
    }
    if (view.layer > 0) return;
    // The input of the first layer is the same for the student itself.
    CHECK(same_bits(view.block.get("scores"), first.scores));
    CHECK(same_bits(view.block.get("attention_output"), first.output));
    const TeacherSummary summary =
        summarize_teacher({.map = {}, .q = layer["query"], .k = layer["key"]}, 12, view.visible);
    const std::vector<double> parts = approx_loss(first.scores, summary, view.visible).to_vector();
    const std::vector<double> ours = first.output.to_vector(),
                              theirs = layer["attention_output"].to_vector();
    double squares = 0;
    for (size_t i = 0; i < ours.size(); ++i) squares += std::pow(ours[i] - theirs[i], 2);
    const double wanted = 10 * (0.1 * parts[0] + parts[1]) + squares / double(ours.size());
    CHECK(view.loss == doctest::Approx(wanted).epsilon(1e-5));
  });
  CHECK(seen == 2);
}

TEST_CASE("stage attention: a layer learns the same bits with and without the others") {
  StageWorld both, second({}, {1}), first({}, {0});
  // Clipping is by layer, and every step is clipped: another layer's gradient has no effect.
  nn::Adamw a = stage_adamw(both, 1e-3), b = stage_adamw(second, 1e-3),
            c = stage_adamw(first, 1e-3);
  for (int64_t n = 0; n < 3; ++n) {
    both.step(a, n, 2);
    second.step(b, n, 2);
    first.step(c, n, 2);
  }
  CHECK(same_block(both.block(1), second.block(1)));
  CHECK(same_block(both.block(0), first.block(0)));
  CHECK_FALSE(same_block(both.block(0), second.block(0)));
  CHECK(same_block(StageWorld().block(0), second.block(0)));  // untrained
  CHECK_REFUSES(StageWorld({}, {1, 0}), "layers", "0");
  CHECK_REFUSES(StageWorld({}, {2}), "layers", "2");
}

TEST_CASE("stage attention: micro-batches give the gradient of the batch up to rounding") {
  const Sizes sizes{.tokens = 40, .windows = 8};
  auto gradients = [&](int64_t micro) {
    StageWorld w(sizes);
    nn::Adamw adamw = stage_adamw(w, 0);
    const LossTerms terms = w.step(adamw, 0, 4, micro);
    return std::pair(w.store->gradients().clone(), terms);
  };
  const auto [whole, terms] = gradients(1);
  for (const int64_t micro : {2, 4}) {
    const auto [cut, of_cut] = gradients(micro);
    // Relative to the largest gradient: single precision has 6e-8 a sum.
    CHECK(close_to_scale(cut, whole, 2e-6, join(micro, " micro-batches")));
    for (const auto& [name, value] : terms) {
      CHECK(of_cut.at(name) == doctest::Approx(value).epsilon(1e-5));
    }
  }
}

TEST_CASE("stage attention: a batch is learned, and the terms name the worst layer") {
  StageWorld w({.windows = 2});
  nn::Adamw adamw = stage_adamw(w);
  LossTerms first = w.step(adamw, 0, 2), last;
  for (int64_t n = 1; n < 150; ++n) last = w.step(adamw, n, 2);
  INFO(first.at("loss") << " to " << last.at("loss"));
  CHECK(last.at("approx") < 0.5 * first.at("approx"));
  CHECK(last.at("context") < first.at("context"));
  const double worst = std::max(last.at("layer.0"), last.at("layer.1"));
  CHECK(last.at("loss") ==
        doctest::Approx((last.at("layer.0") + last.at("layer.1")) / 2).epsilon(1e-6));
  const bool second = last.at("layer.1") == worst;
  w.stage.summarize(last);
  CHECK(last.count("layer.0") == 0);
  CHECK(last.at("worst_loss") == worst);
  CHECK(last.at("worst_layer") == (second ? 1 : 0));
}

TEST_CASE("stage attention: losses that are not of a layer's attention are refused by name") {
  for (const char* loss : {"prob", "kd", "kd_task", "task"}) {
    LossConfig c = block_losses();
    c[loss] = 1;
    CHECK_REFUSES(StageWorld({}, {}, c), "stage attention", loss);
  }
  CHECK_REFUSES(StageWorld({}, {}, block_losses(0, 0)), "stage attention", "weight");
}

TEST_CASE("stage attention: rates of features, clipping by layer") {
  StageWorld w;
  const nn::ParameterPlanner plan = w.stage.plan(1, 2);
  auto of = [&](int64_t layer, const char* name) {
    return plan({.path = w.student->attention_prefix(layer) + name,
                 .group = nn::ParameterGroup::attention,
                 .parameter = nullptr,
                 .offset = 0,
                 .size = 1});
  };
  CHECK(of(0, "prior.query.weight").rate == 2);
  CHECK(of(1, "prior.key.content").rate == 2);
  CHECK(of(1, "prior.gain").rate == 1);
  CHECK(of(1, "mu.linear.weight").rate == 1);
  CHECK(of(0, "mu.linear.weight").part == 0);
  CHECK(of(1, "mu.linear.weight").part == 1);
}

}  // namespace brine::test
