// JSON: duplicate keys are found at any depth, and nothing else is refused.
#include "data/io/json.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tensor/base/error.h"
#include "tests/messages.h"

using namespace brine;
using test::message;

TEST_CASE("json: a duplicate key is named with its file, at any depth") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"a": 1, "a": 1})", "a"},
      {R"({"a": 1, "b": {}, "a": 2})", "a"},
      {R"([0, {"x": {"y": [{"k": null, "k": null}]}}])", "k"},
      {R"({"b": {"c": 1}, "c": {"b": 1, "d": 2, "b": 3}})", "b"},
      {R"({"caf\u00e9": 1, "café": 2})", "caf\\u00e9"},
      {R"({"two\nlines": 1, "two\nlines": 2})", "two\\nlines"}};
  for (const auto& [text, key] : cases) {
    INFO(text);
    const std::string said = join("a.json: key \"", key, "\" is a duplicate");
    CHECK(message([&] { parse_json(text, "a.json"); }) == said);
    CHECK(message([&] { parse_ordered_json(text, "a.json"); }) == said);
    CHECK(message([&] { parse_json_or_discard(text, "a.json"); }) == said);
    CHECK(parse_json_or_discard(text).is_discarded());
  }
  const std::string key(5000, 'k');
  CHECK(message([&] { parse_json("{\"" + key + "\":1,\"" + key + "\":2}", "a.json"); }).size() <
        250);
}

TEST_CASE("json: the same key in different objects is allowed, and values are the parser's own") {
  const char* text = R"({"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 1.5}, "c": [], "": "x"})";
  CHECK(parse_json(text) == nlohmann::json::parse(text));
  CHECK(parse_ordered_json(text) == nlohmann::ordered_json::parse(text));
  CHECK(parse_json_or_discard(text) == nlohmann::ordered_json::parse(text));
  for (const char* bad : {"", "{", "{\"a\": 1, \"a\": 2", "[1,]", "{\"a\": \"\xff\"}"}) {
    CHECK(parse_json_or_discard(bad).is_discarded());
    CHECK(parse_json_or_discard(bad, "a.json").is_discarded());
    CHECK_THROWS_AS(parse_json(bad), nlohmann::json::parse_error);
    CHECK_THROWS_AS(parse_ordered_json(bad), nlohmann::json::parse_error);
  }
}

TEST_CASE("json: an object whose keys stay in order has a bounded number of them") {
  std::string many = "{";
  for (int i = 0; i < 20'000; ++i) many += join(i ? "," : "", "\"", i, "\":0");
  many += "}";
  const std::string said = "a.json: an object has too many keys";
  const std::string inside = "[{\"x\": {\"b\": " + many + ", \"c\": 1}}]";
  for (const std::string& text : {many, inside}) {
    CHECK_NOTHROW(parse_json(text, "a.json"));
    CHECK(message([&] { parse_ordered_json(text, "a.json"); }) == said);
    CHECK(message([&] { parse_json_or_discard(text, "a.json"); }) == said);
  }
  // What is left out does not count.
  const auto drop = [](int depth, const std::string& key) { return depth == 3 && key == "b"; };
  CHECK(json_text(parse_ordered_json(inside, "a.json", drop)) == R"([{"x":{"c":1}}])");
}
