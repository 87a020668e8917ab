// brine convert: stages on the command line, what they leave, and flags without effect.
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

std::string convert(const std::string& keys) {
  return "convert --teacher teacher --data text.txt --batch-size 2 --steps 2 --preset light "
         "--columns 12 --k "
         "4 " +
         keys;
}

using Json = nlohmann::json;

// A causal model becomes a student with blocks unless told otherwise; these fit 32 positions.
const World& converted() {
  static const bool made = [] {
    world().must(
        "convert --teacher teacher --data text.txt --valid text.txt --out blocks --steps 4 "
        "--joint-steps 2 --lengths 32 --batch-size 2 --block 4 --parts 2 --tile 2 --k 8");
    return true;
  }();
  REQUIRE(made);
  return world();
}

Json json_of(const std::string& arguments) {
  return Json::parse(converted().must(arguments + " --json").out);
}

}  // namespace

TEST_CASE("convert: stage attention, then evaluation, generation and export of the student") {
  const World& w = world();
  const Finished done = w.must(convert("--valid text.txt --lengths 16,32 --out converted"));
  CHECK(contains(done.error, "stage attention"));
  CHECK(contains(done.error, "trained"));
  CHECK(contains(read_all(w.path("converted/log.jsonl")), "\"block_mask_recall\""));
  w.must("eval --model converted --teacher teacher --data text.txt");
  w.must("generate --model converted --prompt the --tokens 4");
  w.must("export --checkpoint converted --out converted-sea --sea-only --base-model teacher");
  w.must("eval --model converted-sea --data text.txt");
  const Finished again =
      w.must(convert("--valid text.txt --lengths 16,32 --out converted --resume"));
  CHECK(contains(again.error, "nothing left to do"));
}

TEST_CASE("convert: stage joint goes on from stage attention in the same run") {
  const World& w = world();
  w.must(convert("--out staged"));
  CHECK(w.run(convert("--joint-steps 2 --lora-rank 2 --out staged")).status == 1);
  const Finished joint = w.must(convert("--joint-steps 2 --lora-rank 2 --out staged --resume"));
  CHECK(contains(joint.error, "stage joint"));
  CHECK(contains(joint.error, "rank 2"));
  CHECK(fs::exists(w.path("staged/step-00000004")));
  w.must(convert("--stages attention,joint --joint-steps 2 --lora-rank 2 --out at-once"));
  CHECK(read_all(w.path("staged/step-00000004/model.safetensors")) ==
        read_all(w.path("at-once/step-00000004/model.safetensors")));
  w.must("export --checkpoint staged --out staged-apart");
  w.must("export --checkpoint staged --out staged-merged --merge");
  CHECK(contains(read_all(w.path("staged-apart/config.json")), "lora_rank"));
  CHECK_FALSE(contains(read_all(w.path("staged-merged/config.json")), "lora_rank"));
  auto perplexity = [&](const std::string& model) {
    const std::string text = w.must("eval --data text.txt --json --model " + model).out;
    return nlohmann::json::parse(text).at("perplexity").get<double>();
  };
  CHECK(perplexity("staged-merged") == doctest::Approx(perplexity("staged-apart")).epsilon(1e-5));
}

TEST_CASE("convert: a dry run writes nothing; flags without effect are refused") {
  const World& w = world();
  const Finished dry = w.must(convert("--out dry --dry-run"));
  CHECK(contains(dry.out, "memory at peak"));
  CHECK_FALSE(fs::exists(w.path("dry")));
  for (const char* flag : {"--loss-from 3", "--recompute", "--learning-rate 1", "--lora-rank 2",
                           "--joint.recompute", "--stages joint"}) {
    const Finished f = w.run(convert(std::string(flag) + " --out no"));
    CHECK(f.status == 1);
    CHECK(contains(f.error, "has no effect"));
  }
  Finished f = w.run(convert("--out student --resume"));
  CHECK(f.status == 1);
  CHECK(contains(f.error, "not the run of a conversion"));
  f = w.run("convert --teacher teacher --data text.txt --steps 2 --attention top --out none");
  CHECK(f.status == 1);
  CHECK(contains(f.error, "attention 'top' has no parameters, so nothing to learn"));
  CHECK(w.run("export --checkpoint student --out no --merge").status == 1);
}

TEST_CASE("blocks: convert takes them for a causal model, and every command knows them") {
  const World& w = converted();
  CHECK(contains(read_all(w.path("blocks/config.toml")), "mask = \"blocks\""));
  const Json eval = json_of("eval --model blocks --data text.txt --max-windows 2");
  const Json beside =
      json_of("eval --model blocks --teacher teacher --data text.txt --max-windows 2");
  for (const char* keys : {"kept_keys", "tile_keys"}) {
    CHECK(double(eval[keys]) == doctest::Approx(double(beside["mask_recall"].back()[keys])));
  }
  CHECK(eval["perplexity"] == beside["perplexity"]);
  CHECK(double(json_of("eval --model teacher --attention best-blocks --k 32 --data text.txt "
                       "--max-windows 2")["kept_keys"]) == 16.5);  // of 32 tokens, all
  // Rows of 32 tokens keep at most the own block, two fixed ones, and two that they and the other
  // row of the tile chose.
  const double kept = eval["mask_health"]["kept_keys"], tile = eval["mask_health"]["tile_keys"];
  CHECK(kept > 8);
  CHECK(kept < 16.5);
  CHECK(tile >= kept);
  CHECK(tile < 20);
  const std::string text = w.must("eval --model blocks --data text.txt --max-windows 2").out;
  CHECK(contains(text, "kept keys"));
  CHECK(contains(w.must("flops --model blocks").out, "sparse attention"));
  w.must("sweep --model blocks --data text.txt --k 4 8 --max-windows 2 --out blocks-k.tsv");
  const std::string by_k = read_all(w.path("blocks-k.tsv"));
  CHECK(contains(by_k, "\n4\t"));
  CHECK(contains(by_k, "\n8\t"));
  w.must("inspect blocks --text 'the king said unto his people' --capture capture.h5");
  w.must(
      "report blocks --teacher teacher --data text.txt --sequence-length 32 --out blocks-report");
  w.must("export --checkpoint blocks --format transformers --merge --out blocks-transformers");
  CHECK(contains(read_all(w.path("blocks-transformers/config.json")), "\"parts\""));
  w.must("bench trained --quick --json --quiet --model blocks --data text.txt --tokens 16 32");
  w.must("bench generate --quick --json --quiet --model blocks --data text.txt --tokens 16 24");
}

TEST_CASE("blocks: generate with any k; all keys give the perplexity of full attention") {
  const World& w = converted();
  for (const char* k : {"4", "8", "32"}) {
    const Finished f = w.must(
        std::string("generate --model blocks --prompt 'the king said unto' --tokens 12 --k ") + k);
    CHECK(contains(f.out, "the king said unto"));
  }
  const Json dense = json_of("eval --model teacher --data text.txt --max-windows 2");
  const Json open = json_of("eval --model blocks --k 32 --data text.txt --max-windows 2");
  // Gates of .9997 are the only difference.
  CHECK(double(open["perplexity"]) == doctest::Approx(double(dense["perplexity"])).epsilon(1e-3));
}

TEST_CASE("blocks: floors keep as many keys as the student") {
  const World& w = converted();
  w.must(
      "sweep --model blocks --teacher teacher --data text.txt --k 4 --max-windows 2 --floors --out "
      "blocks.tsv");
  std::istringstream lines(read_all(w.path("blocks.tsv")));
  std::map<std::string, std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream parts(line);
    for (std::string cell; std::getline(parts, cell, '\t');) cells.push_back(cell);
    rows[cells.at(0)] = cells;
  }
  const double kept = std::stod(rows.at("student").at(2));
  for (const char* name : {"teacher, best blocks", "teacher, top keys",
                           "teacher, 4 sinks + most recent", "teacher, most recent"}) {
    INFO(name);
    CHECK(std::stod(rows.at(name).at(2)) == doctest::Approx(kept).epsilon(0.1));
  }
  CHECK(std::stod(rows.at("teacher, best blocks").at(6)) >= std::stod(rows.at("student").at(6)));
  CHECK(rows.count("teacher, best columns") == 0);
}

TEST_CASE(
    "blocks: k in parts of a block is rounded and said; settings that do not fit are refused") {
  const World& w = converted();
  const Finished rounded = w.must("eval --model blocks --data text.txt --max-windows 1 --k 5");
  CHECK(contains(rounded.error + rounded.out, "k = 5 is rounded up to 8"));
  const std::string convert = "convert --teacher teacher --data text.txt --out no ";
  auto refused = [&](const std::string& flags, std::initializer_list<std::string> words) {
    const Finished f = w.run(convert + flags);
    CHECK(f.status == 1);
    check_says(f.error, words);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  };
  refused("--block 6 --tile 4", {"tile = 4", "block = 6", "2 rows would fit"});
  refused("--block 3 --tile 3", {"parts = 4", "block = 3", "at most 3 would fit"});
  refused("--k 0", {"k", "1"});
  refused("--sinks -1", {"sinks", "0"});
  refused("--preset blocks --oversample 4", {"oversample", "mask = columns"});
}

}  // namespace brine::tests
