// TOML files: keys, errors with file and line, and a resolved copy that reads back equal.
#include "apps/cli/config_file.h"

#include <nlohmann/json.hpp>

#include "tests/apps/helpers.h"
#include "tests/apps/sample_config.h"

using namespace brine;
using namespace brine::tests;

namespace {

// The error of a file with this content, without the directory of the file.
std::string file_refusal(const std::string& text) {
  Scratch scratch;
  std::string path = scratch.write("c.toml", text);
  Sample sample;
  data::Schema schema = data::schema_of(sample);
  std::string got = message([&] { apply_config_file(schema, path); });
  size_t at = got.find(path);
  return at == 0 ? got.substr(path.size() - 6) : got;
}

}  // namespace

TEST_CASE("a file sets keys, sections and texts with '#'") {
  Scratch scratch;
  std::string path = scratch.write("c.toml",
                                   "rate = 1 # an integer is accepted for a number\n"
                                   "name = \"a # b\"\n"
                                   "files = ['x#y', \"z\"]\n"
                                   "fast = true\n"
                                   "model.width = 64\n"
                                   "[attention]\n"
                                   "k = 8\n"
                                   "method = \"sea\"\n");
  Sample sample;
  data::Schema schema = data::schema_of(sample);
  apply_config_file(schema, path);
  CHECK(sample.rate == 1.0);
  CHECK(sample.name == "a # b");
  CHECK(sample.files == std::vector<std::string>{"x#y", "z"});
  CHECK(sample.fast);
  CHECK(sample.model.width == 64);
  CHECK(sample.method == "sea");
  CHECK(sample.sea.k == 8);
}

TEST_CASE("a bad file is refused with its name, the line and the reason") {
  check_says(file_refusal("rate = 0.1\n\nratte = 1\n"), {"c.toml:3", "\"ratte\"", "\"rate\""});
  check_says(file_refusal("[modle]\nwidth = 1\n"), {"c.toml:1", "\"modle\"", "\"name\""});
  check_says(file_refusal("[model]\nwitdh = 1\n"),
             {"c.toml:2", "\"model.witdh\"", "\"model.width\""});
  CHECK(file_refusal("\"model.width\" = 1\n") ==
        "c.toml:1: the key \"model.width\" has a dot inside quotes");
  CHECK(file_refusal("model = 1\n") == "c.toml:1: \"model\" is a section, not a value");
  CHECK(file_refusal("rate = \"fast\"\n") == "c.toml:1: rate must be a number, got \"fast\"");
  CHECK(file_refusal("\nsteps = 1.5\n") == "c.toml:2: steps must be an integer, got 1.5");
  CHECK(file_refusal("steps = -1\n") == "c.toml:1: steps must be at least 0, got -1");
  CHECK(file_refusal("rate = inf\n") == "c.toml:1: rate must be finite, got inf");
  check_says(file_refusal("name = 1979-05-27\n"), {"c.toml:1", "name", "date", "table"});
  check_says(file_refusal("[rate]\nx = 1\n"), {"c.toml:1", "rate", "date", "table"});
  check_says(file_refusal("[[files]]\nx = 1\n"), {"c.toml:1", "files", "date", "table"});
  check_says(file_refusal("[attention]\nk = 8\n"),
             {"c.toml:2", "\"attention.k\"", "attention.method", "\"sea\"", "\"dense\""});
}

TEST_CASE("a file may use either name of a key, but not both") {
  Scratch scratch;
  std::string model;
  data::Schema schema;
  schema.field("model", model, "", {.alias = "teacher"});
  apply_config_file(schema, scratch.write("c.toml", "teacher = \"a\"\n"));
  CHECK(model == "a");
  const std::string twice = scratch.write("d.toml", "teacher = \"a\"\nmodel = \"b\"\n");
  CHECK_REFUSES(apply_config_file(schema, twice), twice, "teacher is the same key as model");
}

TEST_CASE("invalid TOML is refused with file and line") {
  for (std::string text : {"rate = 1\nrate = 2\n", "rate = 1\nrate\n", "rate = 1\n[model\n",
                           "rate = 1\nname = \"open\n", "rate = 1\n\x01\x02\xff\n"}) {
    CAPTURE(text);
    std::string got = file_refusal(text);
    CHECK(got.substr(0, 9) == "c.toml:2:");
    CHECK(got.find('\n') == std::string::npos);
    CHECK(got.size() < 300);
  }
  std::string deep = "files = " + std::string(100000, '[');
  CHECK(file_refusal(deep).substr(0, 9) == "c.toml:1:");
}

TEST_CASE("a missing file, a directory and a huge file are refused by name") {
  Scratch scratch;
  Sample sample;
  data::Schema schema = data::schema_of(sample);
  auto refused = [&](const std::string& path) {
    std::string got = message([&] { apply_config_file(schema, path); });
    CHECK(got.find(path) == 0);
    return got;
  };
  CHECK(refused((scratch / "none.toml").string()).find("No such file") != std::string::npos);
  refused(scratch.path().string());
  refused(scratch.write("huge.toml", std::string(2 << 20, '#')));
}

TEST_CASE("a resolved copy reads back equal") {
  Scratch scratch;
  Sample first;
  first.rate = 1.0 / 3;
  first.name = "new\nline \"q\" \\ # \x01 \xc3\xa9";
  first.files = {"", "a, b", "[c]"};
  first.method = "sea";
  first.sea.k = 99;
  first.model.width = 7;
  data::Schema written = data::schema_of(first);
  std::string path = scratch.write("resolved.toml", "# comment\n" + written.to_toml());
  Sample second;
  data::Schema read = data::schema_of(second);
  apply_config_file(read, path);
  CHECK(read.to_json() == written.to_json());
  CHECK(second.name == first.name);
  CHECK(second.rate == first.rate);
  CHECK(second.files == first.files);
  CHECK(second.sea.k == 99);
}
