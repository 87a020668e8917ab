// Flags: names, types, precedence over files, refusals.
#include "apps/cli/options.h"

#include <nlohmann/json.hpp>

#include "tests/apps/helpers.h"
#include "tests/apps/sample_config.h"

using namespace brine;
using namespace brine::tests;

namespace {

Invocation apply(Sample& sample, const std::vector<std::string>& words) {
  data::Schema schema = data::schema_of(sample);
  return apply_options("brine sample", {.about = "A sample", .end = "Example: brine sample\n"},
                       schema, words);
}

std::string refusal(const std::vector<std::string>& words) {
  Sample sample;
  return message([&] { apply(sample, words); });
}

}  // namespace

TEST_CASE("flags set keys, by their full names and their short ones") {
  Sample s;
  apply(s, {"--rate", "1e-3", "--steps=5", "--fast", "--model.width", "8", "--name", "a # b",
            "--attention", "sea", "--k", "4", "--betas", "0.1", "0.2"});
  CHECK(s.rate == 1e-3);
  CHECK(s.steps == 5);
  CHECK(s.fast);
  CHECK(s.model.width == 8);
  CHECK(s.name == "a # b");
  CHECK(s.method == "sea");
  CHECK(s.sea.k == 4);
  CHECK(s.betas == std::vector<double>{0.1, 0.2});
  apply(s, {"--attention.k", "5", "--attention.method", "sea", "--no-fast", "--width", "9"});
  CHECK(s.sea.k == 5);
  CHECK_FALSE(s.fast);
  CHECK(s.model.width == 9);
}

TEST_CASE("arguments without a flag go to the positional key") {
  Sample s;
  apply(s, {"a.txt", "--steps", "3", "b.txt"});
  CHECK(s.files == std::vector<std::string>{"a.txt", "b.txt"});
  apply(s, {"--files", "c", "d", "--files", "e", "--steps", "1"});
  CHECK(s.files == std::vector<std::string>{"c", "d", "e"});
  apply(s, {"--", "--steps"});
  CHECK(s.files == std::vector<std::string>{"--steps"});
}

TEST_CASE("texts arrive as they were written") {
  for (std::string text : {"", " ", "a b", "#", "[x]", "[a,b]", "-x", "--steps", "%%", "\"q\"",
                           "a=b", "{}", "\xc3\xa9"}) {
    CAPTURE(text);
    Sample s;
    apply(s, {"--name", text});
    CHECK(s.name == text);
    apply(s, {"--name=" + text, "--steps", "4"});
    CHECK(s.name == text);
    CHECK(s.steps == 4);
  }
}

TEST_CASE("texts of a list in brackets are not lists") {
  Sample s;
  apply(s, {"--files", "[INST] a, b [/INST]", "[]", "--files=[v]", "--steps", "2"});
  CHECK(s.files == std::vector<std::string>{"[INST] a, b [/INST]", "[]", "[v]"});
  CHECK(s.steps == 2);
  apply(s, {"[a,b]"});
  CHECK(s.files == std::vector<std::string>{"[a,b]"});
}

TEST_CASE("default < file < later file < flag") {
  Scratch scratch;
  std::string one = scratch.write("1.toml", "rate = 1\nsteps = 1\nname = \"one\"\nfiles=['x']\n");
  std::string two = scratch.write("2.toml", "steps = 2\nname = \"two\"\n");
  Sample s;
  Invocation run = apply(s, {"--name", "flag", "--config", one, "--config", two, "file"});
  CHECK(run.config_files == std::vector<std::string>{one, two});
  CHECK(s.name == "flag");
  CHECK(s.steps == 2);
  CHECK(s.rate == 1.0);
  CHECK(s.model.width == 256);
  CHECK(s.files == std::vector<std::string>{"file"});
}

TEST_CASE("a flag may choose another variant than the file") {
  Scratch scratch;
  std::string file = scratch.write("c.toml", "[attention]\nmethod = 'sea'\nk = 3\n");
  Sample s;
  apply(s, {"--config", file, "--attention", "dense"});
  CHECK(s.method == "dense");
  apply(s, {"--config", file, "--k", "5"});
  CHECK(s.method == "sea");
  CHECK(s.sea.k == 5);
  check_says(refusal({"--k", "5"}),
             {"\"attention.k\"", "attention.method", "\"sea\"", "\"dense\""});
}

TEST_CASE("bad flags are refused with the flag and the reason") {
  CHECK(refusal({"--stpes", "3"}) == "unknown option --stpes; the nearest is --steps");
  CHECK(refusal({"--stpes=3"}) == "unknown option --stpes; the nearest is --steps");
  CHECK(refusal({"--max-steps", "3"}) == "unknown option --max-steps; the nearest is --steps");
  CHECK(refusal({"-x"}).find("unknown option -x") == 0);
  CHECK(refusal({"--rate", "fast"}) == "--rate must be a number, got \"fast\"");
  CHECK(refusal({"--rate", "-1"}) == "--rate must be at least 0, got -1.0");
  CHECK(refusal({"--steps", "1.0"}) == "--steps must be an integer, got \"1.0\"");
  CHECK(refusal({"--fast=maybe"}) != "no error");
  CHECK(refusal({"--steps"}) != "no error");
  CHECK(refusal({"--steps", "1", "--steps", "2"}) != "no error");
  check_says(refusal({"--attention", "see"}),
             {"--attention.method", "\"dense\"", "\"sea\"", "\"see\""});
  CHECK(refusal({"--name", "\xff"}) == "--name must be a text in UTF-8");
}

TEST_CASE("help has the keys of the chosen method and no other section") {
  const auto help = [](const std::vector<std::string>& words) {
    Sample s;
    return apply(s, words).help_text;
  };
  const std::string dense = help({"--help"}), sea = help({"--help", "--attention", "sea"});
  CHECK(dense.find("--attention.k") == std::string::npos);
  CHECK(sea.find("--attention.k") != std::string::npos);
  CHECK(help({"--help-all"}).find("--attention.k") != std::string::npos);
  for (const std::string& text : {dense, sea}) {
    CHECK(text.find("--model.width") == std::string::npos);
    CHECK(text.find("Example: brine sample\n") != std::string::npos);
  }
  struct Losing {
    int64_t k = 4;
    double kd = 5;
    void describe(data::Schema& schema) {
      schema.field("attention.k", k, "Kept keys").field("losses.kd", kd, "Weight");
    }
  } losing;
  data::Schema keys = data::schema_of(losing);
  const std::string text = apply_options("brine x", {}, keys, {"--help"}).help_text;
  CHECK(text.find("--losses.kd") < text.find("--attention.k"));
  CHECK(text.find("--attention.k") != std::string::npos);
  CHECK(dense.find("With --help-all: model, other attention methods\n") != std::string::npos);
  CHECK(sea.find("With --help-all: model\n") != std::string::npos);
  CHECK_REFUSES(help({"--help", "--attention", "see"}), "\"sea\"", "\"see\"");
}

TEST_CASE("help-all names every flag, its range and its default, and checks nothing") {
  Sample s;
  Invocation run = apply(s, {"--help-all", "--steps", "-5"});
  CHECK(run.help);
  for (const char* part : {"--rate", "[>= 0] (default 0.5)", "--attention.k", "--k", "--no-fast",
                           "--config", "brine sample", "[dense, sea]"}) {
    CAPTURE(part);
    CHECK(run.help_text.find(part) != std::string::npos);
  }
}

TEST_CASE("the words before the subcommand belong to it too") {
  SampleModel model;
  data::Schema everywhere = data::schema_of(model);
  Split split = split_command_line(everywhere, {"--width", "3", "train", "--x", "eval", "y"});
  CHECK(split.subcommand == "train");
  CHECK(split.rest == std::vector<std::string>{"--width", "3", "--x", "eval", "y"});
  CHECK(split_command_line(everywhere, {"--width", "3"}).subcommand.empty());
  CHECK(message([&] {
          split_command_line(everywhere, {"--wdith", "3", "train"});
        }) == "unknown option --wdith; the nearest is --width");
}
