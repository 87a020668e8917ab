// scripts/fetch-data and scripts/fetch-model with local copies; the network is never asked.
#include <algorithm>
#include <sstream>

#include "tests/apps/helpers.h"
#include "tests/paths.h"
#include "tests/skip.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

struct Script {
  Scratch scratch;

  Script() {
    fs::create_directories(scratch / "copies/glue/CoLA");
    for (const char* split : {"train", "dev", "test"})
      scratch.write(std::string("copies/glue/CoLA/") + split + ".tsv", std::string(split) + "\n");
    fs::create_directories(scratch / "hub/opt-125m");
    scratch.write("hub/opt-125m/config.json", "{}");
    scratch.write("hub/opt-125m/tokenizer.json", "{}");
    scratch.write("hub/opt-125m/model.safetensors", "weights");
  }

  // The status and both outputs. A `curl` that fails is first in the path.
  Finished run(const std::string& arguments) const {
    fs::create_directories(scratch / "bin");
    scratch.write("bin/curl", "#!/bin/sh\necho the network was asked >&2\nexit 1\n");
    fs::permissions(scratch / "bin/curl", fs::perms::owner_all);
    const std::string out = (scratch / "out.txt").string();
    const int code =
        std::system(("cd " + scratch.path().string() + " && PATH=$PWD/bin:$PATH " +
                     brine::test::source_dir() + "/scripts/" + arguments + " >" + out + " 2>&1")
                        .c_str());
    return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, read_all(out), ""};
  }
  std::string text(const std::string& name) const { return read_all(scratch / name); }
};

bool has_tools() {
  const bool all = std::system("command -v bash awk find sha256sum >/dev/null 2>&1") == 0;
  if (!all) brine::test::skip("bash, awk, find or sha256sum is missing");
  return all;
}

}  // namespace

TEST_CASE("fetch-data: local copies, checksums recorded and compared, licences printed") {
  if (!has_tools()) return;
  Script s;
  Finished f = s.run("fetch-data --from copies --out data cola");
  INFO(f.out);
  CHECK(f.status == 0);
  CHECK(s.text("data/glue/CoLA/train.tsv") == "train\n");
  CHECK(s.text("data/glue/CoLA/dev.tsv") == "dev\n");
  CHECK(contains(f.out, "licence: "));
  CHECK(contains(f.out, "CoLA/test.tsv: no sha256 is known for it; recorded "));
  CHECK_FALSE(contains(f.out, "the network was asked"));
  CHECK(contains(s.run("fetch-data --from copies --out data cola").out, "sha256 as recorded"));
  s.scratch.write("copies/glue/CoLA/dev.tsv", "other\n");
  f = s.run("fetch-data --from copies --out data cola");
  CHECK(f.status == 1);
  CHECK(contains(f.out, "CoLA/dev.tsv: sha256 is "));
}

TEST_CASE("fetch-data: a copy with another checksum than the known one is refused") {
  if (!has_tools()) return;
  Script s;
  s.scratch.write("copies/CoLA.zip", "no such archive");
  const Finished f = s.run("fetch-data --from copies --out data cola");
  INFO(f.out);
  CHECK(f.status == 1);
  CHECK(contains(f.out, ", must be "));
}

TEST_CASE(
    "fetch-data: an archive is unpacked whole or not at all, a partial folder is refused (needs "
    "zip)") {
  if (!has_tools()) return;
  if (std::system("command -v zip unzip >/dev/null 2>&1") != 0) {
    return brine::test::skip("zip or unzip is missing");
  }
  Script s;
  // The scripts with the checksum of an archive that this test makes.
  fs::copy(brine::test::source_dir() + "/scripts", s.scratch / "scripts");
  REQUIRE(std::system(("cd " + s.scratch.path().string() +
                       "/copies/glue && zip -qr ../CoLA.zip CoLA && rm -r CoLA && cd ../.. && "
                       "sum=$(sha256sum copies/CoLA.zip | cut -d' ' -f1) && "
                       "sed -i \"s/^cola|CoLA|CoLA.zip|[0-9a-f]*|/cola|CoLA|CoLA.zip|$sum|/\" "
                       "scripts/fetch-data")
                          .c_str()) == 0);
  auto run = [&](const std::string& before) {
    const std::string out = (s.scratch / "out.txt").string();
    const int code =
        std::system(("cd " + s.scratch.path().string() + " && " + before +
                     "scripts/fetch-data --from copies --out data cola >" + out + " 2>&1")
                        .c_str());
    return Finished{WIFEXITED(code) ? WEXITSTATUS(code) : -1, read_all(out), ""};
  };
  const fs::path target = s.scratch / "data/glue/CoLA";
  // unzip fails half-way: nothing has the data set's name.
  fs::create_directories(s.scratch / "bin");
  s.scratch.write("bin/unzip",
                  "#!/bin/sh\nmkdir -p \"$4/CoLA\"\necho half >\"$4/CoLA/train.tsv\"\nexit 9\n");
  fs::permissions(s.scratch / "bin/unzip", fs::perms::owner_all);
  Finished f = run("PATH=$PWD/bin:$PATH ");
  INFO(f.out);
  CHECK(f.status == 1);
  CHECK(contains(f.out, "cannot be unpacked"));
  CHECK_FALSE(fs::exists(target));
  CHECK_FALSE(fs::exists(target.string() + ".part"));
  // The remains of an earlier killed run.
  fs::create_directories(target);
  s.scratch.write("data/glue/CoLA/train.tsv", "half");
  f = run("");
  CHECK(f.status == 0);
  CHECK(s.text("data/glue/CoLA/train.tsv") == "train\n");
  CHECK(s.text("data/glue/CoLA/test.tsv") == "test\n");
  CHECK(s.text("data/glue/CoLA.old/train.tsv") == "half");
  // A whole one stays as it is.
  s.scratch.write("data/glue/CoLA/train.tsv", "changed by its owner\n");
  CHECK(run("").status == 0);
  CHECK(s.text("data/glue/CoLA/train.tsv") == "changed by its owner\n");
}

TEST_CASE("fetch-data: an unknown name, a missing file and a missing source end with status 1") {
  if (!has_tools()) return;
  Script s;
  CHECK(contains(s.run("fetch-data --list").out,
                 "https://dl.fbaipublicfiles.com/glue/data/CoLA.zip"));
  CHECK(s.run("fetch-data --list").status == 0);
  for (const char* arguments :
       {"", "colla", "--from nowhere cola", "--from copies rte", "--form x"}) {
    const Finished f = s.run(std::string("fetch-data ") + arguments);
    INFO(f.out);
    CHECK(f.status == 1);
    CHECK_FALSE(contains(f.out, "the network was asked"));
  }
  CHECK(contains(s.run("fetch-data cola").out, "the network was asked"));  // the guard works
}

TEST_CASE("fetch-model: a local copy of a repository, and what makes it incomplete") {
  if (!has_tools()) return;
  Script s;
  Finished f = s.run("fetch-model --from hub --out models opt-125m");
  INFO(f.out);
  CHECK(f.status == 0);
  CHECK(s.text("models/opt-125m/model.safetensors") == "weights");
  CHECK(contains(f.out, "model.safetensors: no sha256 is known for it; recorded "));
  CHECK(contains(s.text("models/opt-125m/checksums.sha256"), "  config.json\n"));
  CHECK(s.run("fetch-model --from hub --out models bert-base-uncased").status == 1);
  // Every entry records whether the original source was ever compared.
  const std::string list = s.run("fetch-model --list").out;
  CHECK(contains(list, "https://huggingface.co/facebook/opt-125m"));
  CHECK(std::count(list.begin(), list.end(), '\n') == 9);
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);)
    CHECK(line.ends_with("never checked against the original place"));
  CHECK(contains(s.run("fetch-model --out net opt-125m").out, "never checked"));
  CHECK_FALSE(contains(f.out, "never checked"));  // of a local copy
  s.scratch.write("hub/opt-125m/merges.txt", "others");
  f = s.run("fetch-model --from hub --out again opt-125m");
  CHECK(f.status == 1);
  CHECK(contains(f.out, "merges.txt: sha256 is "));
  fs::remove(s.scratch / "hub/opt-125m/merges.txt");
  fs::remove(s.scratch / "hub/opt-125m/model.safetensors");
  f = s.run("fetch-model --from hub --out third opt-125m");
  CHECK(f.status == 1);
  CHECK(contains(f.out, "has no model.safetensors"));
}

}  // namespace brine::tests
