// Earlier names of keys and sections, and configurations that were written under them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/config/schema.h"
#include "tensor/error.h"
#include "tests/messages.h"
#include "tests/refusals.h"

using namespace brine;
using brine::test::check_says;
using brine::test::contains;
using brine::test::message;
using data::Json;
using data::Schema;

namespace {

struct Small {
  int64_t width = 8;
  bool bias = true;
  void describe(Schema& s) {
    s.field("width", width, "Width", {.min = 1});
    s.field("bias", bias, "Biases");
  }
};

struct Large {
  int64_t width = 80, groups = 2;
  void describe(Schema& s) {
    s.field("width", width, "Width", {.min = 1});
    s.field("groups", groups, "Groups", {.min = 1});
  }
};

// Once: `rate`, `start` and the section [decoder], which was always a small one.
struct Config {
  double learning_rate = 0.5;
  std::string from, type = "small";
  Small small;
  Large large;
  Schema schema;

  Config() {
    schema.field("learning_rate", learning_rate, "Rate", {.above = 0});
    schema.field("model.from", from, "Directory", {.alias = "model"});
    schema.variants("model", "type", type,
                    {{"large", [this](Schema& s) { large.describe(s); }},
                     {"small", [this](Schema& s) { small.describe(s); }}},
                    "Kind", "model_type");
    schema.renamed("decoder", "model");
    schema.renamed("rate", "learning_rate");
    schema.renamed("optimizer.start", "model.from");
  }
};

}  // namespace

TEST_CASE("earlier names of keys and sections set the present keys") {
  Config c;
  c.schema.set("decoder.width", 5);
  c.schema.set_text("rate", {"0.25"});
  CHECK(c.small.width == 5);
  CHECK(c.learning_rate == 0.25);
  c.schema.set_all({{"decoder", {{"width", 6}, {"bias", false}}}, {"rate", 0.75}});
  CHECK(c.small.width == 6);
  CHECK_FALSE(c.small.bias);
  CHECK(c.learning_rate == 0.75);
  CHECK(c.schema.find("decoder.width") == c.schema.find("model.width"));
  CHECK(c.schema.has_section("decoder"));
}

TEST_CASE("a section that renames a key does so in every place where it is used") {
  struct Renamed : Small {
    void describe(Schema& s) {
      Small::describe(s);
      s.renamed("columns", "width");
    }
  };
  Renamed alone, inside, variant;
  Schema plain = data::schema_of(alone), outer;
  std::string type = "small";
  outer.section("first", inside);
  outer.variants("second", "type", type, {{"small", [&](Schema& s) { variant.describe(s); }}}, "");
  plain.set("columns", 3);
  outer.set_all({{"first", {{"columns", 4}}}, {"second", {{"columns", 5}}}});
  CHECK(alone.width == 3);
  CHECK(inside.width == 4);
  CHECK(variant.width == 5);
  CHECK(outer.earlier_names_used() ==
        std::vector<std::string>{"the key \"first.columns\" is now called \"first.width\"",
                                 "the key \"second.columns\" is now called \"second.width\""});
}

TEST_CASE("each earlier name that was used is reported once, others are not") {
  Config c;
  c.schema.set("model.width", 5);
  c.schema.set("model", "there");
  CHECK(c.schema.earlier_names_used().empty());
  c.schema.set("decoder.width", 5);
  c.schema.set("decoder.bias", false);
  CHECK(c.schema.earlier_names_used() ==
        std::vector<std::string>{"the section \"decoder\" is now called \"model\""});
  c.schema.set("rate", 0.25);
  CHECK(c.schema.earlier_names_used().back() == "the key \"rate\" is now called \"learning_rate\"");
  CHECK(c.schema.earlier_names_used().size() == 2);
}

TEST_CASE("the name of a section alone, or a longer word, is not an earlier name of a key") {
  Config c;
  CHECK(message([&] { c.schema.set("decoder", 1); }).find("is a section") != std::string::npos);
  for (const char* key : {"decoders.width", "rates", "a.rate"}) {
    CHECK(message([&] { c.schema.set(key, 1); }).find("unknown key") == 0);
  }
  CHECK(c.schema.earlier_names_used().empty());
}

TEST_CASE("a bad value or key under an earlier name is refused with the present one") {
  Config c;
  CHECK(message([&] { c.schema.set("decoder.width", 0); }) ==
        "model.width must be at least 1, got 0");
  CHECK(contains(message([&] { c.schema.set("decoder.widht", 1); }), "\"model.width\""));
  check_says(message([&] { c.schema.set("decoder.groups", 1); }),
             {"\"model.groups\"", "model.type", "\"large\"", "\"small\""});
}

TEST_CASE("a configuration under earlier names equals the one under present names") {
  Config c;
  c.schema.set("model.width", 5);
  c.schema.set("model", "there");
  c.schema.set("learning_rate", 0.25);
  const Json earlier = {{"rate", 0.25},
                        {"model", "there"},
                        {"decoder", {{"width", 5}, {"bias", true}}},
                        {"inputs", {{"rate", "not a key"}}}};
  Json now = c.schema.to_json();
  now["inputs"] = earlier["inputs"];
  const Json same = c.schema.with_current_names(earlier);
  CHECK(data::differences(same, now) == std::vector<std::string>{});
  c.schema.set("model.width", 6);
  now = c.schema.to_json();
  now["inputs"] = earlier["inputs"];
  CHECK(data::differences(same, now) == std::vector<std::string>{"model.width: 5 -> 6"});
  CHECK(c.schema.with_current_names(now) == now);
}

TEST_CASE("a selector that an earlier configuration lacks had its default") {
  Config c;
  c.schema.set("model_type", "large");
  const Json earlier = c.schema.with_current_names({{"decoder", {{"width", 80}}}});
  CHECK(earlier["model"]["type"] == "small");
}

TEST_CASE("a present key has no second meaning as an earlier name, and a new name must exist") {
  Config c;
  CHECK(message([&] { c.schema.renamed("learning_rate", "model.from"); }) ==
        "schema: learning_rate, now model.from, is still described");
  CHECK(message([&] { c.schema.renamed("old", "nothing"); }) ==
        "schema: nothing, earlier old, is not described");
}
