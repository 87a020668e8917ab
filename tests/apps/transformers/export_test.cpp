// brine export --format transformers: the Python sources next to a student, and what is refused.
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"
#include "tests/paths.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const char* const kSources[] = {"attention_brine_sea.py", "blocks_brine_sea.py",
                                "columns_brine_sea.py",   "configuration_brine_sea.py",
                                "modeling_brine_sea.py",  "native_brine_sea.py"};

Json config_of(const std::string& directory) {
  return Json::parse(read_all(world().path(directory + "/config.json")));
}

Json perplexity(const std::string& model) {
  const std::string command = "eval --data text.txt --json --max-windows 2 --model " + model;
  return Json::parse(world().must(command).out).at("perplexity");
}

}  // namespace

TEST_CASE("export for transformers: the sources of apps/python, and where they are named") {
  const World& w = world();
  w.must("export --checkpoint student --out hf --format transformers");
  for (const char* name : kSources) {
    CAPTURE(name);
    const std::string source = test::source_dir() + "/apps/python/brine_sea/" + name;
    CHECK(read_all(w.path("hf/" + std::string(name))) == read_all(source));
    CHECK_FALSE(fs::exists(w.path("export/" + std::string(name))));
  }
  Json config = config_of("hf");
  CHECK(config.at("architectures") == Json::array({"OPTForCausalLM"}));  // the dense base's
  CHECK(config.at("auto_map") ==
        Json{{"AutoConfig", "configuration_brine_sea.SeaOPTConfig"},
             {"AutoModelForCausalLM", "modeling_brine_sea.SeaOPTForCausalLM"}});
  const Json sparse = config.at("sparse_attention_config");
  const Json& group = sparse.at("config_groups").at("group_0");
  CHECK(group.at("algorithm") == "sea");
  CHECK(group.at("targets") == Json::array({"OPTAttention"}));
  CHECK(group.at("k") == 4);
  CHECK(group.at("columns") == 12);
  CHECK(sparse.at("producer").at("name") == "brine");
  // The rest is what the export without them has.
  config.erase("auto_map");
  config.erase("sparse_attention_config");
  CHECK(config == config_of("export"));
  CHECK(read_all(w.path("hf/model.safetensors")) == read_all(w.path("export/model.safetensors")));
}

TEST_CASE("export for transformers: a student with blocks, whose scale of channels goes along") {
  const World& w = world();
  w.must(
      "distill --attention blocks --teacher teacher --data text.txt --block 4 --tile 2 --k 16 "
      "--out blocks-run");
  w.must("export --checkpoint blocks-run --out hf-blocks --format transformers");
  const Json config = config_of("hf-blocks");
  CHECK(config.at("brine").at("attention").at("method") == "blocks");
  const Json& group = config.at("sparse_attention_config").at("config_groups").at("group_0");
  CHECK(group.at("algorithm") == "blocks");
  CHECK(group.at("k") == 16);
  CHECK(group.at("block") == 4);
  CHECK(perplexity("hf-blocks") == perplexity("blocks-run"));
}

TEST_CASE("export for transformers: the directory is a model of Brine") {
  const World& w = world();
  w.must("export --checkpoint student --out hf-again --format transformers");
  CHECK(perplexity("hf-again") == perplexity("student"));
}

TEST_CASE("export for transformers: an adapter has the sources, too") {
  const World& w = world();
  w.must(World::distill("--steps 1 --columns 12 --k 4 --learning-rate 0") + " --out frozen");
  w.must(
      "export --checkpoint frozen --sea-only --base-model teacher --out hf-adapter --format "
      "transformers");
  for (const char* name : kSources) CHECK(fs::exists(w.path("hf-adapter/" + std::string(name))));
  const Json config = config_of("hf-adapter");
  CHECK(config.at("base_model") == "teacher");
  CHECK(config.at("auto_map").contains("AutoModelForCausalLM"));
}

TEST_CASE("export for transformers: other attention is refused by name, and writes nothing") {
  const World& w = world();
  check_refusal(w.run("export --checkpoint teacher --out hf-dense --format transformers"),
                {"'flash' attention is not supported", "without --format"});
  CHECK_FALSE(fs::exists(w.path("hf-dense")));
  CHECK(w.run("export --checkpoint student --out hf-no --format onnx").status == 1);
}

}  // namespace brine::tests
