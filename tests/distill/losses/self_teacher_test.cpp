// The student as its own teacher: the same losses as from its dense maps, written down beforehand.
#include "distill/teachers/teacher.h"

#include "tests/distill/losses/evaluated.h"
#include "tests/distill/setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// Keeps the dense attention maps of every layer of a student.
class MapKeeper : public nn::LayerObserver {
 public:
  Tensor observe(int64_t, const nn::Tap& tap, const Tensor&) override {
    maps.push_back(map_of({{}, tap.get("q").detach(), tap.get("k").detach()}).detach());
    return {};
  }
  std::vector<Tensor> maps;
};

// Gives these maps and nothing else.
class MapTeacher : public Teacher {
 public:
  explicit MapTeacher(std::vector<Tensor> maps) : maps_(std::move(maps)) {}
  void require(const TeacherNeeds&) override {}
  void begin(const Batch&) override {}
  TeacherLayer layer(int64_t i) override {
    TeacherLayer layer;
    layer["attention"] = maps_.at(size_t(i));
    return layer;
  }
  TopLogits logits(int64_t, int64_t) override { throw Error("no logits"); }

 private:
  std::vector<Tensor> maps_;
};

LossConfig self_losses() {
  LossConfig c;
  c["context"] = c["kd"] = c["kd_task"] = 0;
  return c;
}

Evaluated evaluated(Pair& pair, Teacher& teacher, const Batch& batch, const LossConfig& losses,
                    bool recompute = false) {
  pair.store->zero_gradients();
  Objective objective(*pair.student, &teacher, losses);
  Evaluated out;
  objective.run(batch, {.recompute = recompute}, out.terms);
  out.gradients = pair.store->gradients().clone();
  return out;
}

}  // namespace

TEST_CASE(
    "self teacher: the losses are those of the student's own dense maps, treated as constants") {
  Pair pair({.dtype = Dtype::f64});
  Batch batch = pair.source().in_order(0, 3);
  MapKeeper keeper;
  {
    NoGrad off;
    pair.student->hidden({.ids = batch.ids, .observer = &keeper});
  }
  MapTeacher written(keeper.maps);
  SelfTeacher self;
  Evaluated want = evaluated(pair, written, batch, self_losses());
  for (bool recompute : {false, true}) {
    CAPTURE(recompute);
    Evaluated got = evaluated(pair, self, batch, self_losses(), recompute);
    CHECK(got.terms.at("approx") == doctest::Approx(want.terms.at("approx")).epsilon(1e-9));
    CHECK(got.terms.at("approx") > 0);
    CHECK(std::fabs(got.terms.at("prob")) < 1e-12);  // its dense attention against itself
    CHECK(close_to_scale(got.gradients, want.gradients, 1e-9, "gradients"));
  }
}

TEST_CASE("self teacher: refuses by name the losses that it cannot provide") {
  Pair pair;
  SelfTeacher self;
  auto refused = [&](const char* weight) {
    LossConfig losses = self_losses();
    losses[weight] = 1;
    return message([&] { Objective(*pair.student, &self, losses); });
  };
  check_says(refused("kd"), {"teacher", "self", "layer outputs", "losses.kd", "0"});
  check_says(refused("context"), {"teacher", "self", "attention outputs", "losses.context", "0"});
  check_says(refused("kd_task"), {"teacher", "self", "logits", "losses.kd_task", "0"});
}

}  // namespace brine::test
