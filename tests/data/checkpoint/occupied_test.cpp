// Directories that already are a model, a run, a dump or a tokenizer.
#include "data/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include "tests/messages.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

TEST_CASE("occupied: what a directory is already is named with the file that tells it") {
  auto said = [](std::initializer_list<const char*> files, std::initializer_list<Holding> allowed) {
    Scratch dir;
    for (const char* file : files) dir.write(file, "x");
    const std::string error = message([&] { refuse_occupied(dir.path(), allowed); });
    return error == "no error" ? error : error.substr(dir.path().string().size());
  };
  const std::string end = "; give another directory";
  CHECK(said({}, {}) == "no error");
  CHECK(said({"README.md", "text.txt"}, {}) == "no error");
  CHECK(said({"model.safetensors.index.json"}, {Holding::run}) ==
        ": already contains a model (model.safetensors.index.json)" + end);
  CHECK(said({"log.jsonl", "config.json"}, {Holding::run}) ==
        ": already contains a model (config.json)" + end);
  CHECK(said({"manifest.json"}, {Holding::run}) ==
        ": already contains a dump or token shards (manifest.json)" + end);
  CHECK(said({"vocab.txt"}, {Holding::run}) == ": already contains a tokenizer (vocab.txt)" + end);
  // A run that wrote no checkpoint has its settings and its tokenizer.
  CHECK(said({"config.toml", "tokenizer.json"}, {Holding::run}) == "no error");
  CHECK(said({"config.toml", "tokenizer.json"}, {}) ==
        ": already contains a run (config.toml)" + end);
  CHECK(said({"config.toml", "tokenizer.json"}, {Holding::shards}) ==
        ": already contains a run (config.toml)" + end);
  Scratch run;
  std::filesystem::create_directory(run / "step-00000003");
  CHECK(contains(message([&] { refuse_occupied(run.path(), {Holding::shards}); }),
                 "already contains a run (step-00000003)"));
  CHECK(message([&] { refuse_occupied(run.path(), {Holding::run}); }) == "no error");
  CHECK(message([&] { refuse_occupied(run / "not there"); }) == "no error");
}
