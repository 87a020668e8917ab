// The program as a process: exit status, one line of error, version, help, and its docs page.
#include "apps/cli/program.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "nn/attention/attention.h"
#include "tests/apps/helpers.h"
#include "tests/apps/sample_config.h"
#include "tests/paths.h"

using namespace brine;
using namespace brine::tests;

TEST_CASE("a bad command line ends in one line on stderr and status 1") {
  struct Case {
    const char* arguments;
    const char* error;
  };
  for (Case c : {
           Case{"", "brine: no subcommand; brine --help lists them\n"},
           Case{"docs-config --otu x",
                "brine docs-config: unknown option --otu; the nearest is --out\n"},
           Case{"docs-config x", "brine docs-config: unexpected argument \"x\"\n"},
           Case{"docs-config --seed -1", "brine docs-config: --seed must be at least 0, got -1\n"},
           Case{"--threads few docs-config",
                "brine docs-config: --threads must be an integer, got \"few\"\n"},
           Case{"--sede 3 docs-config", "brine: unknown option --sede; the nearest is --seed\n"},
           Case{"docs-config --out /nowhere/x", nullptr},
           Case{"docs-config --config /nowhere/x.toml", nullptr},
           Case{"docs-config --config", nullptr},
           Case{"no-such-thing", nullptr},
           Case{"''", nullptr},
       }) {
    CAPTURE(c.arguments);
    Finished run = run_brine(c.arguments);
    CHECK(run.status == 1);
    CHECK(run.out.empty());
    if (c.error != nullptr) CHECK(run.error == c.error);
    CHECK(std::count(run.error.begin(), run.error.end(), '\n') == 1);
    CHECK(run.error.substr(0, 5) == "brine");
  }
}

TEST_CASE("output that cannot be written is an error") {
  Finished run = run_brine("docs-config", "/dev/full");
  CHECK(run.status == 1);
  CHECK(run.error == "brine docs-config: standard output cannot be written\n");
}

TEST_CASE("--version names the libraries and the CPU features, anywhere on the line") {
  for (const char* arguments : {"--version", "docs-config --version", "--version docs-config"}) {
    Finished run = run_brine(arguments);
    CHECK(run.status == 0);
    for (const char* part :
         {"brine " BRINE_VERSION "\n", "oneDNN", "HDF5", "OpenMP", "compiler", "CPU has"}) {
      CAPTURE(part);
      CHECK(run.out.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("--help lists the subcommands that are not hidden, with a line each") {
  Finished run = run_brine("--help");
  CHECK(run.status == 0);
  CHECK(run.out.find("docs-config") == std::string::npos);
  for (const Subcommand& command : subcommands()) {
    CAPTURE(command.name);
    CHECK_FALSE(command.help.empty());
    if (!command.hidden) CHECK(run.out.find("  " + command.name + " ") != std::string::npos);
    Finished help = run_brine(command.name + " --help");
    CHECK(help.status == 0);
    CHECK(help.out.find("--seed") != std::string::npos);
    CHECK(help.error.empty());
  }
}

TEST_CASE("the help of a key has at most 15 words, a command's example and page exist") {
  for (const Subcommand& command : subcommands()) {
    CAPTURE(command.name);
    CHECK(command.manual.example.starts_with("brine " + command.name));
    CHECK(std::filesystem::exists(brine::test::source_dir() + "/" + command.manual.page));
    CommandBody body = command.make();
    data::Schema keys;
    body.describe(keys);
    for (const data::Schema::Field& field : keys.fields()) {
      std::istringstream words(field.help);
      const auto count = std::distance(std::istream_iterator<std::string>(words), {});
      CHECK_MESSAGE(count <= 15, field.key, ": ", count, " words: ", field.help);
    }
  }
}

TEST_CASE("docs/configuration.md is the page of this build") {
  std::string page = configuration_page();
  CHECK(run_brine("docs-config").out == page);
  bool equal = read_all(brine::test::source_dir() + "/docs/configuration.md") == page;
  CHECK_MESSAGE(equal, "write it again: brine docs-config --out docs/configuration.md");
}

TEST_CASE("docs/attention-methods.md names every method") {
  const std::string page = read_all(brine::test::source_dir() + "/docs/attention-methods.md");
  for (const auto& [name, factory] : brine::nn::attention_methods()) {
    CHECK_MESSAGE(page.find("`" + name + "`") != std::string::npos, name);
  }
}

TEST_CASE("the saved configuration is what --config reads") {
  Scratch scratch;
  Sample first;
  first.name = "kept # copy";
  CommonOptions everywhere;
  everywhere.seed = 7;
  data::Schema keys = data::schema_of(first);
  everywhere.describe(keys);
  save_configuration({.command = "sample", .keys = keys}, scratch.path().string());
  std::string text = read_all(scratch / "config.toml");
  CHECK(text.find("# brine sample, version " BRINE_VERSION "\n") == 0);
  CHECK(text.find("name = \"kept # copy\"\n") != std::string::npos);
  CHECK(text.find("seed = 7\n") != std::string::npos);
  CHECK(text.find("threads") == std::string::npos);
}

TEST_CASE("threads that wait spin shortly, unless the user says how long") {
  auto spins = [](const std::string& settings) {
    const Scratch scratch;
    const std::string out = (scratch / "out").string();
    const std::string program = brine::test::binary_dir() + "/brine";
    REQUIRE(std::system(("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose " +
                         settings + " " + program + " --version >/dev/null 2>" + out)
                            .c_str()) == 0);
    const std::string text = read_all(out);
    const size_t at = text.rfind("GOMP_SPINCOUNT = '");
    return at == text.npos ? text : text.substr(at + 18, text.find('\'', at + 18) - at - 18);
  };
  CHECK(spins("") == "1000");
  CHECK(spins("GOMP_SPINCOUNT=77") == "77");
  CHECK(spins("OMP_WAIT_POLICY=passive") == "0");
}
