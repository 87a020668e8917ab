// Schemas: types, ranges, choices, sections, variants, unknown keys, JSON, TOML and differences.
#include "data/config/schema.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/config/schema_text.h"
#include "tensor/base/error.h"
#include "tests/messages.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;
using data::Json;
using data::Schema;

namespace {

struct Inner {
  int64_t k = 16;
  std::string decoder = "lean";
  void describe(Schema& s) {
    s.field("k", k, "Kept keys", {.min = 1, .max = 4096});
    s.choice("decoder", decoder, {"lean", "paper"}, "Preset");
  }
};

struct Wide {
  int64_t k = 4;
  double gap = 0.5;
  void describe(Schema& s) {
    s.field("k", k, "Neighbours", {.min = 0});
    s.field("gap", gap, "Gap");
  }
};

struct Everything {
  bool flag = false;
  int64_t steps = 10;
  double rate = 1e-4;
  std::string name = "a";
  std::vector<int64_t> sizes = {1, 2};
  std::vector<double> betas = {0.9, 0.999};
  std::vector<std::string> texts;
  int64_t once = 0;
  Inner inner;
  void describe(Schema& s) {
    s.field("flag", flag, "A flag");
    s.field("steps", steps, "Steps", {.min = 0, .max = 1e6});
    s.field("rate", rate, "Rate", {.above = 0, .below = 1});
    s.field("name", name, "Name", {.alias = "title"});
    s.field("sizes", sizes, "Sizes", {.min = 1});
    s.field("betas", betas, "Betas", {.min = 0, .below = 1});
    s.field("texts", texts, "Files", {.required = true});
    s.field("once", once, "Of this run", {.transient = true});
    s.section("inner", inner);
  }
};

struct Switched {
  std::string method = "sea";
  Inner sea;
  Wide wide;
  void describe(Schema& s) {
    s.variants("attention", "method", method,
               {{"dense", nullptr},
                {"sea", [this](Schema& v) { sea.describe(v); }},
                {"wide", [this](Schema& v) { wide.describe(v); }}},
               "Method");
  }
};

}  // namespace

TEST_CASE("values of the right type are taken") {
  Everything c;
  Schema s = data::schema_of(c);
  s.set("flag", true);
  s.set("steps", 7);
  s.set("rate", 0.25);
  s.set("name", "x # not a comment");
  s.set("sizes", Json::array({3, 4, 5}));
  s.set("betas", Json::array({0, 0.5}));
  s.set("inner.k", 32);
  CHECK(c.flag);
  CHECK(c.steps == 7);
  CHECK(c.rate == 0.25);
  CHECK(c.name == "x # not a comment");
  CHECK(c.sizes == std::vector<int64_t>{3, 4, 5});
  CHECK(c.betas == std::vector<double>{0, 0.5});
  CHECK(c.inner.k == 32);
  s.set("title", "by alias");
  CHECK(c.name == "by alias");
}

TEST_CASE("an integer is accepted for a number, a number never for an integer") {
  Wide c;
  Schema s = data::schema_of(c);
  s.set("gap", 2);
  CHECK(c.gap == 2.0);
  CHECK(message([&] { s.set("k", 2.0); }) == "k must be an integer, got 2.0");
  CHECK(message([&] { s.set("k", true); }) == "k must be an integer, got true");
  CHECK(message([&] { s.set("k", "2"); }) == "k must be an integer, got \"2\"");
  CHECK(message([&] { s.set("k", uint64_t(1) << 63); }) ==
        "k must be an integer, got 9223372036854775808");
  CHECK(c.k == 4);
}

TEST_CASE("a wrong type or value names the key and the reason, and changes nothing") {
  Everything c;
  Schema s = data::schema_of(c);
  CHECK(message([&] { s.set("flag", 1); }) == "flag must be true or false, got 1");
  CHECK(message([&] { s.set("name", 1); }) == "name must be a text, got 1");
  CHECK(message([&] { s.set("rate", nullptr); }) == "rate must be a number, got null");
  CHECK(message([&] { s.set("rate", 0); }) == "rate must be above 0, got 0");
  CHECK(message([&] { s.set("rate", 1); }) == "rate must be below 1, got 1");
  CHECK(message([&] { s.set("rate", std::nan("")); }) == "rate must be finite, got nan");
  CHECK(message([&] { s.set("steps", -1); }) == "steps must be at least 0, got -1");
  CHECK(message([&] { s.set("steps", 1000001); }) == "steps must be at most 1e+06, got 1000001");
  CHECK(message([&] { s.set("sizes", 3); }) == "sizes must be a list of integers, got 3");
  CHECK(message([&] {
          s.set("sizes", Json::array({3, 0}));
        }) == "sizes[1] must be at least 1, got 0");
  CHECK(message([&] { s.set("betas", Json::array({"x"})); }) ==
        "betas[0] must be a number, got \"x\"");
  CHECK(message([&] { s.set("name", "\xff"); }) == "name must be a text in UTF-8");
  CHECK(message([&] { s.set("name", std::string("a\0b", 3)); }) ==
        "name must be a text without zero bytes");
  CHECK_REFUSES(s.set("inner.decoder", "leen"), "inner.decoder", "\"lean\"", "\"paper\"",
                "\"leen\"");
  CHECK(c.sizes == std::vector<int64_t>{1, 2});
  CHECK(c.rate == 1e-4);
  CHECK(s.to_json() == data::schema_of(c).to_json());
}

TEST_CASE("words of a command line are read as the type of the key") {
  Everything c;
  Schema s = data::schema_of(c);
  s.set_text("flag", {"true"});
  s.set_text("steps", {"+12"});
  s.set_text("rate", {"3e-4"});
  s.set_text("name", {"12"});
  s.set_text("betas", {"0.1", "0"});
  s.set_text("texts", {"a,b", "[c]"});
  CHECK(c.flag);
  CHECK(c.steps == 12);
  CHECK(c.rate == 3e-4);
  CHECK(c.name == "12");
  CHECK(c.betas == std::vector<double>{0.1, 0});
  CHECK(c.texts == std::vector<std::string>{"a,b", "[c]"});
  s.set_text("sizes", {"3,4", "5"});
  CHECK(c.sizes == std::vector<int64_t>{3, 4, 5});
  CHECK_REFUSES(s.set_text("sizes", {"3,"}), "sizes[1]", "integer", "\"\"");
  for (const char* word : {"+-5", "++5", "+", "-+5"})
    CHECK(message([&] { s.set_text("steps", {word}, "--steps"); }) ==
          join("--steps must be an integer, got \"", word, "\""));
  CHECK(message([&] { s.set_text("rate", {"+-5"}, "--rate"); }) ==
        "--rate must be a number, got \"+-5\"");
  CHECK(message([&] { s.set_text("steps", {"1e3"}, "--steps"); }) ==
        "--steps must be an integer, got \"1e3\"");
  CHECK(message([&] { s.set_text("steps", {"99999999999999999999"}); }) ==
        "steps must be an integer, got \"99999999999999999999\"");
  CHECK(message([&] { s.set_text("steps", {"5 "}); }) == "steps must be an integer, got \"5 \"");
  CHECK(message([&] { s.set_text("steps", {""}); }) == "steps must be an integer, got \"\"");
  CHECK(message([&] { s.set_text("rate", {"nan"}); }) == "rate must be finite, got nan");
  CHECK(message([&] { s.set_text("flag", {"yes"}); }) == "flag must be true or false, got \"yes\"");
  CHECK(message([&] { s.set_text("steps", {"1", "2"}); }) == "steps takes one value, got 2");
}

TEST_CASE("an unknown key is compared with second names too") {
  int64_t steps = 1, rate = 1;
  Schema s;
  s.field("joint.steps", steps, "", {.alias = "more_steps"});
  s.field("rate", rate, "");
  CHECK(s.unknown_key("more_stpes") ==
        "unknown key \"more_stpes\"; the nearest known key is \"more_steps\"");
}

TEST_CASE("a number that is not finite is shown as itself") {
  double rate = 1;
  std::vector<double> rates;
  int64_t steps = 1;
  Schema s;
  s.field("rate", rate, "");
  s.field("rates", rates, "");
  s.field("steps", steps, "");
  auto refusal = [&](const char* key, const Json& value) {
    return message([&] { s.set(key, value); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(refusal("rate", nan) == "rate must be finite, got nan");
  CHECK(refusal("rate", -inf) == "rate must be finite, got -inf");
  CHECK(refusal("rates", Json::array({1.5, nan})) == "rates[1] must be finite, got nan");
  CHECK(refusal("steps", nan) == "steps must be an integer, got nan");
  CHECK(refusal("steps", Json::array({inf, 2.0})) == "steps must be an integer, got [inf,2.0]");
  CHECK(data::differences(Json{{"rate", 1.0}}, Json{{"rate", nan}}) ==
        std::vector<std::string>{"rate: 1.0 -> nan"});
}

TEST_CASE("an unknown key is named with the nearest known one") {
  Everything c;
  Schema s = data::schema_of(c);
  auto unknown = [&](const char* key) { return message([&] { s.set(key, 1); }); };
  CHECK(unknown("stpes") == "unknown key \"stpes\"; the nearest known key is \"steps\"");
  CHECK(unknown("k") == "unknown key \"k\"; the nearest known key is \"inner.k\"");
  CHECK(unknown("iner.decodr") ==
        "unknown key \"iner.decodr\"; the nearest known key is \"inner.decoder\"");
  CHECK(unknown("inner") == "\"inner\" is a section, not a value");
  CHECK(message([] { Schema().set("x", 1); }) == "unknown key \"x\"");
}

TEST_CASE("a required key is missed until it is set") {
  Everything c;
  Schema s = data::schema_of(c);
  CHECK(message([&] { s.check_required(); }) ==
        "needs a value for \"--texts\", on the command line or in a configuration");
  s.set("texts", Json::array({"a"}));
  CHECK(message([&] { s.check_required(); }) == "no error");
}

TEST_CASE("variants: only the keys of the chosen one exist") {
  Switched c;
  Schema s = data::schema_of(c);
  s.set("attention.k", 8);
  CHECK(c.sea.k == 8);
  CHECK_REFUSES(s.set("attention.gap", 1), "\"attention.gap\"", "attention.method", "\"wide\"",
                "\"sea\"");
  s.set("attention", "wide");  // the alias of the selector
  s.set("attention.k", 0);     // allowed by wide, not by sea
  s.set("attention.gap", 1);
  CHECK(c.sea.k == 8);
  CHECK(c.wide.k == 0);
  CHECK(s.to_json() == Json::parse(R"({"attention": {"method": "wide", "k": 0, "gap": 1.0}})"));
  CHECK_REFUSES(s.set("attention.method", "see"), "attention.method", "\"dense\"", "\"sea\"",
                "\"wide\"", "\"see\"");
  s.set("attention.method", "dense");
  CHECK(s.to_toml() == "[attention]\nmethod = \"dense\"\n");
}

TEST_CASE("set_all puts selectors first, whatever the order, and refuses unknown keys") {
  Switched c;
  Schema s = data::schema_of(c);
  s.set_all(Json::parse(R"({"attention": {"gap": 2, "method": "wide"}})"));
  CHECK(c.wide.gap == 2.0);
  CHECK_REFUSES(s.set_all(Json::parse(R"({"attention": {"gab": 2}})")), "\"attention.gab\"",
                "\"attention.gap\"");
  CHECK(message([&] { s.set_all(Json::parse("[1]")); }) ==
        "a configuration must be an object, got [1]");
}

TEST_CASE("JSON keeps order and sections, leaves out transient keys, and reads back equal") {
  Everything c, d;
  c.name = "q\"\\\n\x01\xc3\xa9";
  c.rate = 0.1;
  c.once = 5;
  Schema s = data::schema_of(c);
  Json json = s.to_json();
  CHECK(json.dump().find("\"once\"") == std::string::npos);
  CHECK(json["inner"].dump() == R"({"k":16,"decoder":"lean"})");
  CHECK(json.begin().key() == "flag");
  Schema t = data::schema_of(d);
  t.set_all(Json::parse(json.dump()));
  CHECK(t.to_json() == json);
  CHECK(d.name == c.name);
  CHECK(d.once == 0);
}

TEST_CASE("TOML puts plain keys before sections and keeps every number's bits") {
  Everything c;
  c.betas = {1e-5, 0.1, 123456789.0, 1.0 / 3};
  c.name = "tab\there \"quoted\" # \x7f";
  Schema s = data::schema_of(c);
  CHECK(s.to_toml() ==
        "flag = false\nsteps = 10\nrate = 1e-04\nname = \"tab\\there \\\"quoted\\\" # \\u007F\"\n"
        "sizes = [1, 2]\nbetas = [1e-05, 0.1, 123456789.0, 0.3333333333333333]\ntexts = []\n\n"
        "[inner]\nk = 16\ndecoder = \"lean\"\n");
  for (double x : {0.1, 1e300, 5e-324, -2.0, 1.0 / 3, 1e22}) {
    std::string text = data::toml_value(x);
    CHECK(std::strtod(text.c_str(), nullptr) == x);
    CHECK(text.find_first_of(".e") != std::string::npos);
  }
}

TEST_CASE("the table of the docs escapes its bars") {
  std::string mode = "a|b";
  Schema s;
  s.choice("mode", mode, {"a|b", "c"}, "This | that");
  CHECK(s.to_markdown().find("| `mode` | text | `\"a\\|b\"` | a\\|b, c | This \\| that |\n") !=
        std::string::npos);
}

TEST_CASE("differences name every key that changed, came or went") {
  Json before = Json::parse(R"({"seed": 1, "a": {"k": 16, "gone": true}, "same": 1.0})");
  Json after = Json::parse(R"({"seed": 2, "a": {"k": 16, "new": "x"}, "same": 1})");
  CHECK(data::differences(before, after) ==
        std::vector<std::string>{"seed: 1 -> 2", "a.gone: true -> none", "a.new: none -> \"x\""});
  CHECK(data::differences(after, after).empty());
}

TEST_CASE("edit distance counts a swap as one step") {
  CHECK(data::nearest("hte", {"hat", "the"}) == "the");
  CHECK(data::nearest("learning-rat", {"learning_rate", "steps"}) == "learning_rate");
  CHECK(data::nearest("", {"a"}) == "a");
  CHECK(data::nearest(std::string(100000, 'x'), {"a", "b"}) == "a");
}

namespace {

enum class Course { constant, linear };
constexpr data::Named<Course> kCourses[] = {{Course::constant, "constant"},
                                            {Course::linear, "linear"}};

struct Undecided {
  Course shape = Course::linear;
  std::optional<Course> later;
  std::optional<int64_t> steps;
  std::optional<double> rate;
  std::optional<bool> norm;
  std::optional<std::string> split;
  Switched inner;
  void describe(Schema& s) {
    s.choice("shape", shape, kCourses, "Shape");
    s.choice("later", later, kCourses, "Shape, decided later");
    s.field("steps", steps, "Steps", {.min = 1, .unset = "by the recipe"});
    s.field("rate", rate, "Rate", {.above = 0});
    s.field("norm", norm, "Norm");
    s.field("split", split, "Split");
    inner.describe(s);
  }
};

}  // namespace

TEST_CASE("an enum is read and written by the names of its values") {
  Undecided c;
  Schema s = data::schema_of(c);
  CHECK(s.find("shape")->initial == "\"linear\"");
  CHECK(s.find("shape")->type() == "text");
  CHECK(s.find("shape")->allowed() == "constant, linear");
  s.set_text("shape", {"constant"});
  CHECK(c.shape == Course::constant);
  CHECK(s.to_json()["shape"] == "constant");
  CHECK(s.to_toml().find("shape = \"constant\"\n") == 0);
  CHECK_REFUSES(s.set("shape", "cosine"), "shape", "\"constant\"", "\"linear\"", "\"cosine\"");
  CHECK(message([&] { s.set("shape", 1); }) == "shape must be a text, got 1");
  CHECK(c.shape == Course::constant);
  CHECK(std::string(data::name_of(Course::linear, kCourses)) == "linear");
}

TEST_CASE("an optional key is empty until it is set, and checked like any other") {
  Undecided c;
  Schema s = data::schema_of(c);
  CHECK(s.find("steps")->empty());
  CHECK(s.find("steps")->initial == "by the recipe");
  int64_t keys = 64;
  Schema shown;
  shown.field("k", keys, "Keys", {.shown = "64, blocks 480"});
  CHECK(shown.to_markdown().find("| `64, blocks 480` |") != std::string::npos);
  CHECK(s.to_json() == Json::parse(R"({"shape": "linear", "attention": {"method": "sea", "k": 16,
                                       "decoder": "lean"}})"));
  CHECK(s.to_toml() ==
        "shape = \"linear\"\n\n[attention]\nmethod = \"sea\"\nk = 16\n"
        "decoder = \"lean\"\n");
  CHECK(message([&] { s.set("steps", 0); }) == "steps must be at least 1, got 0");
  CHECK(message([&] { s.set_text("rate", {"x"}); }) == "rate must be a number, got \"x\"");
  CHECK_FALSE(c.steps.has_value());
  s.set_text("steps", {"7"});
  s.set_text("norm", {"false"});
  s.set("later", "constant");
  s.set("split", "dev");
  CHECK(c.steps == 7);
  CHECK(c.norm == false);
  CHECK(c.later == Course::constant);
  CHECK(c.split == "dev");
  CHECK(s.find("norm")->is_flag());
  CHECK(s.to_json()["steps"] == 7);
  CHECK(s.to_json()["later"] == "constant");
  CHECK_FALSE(s.to_json().contains("rate"));
  const std::string page = s.to_markdown();
  CHECK(page.find("| `steps` | integer | `by the recipe` | >= 1 | Steps |\n") != std::string::npos);
  CHECK(page.find("| `rate` | number | none | > 0 | Rate |\n") != std::string::npos);
  const auto rows = s.rows();
  CHECK(page == Schema::kTableHead + [&] {
    std::string text;
    for (const auto& row : rows) text += row.text;
    return text;
  }());
  CHECK(rows[0].section.empty());
}

TEST_CASE("fill gives empty keys their values and leaves those that are decided") {
  Undecided c;
  Schema s = data::schema_of(c);
  s.set("steps", 7);
  s.fill(Json::parse(R"({"shape": "constant", "later": "linear", "steps": 9, "rate": 0.5,
                         "unknown": 1, "attention": {"k": 3}})"));
  CHECK(c.steps == 7);
  CHECK(c.rate == 0.5);
  CHECK(c.later == Course::linear);
  CHECK(c.shape == Course::linear);  // has a default, so it is never empty
  CHECK(c.inner.sea.k == 16);
  CHECK_FALSE(c.norm.has_value());
  CHECK(message([&] { s.fill(Json::parse(R"({"norm": 1})")); }) ==
        "norm must be true or false, got 1");
}

TEST_CASE("the keys that are set in a section can be collected") {
  Undecided c;
  std::set<std::string> chosen;
  Schema s = data::schema_of(c);
  s.collect("attention", chosen);
  s.set("shape", "constant");
  CHECK(chosen.empty());
  s.set_all(Json::parse(R"({"attention": {"gap": 2, "method": "wide"}})"));
  CHECK(chosen == std::set<std::string>{"method", "gap"});
  CHECK_THROWS(s.set("attention.k", "x"));
  CHECK(chosen == std::set<std::string>{"method", "gap"});
}

TEST_CASE("the name of a preset chooses its variant with that preset") {
  std::string method = "narrow", preset = "big";
  Schema s;
  s.variants("attention", "method", method,
             {{"narrow", nullptr},
              {"wide",
               [&](Schema& v) {
                 v.choice("preset", preset, {"big", "small"}, "Sizes");
               },
               {"big", "small"}}},
             "Method");
  std::set<std::string> chosen;
  s.collect("attention", chosen);
  s.set_text("attention", {"small"});
  CHECK(s.to_json() == Json::parse(R"({"attention": {"method": "wide", "preset": "small"}})"));
  CHECK(chosen == std::set<std::string>{"method", "preset"});
  s.set_all(Json::parse(R"({"attention": {"preset": "small", "method": "big"}})"));
  CHECK(preset == "small");  // what is said in full is stronger
  s.set_text("attention", {"wide"});
  CHECK(preset == "small");
  CHECK(message([&] { s.set_text("attention", {"tall"}); }) ==
        "attention.method must be one of \"narrow\", \"wide\", \"big\" or \"small\", got \"tall\"");
}

TEST_CASE("a fixed key takes its values, changes nothing and is in no text") {
  int64_t a = 1;
  Schema s;
  s.field("a", a, "One");
  s.fixed("b", {"0", "2"});
  s.set_all(Json::parse(R"({"b": 2, "a": 5})"));
  CHECK(a == 5);
  CHECK(s.to_json() == Json::parse(R"({"a": 5})"));
  CHECK(s.fields().size() == 1);
  CHECK(message([&] { s.set("b", 3); }) == "b = 3 is of an earlier version; now it is 0");
}

TEST_CASE("a key described twice is a mistake of the program") {
  int64_t a = 0, b = 0;
  Schema s;
  s.field("a", a, "One");
  CHECK(message([&] { s.field("a", b, "Two"); }) == "schema: key a is described twice");
  CHECK(message([&] { s.field("A-b", b, "Bad"); }) ==
        "schema: key A-b must be in lower case with underscores");
}
