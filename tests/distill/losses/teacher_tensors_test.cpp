// Two teacher tensors and two losses that exist only in this file: registered here, they are
// computed, dumped, read, configured and refused by name without a change anywhere else.
#include "distill/teachers/teacher.h"

#include <filesystem>

#include "data/dump/dump_reader.h"
#include "data/hdf5/hdf5_file.h"
#include "distill/losses/loss_table.h"
#include "distill/runs/settings/training_settings.h"
#include "tests/distill/losses/evaluated.h"
#include "tests/distill/setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

using data::Axis;

// - sum t log t of every row of attention, which is between 0 and log T.
void compute_entropy(const TeacherView& view) {
  const Tensor& map = teacher_tensor(view, "attention");
  const int64_t B = map.dim(0), H = map.dim(1), T = map.dim(2);
  Tensor entropy = Tensor::zeros({B, H, T});
  const std::vector<double> t = map.to(Device{}).to_vector();
  for (size_t i = 0; i < t.size(); ++i) {
    if (t[i] > 0) entropy.data<float>()[i / size_t(T)] -= float(t[i] * std::log(t[i]));
  }
  view.layer["row_entropy"] = entropy;
}

const RegisterTeacherTensor row_entropy({.name = "row_entropy",
                                         .shape = {Axis::heads, Axis::tokens},
                                         .type = data::TeacherTensor::Type::f32},
                                        {data::part::attention}, compute_entropy);

const RegisterTeacherTensor value({.name = "head_value",
                                   .shape = {Axis::heads, Axis::tokens, Axis::head_size}},
                                  {kRunningModel}, [](const TeacherView& view) {
                                    view.layer["head_value"] = view.tap->get("v").detach();
                                  });

Tensor mean_square(const Tensor& x, const Tensor& y) {
  return squared_distance(x, y, Tensor::full({x.rows()}, 1 / double(x.numel()), x.dtype()));
}

const RegisterLoss value_loss({.name = "test_value",
                               .help = "Weight of the distance of the values",
                               .needs = {"head_value"},
                               .layer = [](const LayerLossCall& call) {
                                 return mean_square(call.student.get("v"),
                                                    call.of_teacher("head_value"));
                               }});

// Draws the first feature of each query to the entropy of the teacher's row.
const RegisterLoss entropy_loss({.name = "test_entropy",
                                 .help = "Weight of the distance to the entropies",
                                 .needs = {"row_entropy"},
                                 .layer = [](const LayerLossCall& call) {
                                   const Tensor& q = call.student.get("q");
                                   const Tensor& e = call.of_teacher("row_entropy");
                                   const Shape one{q.dim(0), q.dim(1), q.dim(2), 1};
                                   return mean_square(slice(q, 3, 0, 1), e.view(one));
                                 }});

LossConfig registered_losses(double value = 0.5, double entropy = 2) {
  LossConfig c = task_only();
  c["task"] = 0;
  c["test_value"] = value;
  c["test_entropy"] = entropy;
  return c;
}

Evaluated evaluated(Pair& pair, Teacher& teacher, const LossConfig& losses) {
  pair.store->zero_gradients();
  Evaluated out;
  Objective(*pair.student, &teacher, losses).run(pair.source().batch(0, 3), {}, out.terms);
  out.gradients = pair.store->gradients().clone();
  return out;
}

void check_equal(const Evaluated& a, const Evaluated& b, double tolerance) {
  REQUIRE(a.terms.size() == b.terms.size());
  for (const auto& [name, x] : a.terms)
    CHECK(x == doctest::Approx(b.terms.at(name)).epsilon(tolerance));
  CHECK(close_to_scale(a.gradients, b.gradients, tolerance, "gradients"));
}

}  // namespace

TEST_CASE("teacher tensors: losses on registered ones are the same online and from a dump") {
  Pair pair;
  Scratch scratch;
  const std::string dir = (scratch / "dump").string();
  write_dump(pair, dir, data::DumpContent::maps, 8, true, Dtype::f32,
             {"row_entropy", "head_value"});
  OnlineTeacher online(pair.teacher);
  DumpTeacher dumped(dir, expected_of(pair));
  const Evaluated a = evaluated(pair, online, registered_losses());
  CHECK(a.terms.at("test_value") > 0);
  CHECK(a.terms.at("test_entropy") > 0);
  CHECK(a.terms.at("loss") ==
        doctest::Approx(a.terms.at("test_value") + a.terms.at("test_entropy")));
  CHECK(largest(a.gradients.to_vector()) > 0);
  check_equal(evaluated(pair, dumped, registered_losses()), a, 1e-5);
  // The files have them in the type given by each row.
  const std::string half = (scratch / "half").string();
  write_dump(pair, half, data::DumpContent::qk, 8, true, Dtype::f16, {"head_value", "row_entropy"});
  data::Hdf5Reader shard(half + "/shard-00000.h5");
  CHECK(shard.info("layers/01/head_value").dtype == Dtype::f16);
  CHECK(shard.info("layers/01/head_value").shape == Shape{7, 3, 16, 8});
  CHECK(shard.info("layers/00/row_entropy").dtype == Dtype::f32);
  CHECK(shard.string_attribute("/", "tensors") == "head_value,row_entropy");
}

TEST_CASE("teacher tensors: tensors that a dump lacks are computed if possible") {
  Pair pair;
  Scratch scratch;
  const std::string qk = (scratch / "qk").string(), none = (scratch / "none").string();
  write_dump(pair, qk, data::DumpContent::qk, 8);
  write_dump(pair, none, data::DumpContent::none, 8);
  OnlineTeacher online(pair.teacher);
  DumpTeacher of_qk(qk, expected_of(pair)), of_none(none, expected_of(pair));
  const LossConfig entropy = registered_losses(0), value = registered_losses(1, 0);
  check_equal(evaluated(pair, of_qk, entropy), evaluated(pair, online, entropy), 1e-5);
  auto refused = [&](Teacher& teacher, const LossConfig& losses) {
    return message([&] { Objective(*pair.student, &teacher, losses); });
  };
  check_says(refused(of_qk, value), {qk, "head_value", "model", "loss test_value"});
  check_says(refused(of_none, entropy), {none, "row_entropy", "attention", "loss test_entropy"});
  SelfTeacher self;
  CHECK(refused(self, entropy) == "no error");
  check_says(refused(self, value), {"teacher", "self", "head_value", "losses.test_value", "0"});
}

TEST_CASE("losses: a registered one has a key, weight 0 and an entry in the table") {
  LossConfig config;
  CHECK(config["test_entropy"] == 0);
  LossWeights weights;
  data::Schema schema = data::schema_of(weights);
  REQUIRE(schema.find("test_entropy"));
  CHECK_FALSE(weights["test_entropy"].has_value());
  schema.set_text("test_entropy", {"0.25"});
  CHECK(weights["test_entropy"] == 0.25);
  CHECK(message([&] { config["entropie"] = 1; }) == "losses: unknown loss 'entropie'");
  auto refused = [](const Loss& loss) { return message([&] { RegisterLoss{loss}; }); };
  auto layer = [](const LayerLossCall& call) { return call.output; };
  CHECK(contains(refused({.name = "kd", .help = "", .needs = {"head_value"}, .layer = layer}),
                 "two losses 'kd'"));
  CHECK(contains(
      refused({.name = "x", .help = "", .weight = 1, .needs = {"head_value"}, .layer = layer}),
      "default weight of 'x' must be 0"));
  CHECK(contains(refused({.name = "x", .help = ""}), "of layers or of logits"));
  CHECK(contains(refused({.name = "x", .help = "", .layer = layer}), "must name a teacher tensor"));
}

}  // namespace brine::test
