// brine convert: stages on the command line, what they leave, and flags without effect.
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "tests/apps/world.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

std::string convert(const std::string& keys) {
  return "convert --teacher teacher --data text.txt --batch-size 2 --steps 2 --attention sea "
         "--columns 12 --k 4 " +
         keys;
}

using Json = nlohmann::json;

// A causal model becomes a student with blocks unless told otherwise; these fit 32 positions.
const World& converted() {
  static const bool made = [] {
    world().must(
        "convert --teacher teacher --data text.txt --valid text.txt --out blocks "
        "--joint-steps 2 --lengths 32 --block 4 --tile 2 --k 16");
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
  CHECK(contains(read_all(w.path("blocks/config.toml")), "method = \"blocks\""));
  const Json eval = json_of("eval --model blocks --data text.txt --max-windows 2");
  const Json beside =
      json_of("eval --model blocks --teacher teacher --data text.txt --max-windows 2");
  CHECK(double(eval["keys_read"]) ==
        doctest::Approx(double(beside["mask_recall"].back()["keys_read"])));
  CHECK(eval["keys_read"] == beside["keys_read"]);
  CHECK(eval["perplexity"] == beside["perplexity"]);
  CHECK(double(json_of("eval --model teacher --attention best-blocks --k 32 --data text.txt "
                       "--max-windows 2")["keys_read"]) == 16.5);  // of 32 tokens, all
  // A tile of 2 rows reads its own block, two fixed ones, and two at most that it chose.
  const double read = eval["keys_read"];
  CHECK(read > 8);
  CHECK(read < 16.5);
  const std::string text = w.must("eval --model blocks --data text.txt --max-windows 2").out;
  CHECK(contains(text, "keys read"));
  CHECK(contains(w.must("flops --model blocks").out, "sparse attention"));
  w.must("sweep --model blocks --data text.txt --k 12 16 --max-windows 2 --out blocks-k.tsv");
  const std::string by_k = read_all(w.path("blocks-k.tsv"));
  CHECK(contains(by_k, "k\tquery_skip\tperplexity\tkeys_read\t"));
  CHECK(contains(by_k, "\n12\t"));
  CHECK(contains(by_k, "\n16\t"));
  w.must("inspect blocks --text 'the king said unto his people' --capture capture.h5");
  w.must(
      "report blocks --teacher teacher --data text.txt --sequence-length 32 --out blocks-report");
  CHECK(contains(read_all(w.path("blocks-report")), "\"keys_read\""));
  w.must("export --checkpoint blocks --merge --out blocks-merged");
  CHECK(json_of("eval --model blocks-merged --data text.txt --max-windows 2")["keys_read"] == read);
  w.must("bench trained --quick --json --quiet --model blocks --data text.txt --tokens 16 32");
  w.must("bench generate --quick --json --quiet --model blocks --data text.txt --tokens 16 24");
}

TEST_CASE("blocks: any causal model takes them, calibrated on what it reads first") {
  const World& w = converted();
  const std::string blocks = " --attention blocks --block 4 --tile 2 --attention.k 16 ";
  const char* said = "blocks: key_scale calibrated on the first ";
  // As a conversion calibrates its student: on the start of the same text.
  w.must("convert --teacher teacher --data text.txt --out calibrated --block 4 --tile 2 --k 16");
  const Finished direct =
      w.must("eval --model teacher --data text.txt --max-windows 2 --json" + blocks);
  CHECK(contains(direct.error, said + std::string("32 tokens")));
  const Json before = json_of("eval --model calibrated --data text.txt --max-windows 2");
  CHECK(Json::parse(direct.out)["perplexity"] == before["perplexity"]);
  CHECK(Json::parse(direct.out)["keys_read"] == before["keys_read"]);
  for (const std::string& command :
       {std::string("generate --model teacher --prompt 'the king said' --tokens 4"),
        std::string("sweep --model teacher --data text.txt --max-windows 2"),
        std::string("sweep --model teacher --data text.txt --teacher teacher --floors "
                    "--max-windows 1"),
        std::string("report teacher --text 'the king said unto his people' --out direct-report"),
        std::string("logits --model teacher --prompt 'the king' --out direct.npy"),
        std::string("bench trained --quick --model teacher --data text.txt --tokens 32"),
        std::string("bench generate --quick --model teacher --data text.txt --tokens 24")}) {
    const Finished f = w.must(command + blocks);
    CHECK_MESSAGE(contains(f.error, said), command);
  }
  CHECK_FALSE(
      contains(w.must("eval --model calibrated --data text.txt --max-windows 1").error, said));
  CHECK(contains(w.must("generate --model teacher --prompt the --tokens 4" + blocks).error,
                 "key_scale is 1 everywhere: the first 1 tokens fill no block of 4"));
}

TEST_CASE("blocks: generate with any k; all keys give the perplexity of full attention") {
  const World& w = converted();
  for (const char* k : {"4", "16", "32"}) {
    const Finished f = w.must(
        std::string("generate --model blocks --prompt 'the king said unto' --tokens 12 --k ") + k);
    CHECK(contains(f.out, "the king said unto"));
  }
  const std::string blocks = " --attention blocks --block 4 --tile 4 --attention.k 32";
  const Json dense = json_of("eval --model teacher --data text.txt --max-windows 2");
  CHECK(json_of("eval --model teacher --data text.txt --max-windows 2" + blocks)["perplexity"] ==
        dense["perplexity"]);
}

TEST_CASE("blocks: floors read as many keys as the student") {
  const World& w = converted();
  w.must(
      "sweep --model blocks --teacher teacher --data text.txt --k 16 --max-windows 2 --floors "
      "--out "
      "blocks.tsv");
  std::istringstream lines(read_all(w.path("blocks.tsv")));
  std::map<std::string, std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream parts(line);
    for (std::string cell; std::getline(parts, cell, '\t');) cells.push_back(cell);
    rows[cells.at(0)] = cells;
  }
  CHECK(rows.at("attention").at(2) == "keys_read");
  const double read = std::stod(rows.at("student").at(2));
  for (const auto& [name, within] : {std::pair("teacher, best blocks", .15),
                                     {"teacher, top keys", .05},
                                     {"teacher, 4 sinks + most recent", .15},
                                     {"teacher, most recent", .15},
                                     {"random keys", .05}}) {
    INFO(name);
    CHECK(std::stod(rows.at(name).at(2)) == doctest::Approx(read).epsilon(within));
  }
  CHECK(std::stod(rows.at("teacher, best blocks").at(5)) >= std::stod(rows.at("student").at(5)));
  CHECK(rows.count("teacher, best columns") == 0);
}

TEST_CASE(
    "blocks: k in parts of a block is rounded and said; settings that do not fit are refused") {
  const World& w = converted();
  const Finished rounded = w.must("eval --model blocks --data text.txt --max-windows 1 --k 5");
  CHECK(contains(rounded.error + rounded.out, "k = 5 is rounded up to 8"));
  auto refused = [&](const std::string& command, std::initializer_list<std::string> words) {
    const Finished f = w.run(command);
    CHECK(f.status == 1);
    check_says(f.error, words);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  };
  const std::string convert = "convert --teacher teacher --data text.txt --out no ";
  refused(convert + "--block 6 --tile 4", {"tile = 4", "block = 6", "2"});
  refused(convert + "--block 4 --tile 4 --k 32 --candidates 2", {"candidates", "2", "5"});
  refused(convert + "--k 0", {"k", "1"});
  refused(convert + "--sinks -1", {"sinks", "0"});
  refused(convert + "--gates head", {"gates"});
  refused(convert + "--steps 9", {"blocks", "9 steps", "--joint-steps"});
  for (const char* command :
       {"eval --data text.txt --max-windows 1 ", "generate --prompt king --tokens 2 ",
        "sweep --data text.txt --max-windows 1 "}) {
    for (const char* k : {"580", "9223372036854775807"})
      refused(join(command, "--quiet --model blocks --k ", k), {"k = ", k, "32 positions"});
  }
  for (const char* setting : {"mask = \"blocks\"", "preset = \"blocks\""}) {
    data::write_file_atomic(w.path("first.toml"),
                            join("[attention]\nmethod = \"sea\"\n", setting, "\n"));
    refused(convert + "--config first.toml", {"first edition", "brine convert --attention blocks"});
  }
}

}  // namespace brine::tests
