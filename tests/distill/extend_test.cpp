// A model stretched to more positions.
#include "nn/io/extend.h"

#include "tests/distill/setup.h"
#include "tests/messages.h"
#include "tests/nn/io/model_dirs.h"

namespace brine::test {
namespace {

std::map<std::string, Tensor> state(nn::Model& model) {
  std::map<std::string, Tensor> out;
  for (const auto& [name, tensor] : nn::state_of(model)) out[name] = tensor;
  return out;
}

// Row r of a table [first + P, C] stretched to Q positions, by the words of the method.
std::vector<double> stretched_row(const Tensor& table, int64_t first, int64_t P, int64_t Q,
                                  int64_t r) {
  const int64_t C = table.dim(1);
  std::vector<double> x = table.to_vector(), out;
  const double at = double(r) * double(P - 1) / double(Q - 1);
  for (int64_t c = 0; c < C; ++c) {
    double sum = 0;
    for (int64_t p = 0; p < P; ++p) {  // hats around the old positions
      sum += std::max(0.0, 1 - std::fabs(at - double(p))) * x[size_t((first + p) * C + c)];
    }
    out.push_back(sum);
  }
  return out;
}

}  // namespace

TEST_CASE("extend: tables of positions are stretched, all else is kept, the model runs longer") {
  Pair pair({.tokens = 16});
  nn::LoadedModel model;
  model.config = pair.config;
  model.model = std::move(pair.student);
  model.directory = "student";
  nn::LoadedModel longer = nn::extend_positions(model, 40);
  CHECK(longer.config.shape().max_positions == 40);
  auto before = state(*model.model), after = state(*longer.model);
  REQUIRE(before.size() == after.size());
  int tables = 0;
  for (const auto& [name, tensor] : before) {
    CAPTURE(name);
    const Tensor& now = after.at(name);
    if (name.ends_with("embed_positions.weight") || name.ends_with("v_identity.table")) {
      ++tables;
      const int64_t first = name.ends_with("weight") ? 2 : 0;
      REQUIRE(now.dim(0) == first + 40);
      for (int64_t r = 0; r < 40; ++r) {
        std::vector<double> row = now.slice(0, first + r, 1).contiguous().to_vector();
        CHECK(close(row, stretched_row(tensor, first, 16, 40, r), 1e-6, 1e-6, name));
      }
      CHECK(now.slice(0, 0, first + 1).contiguous().to_vector() ==
            tensor.slice(0, 0, first + 1).contiguous().to_vector());
    } else {
      CHECK(now.to_vector() == tensor.to_vector());
    }
  }
  CHECK(tables == 3);  // the model's, and one of each layer's method
  NoGrad off;
  CHECK(longer.model->hidden({.ids = ids({2, 40}, 3, 37)}).shape() == Shape{2, 40, 24});
  CHECK(message([&] { nn::extend_positions(model, 16); }) ==
        "extend: student has 16 positions already, requested 16");
}

TEST_CASE("extend: an encoder") {
  nn::LoadedModel bert = nn::load_model(golden_dir("bert_classifier"));
  const int64_t before = bert.config.shape().max_positions;
  nn::LoadedModel longer = nn::extend_positions(bert, before + 9);
  CHECK(state(*longer.model).at("bert.embeddings.position_embeddings.weight").dim(0) == before + 9);
}

}  // namespace brine::test
