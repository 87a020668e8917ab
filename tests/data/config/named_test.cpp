// Names of enum values.
#include "data/config/named.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

using namespace brine::data;

namespace {

enum class Form : uint8_t { round, square, other };
constexpr Named<Form> kShapes[] = {{Form::round, "round"}, {Form::square, "square"}};

}  // namespace

TEST_CASE("names: a value and its name lead to each other, all else to nothing") {
  for (const Named<Form>& shape : kShapes) {
    CHECK(value_of(shape.name, kShapes) == shape.value);
    CHECK(std::string(name_of(shape.value, kShapes)) == shape.name);
  }
  for (const char* unknown : {"", "Round", "round ", "roun", "other"}) {
    CHECK_FALSE(value_of(unknown, kShapes).has_value());
  }
  CHECK(std::string(name_of(Form::other, kShapes)) == "?");
}
