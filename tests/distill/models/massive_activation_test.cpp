// Massive activations: where they are found, and where not.
#include "distill/teachers/teacher.h"

#include <doctest/doctest.h>

#include "tests/distill/setup.h"
#include "tests/distill/task_setup.h"
#include "tests/refusals.h"

namespace brine::test {

TEST_CASE("massive activations: those of the first token are found and named") {
  Pair pair;
  CHECK_FALSE(massive_activation(*pair.teacher).has_value());
  for (const auto& p : pair.teacher->named_parameters()) {
    if (p.path.find("embed_positions") == std::string::npos) continue;
    const Tensor& table = p.parameter->value;  // OPT's position 0 is row 2
    table.data<float>()[2 * table.dim(1) + 5] = 300;
  }
  const std::optional<MassiveActivation> found = massive_activation(*pair.teacher);
  REQUIRE(found.has_value());
  CHECK(found->feature == 5);
  CHECK(found->value == doctest::Approx(300).epsilon(0.2));
  CHECK(found->share > 0.9);
  CHECK(found->usual < 10);
  check_says(found->text(), {"feature 5 of the first token is ", "in layer "});
  CHECK_FALSE(massive_activation(*nn::make_model(encoder_config("flash", 0), 1)).has_value());
}

}  // namespace brine::test
