// brine distill --stages: what the stages leave, and settings of stages that are not run.
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "tests/apps/world.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

std::string staged(const std::string& keys, const std::string& stages = "attention") {
  return "distill --stages " + stages +
         " --teacher teacher --data text.txt --batch-size 2 --steps 2 --columns 12 --k 4 " + keys;
}

using Json = nlohmann::json;

// A student with blocks that fit 32 positions.
const World& with_blocks() {
  static const bool made = [] {
    world().must(
        "distill --attention blocks --teacher teacher --data text.txt --valid text.txt --out "
        "blocks "
        "--joint-steps 2 --lengths 32 --block 4 --tile 2 --k 16");
    return true;
  }();
  REQUIRE(made);
  return world();
}

Json json_of(const std::string& arguments) {
  return Json::parse(with_blocks().must(arguments + " --json").out);
}

}  // namespace

TEST_CASE("distill: stage attention, then evaluation, generation and export of the student") {
  const World& w = world();
  const Finished done = w.must(staged("--valid text.txt --lengths 16,32 --out layered"));
  CHECK(contains(done.error, "stage attention"));
  CHECK(contains(done.error, "trained"));
  CHECK(contains(read_all(w.path("layered/log.jsonl")), "\"block_mask_recall\""));
  w.must("eval --model layered --teacher teacher --data text.txt");
  w.must("generate --model layered --prompt the --tokens 4");
  w.must("export --checkpoint layered --out layered-sea --sea-only --base-model teacher");
  w.must("eval --model layered-sea --data text.txt");
  const Finished again = w.must(staged("--valid text.txt --lengths 16,32 --out layered --resume"));
  CHECK(contains(again.error, "nothing left to do"));
}

TEST_CASE("distill: stage joint goes on from stage attention in the same run") {
  const World& w = world();
  const std::string both = "attention,joint", keys = "--joint-steps 2 --lora-rank 2 --out ";
  w.must(staged("--out staged"));
  CHECK(w.run(staged(keys + "staged", both)).status == 1);
  CHECK(
      contains(w.run(staged("--out staged --resume", "joint")).error, "--stages attention,joint"));
  const Finished limited = w.must(staged(keys + "limited --max-seconds 1e-9", both));
  CHECK(contains(limited.error, "after 1 of 2 steps; --resume with a larger"));
  CHECK_FALSE(contains(limited.error, "stage joint"));
  const Finished joint = w.must(staged(keys + "staged --resume", both));
  CHECK(contains(joint.error, "stage joint"));
  CHECK(contains(joint.error, "rank 2"));
  CHECK(fs::exists(w.path("staged/step-00000004")));
  w.must(staged(keys + "at-once", both));
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

TEST_CASE("distill: a plan before the run; settings of stages that are not run are refused") {
  const World& w = world();
  const Finished dry = w.must(staged("--out dry --dry-run"));
  check_says(dry.out, {"attention         sea, preset \"light\", k 4, columns 12", "approx 10",
                       "steps             2 of 2 x 1 windows of 32 tokens, a share of 0.25",
                       "memory at peak", "the run"});
  const std::string all = dry.out + dry.error, subject = "stage attention";
  CHECK(all.find(subject) == all.rfind(subject));
  CHECK_FALSE(fs::exists(w.path("dry")));
  const std::string both = w.must(staged("--out dry --dry-run", "attention,joint")).out;
  CHECK(both.find("stage joint") > both.find("memory at peak"));
  CHECK(both.rfind("memory at peak") > both.find("stage joint"));
  for (const auto& [flag, key] : {std::pair("--loss-from 3", "loss_from"),
                                  {"--recompute", "recompute"},
                                  {"--learning-rate 1", "optimizer.learning_rate"},
                                  {"--lora-rank 2", "joint.lora_rank"},
                                  {"--joint.batch-size 2", "joint.batch_size"}}) {
    const Finished f = w.run(staged(std::string(flag) + " --out no"));
    CHECK(f.status == 1);
    CHECK(contains(f.error, key + std::string(" is a setting of stage joint")));
  }
  check_refusal(w.run("distill --teacher teacher --data text.txt --steps 2 --attention top "
                      "--stages attention --out none"),
                {"attention 'top' has no parameters"});
  Finished f = w.run("convert --teacher teacher --data text.txt --out none");
  CHECK(contains(f.error, "brine distill --stages attention"));
  CHECK(w.run("export --checkpoint student --out no --merge").status == 1);
}

TEST_CASE("blocks: every command knows them") {
  const World& w = with_blocks();
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
  w.must(
      "logits --model blocks --prompt 'the king said unto his people' --out "
      "blocks-logits.safetensors");
  w.must(
      "report blocks --teacher teacher --data text.txt --sequence-length 32 --out blocks-report");
  CHECK(contains(read_all(w.path("blocks-report")), "\"keys_read\""));
  w.must("export --checkpoint blocks --merge --out blocks-merged");
  CHECK(json_of("eval --model blocks-merged --data text.txt --max-windows 2")["keys_read"] == read);
  w.must("bench trained --quick --json --quiet --model blocks --data text.txt --tokens 16 32");
  w.must("bench generate --quick --json --quiet --model blocks --data text.txt --tokens 16 24");
}

TEST_CASE("blocks: any causal model takes them, calibrated on what it reads first") {
  const World& w = with_blocks();
  const std::string blocks = " --attention blocks --block 4 --tile 2 --attention.k 16 ";
  const char* said = "blocks: key_scale calibrated on the first ";
  // As a distillation calibrates its student: on the start of the same text.
  w.must(
      "distill --attention blocks --teacher teacher --data text.txt --out calibrated --block 4 "
      "--tile 2 --k 16");
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
        std::string("logits --model teacher --prompt 'the king said unto' --out now.safetensors"),
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
  const World& w = with_blocks();
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
  const World& w = with_blocks();
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
  const World& w = with_blocks();
  const Finished rounded = w.must("eval --model blocks --data text.txt --max-windows 1 --k 5");
  CHECK(contains(rounded.error + rounded.out, "k = 5 is rounded up to 8"));
  auto refused = [&](const std::string& command, std::initializer_list<std::string> words) {
    const Finished f = w.run(command);
    CHECK(f.status == 1);
    check_says(f.error, words);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  };
  const std::string distill =
      "distill --attention blocks --teacher teacher --data text.txt --out no ";
  refused(distill + "--block 6 --tile 4", {"tile = 4", "block = 6", "2"});
  refused(distill + "--block 4 --tile 4 --k 32 --candidates 2", {"candidates", "2", "5"});
  refused(distill + "--k 0", {"k", "1"});
  refused(distill + "--sinks -1", {"sinks", "0"});
  refused(distill + "--gates head", {"gates"});
  refused(distill + "--steps 9", {"blocks", "9 steps", "--joint-steps"});
  for (const char* command :
       {"eval --data text.txt --max-windows 1 ", "generate --prompt king --tokens 2 ",
        "sweep --data text.txt --max-windows 1 "}) {
    for (const char* k : {"580", "9223372036854775807"})
      refused(join(command, "--quiet --model blocks --k ", k), {"k = ", k, "32 positions"});
  }
  for (const char* setting : {"mask = \"blocks\"", "preset = \"blocks\""}) {
    data::write_file_atomic(w.path("first.toml"),
                            join("[attention]\nmethod = \"sea\"\n", setting, "\n"));
    refused(distill + "--config first.toml",
            {"earlier version", "brine distill --attention blocks"});
  }
}

}  // namespace brine::tests
