// brine eval --suite by the program: its object, its table, and what it refuses.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/apps/world.h"

namespace brine::tests {
namespace {

using Json = nlohmann::json;

// A teacher and a student with room for the templates.
class SuiteWorld {
 public:
  SuiteWorld() {
    const World& w = world();
    w.write("long.toml",
            "batch_size = 2\nsequence_length = 32\nsteps = 2\n[model]\nvocab_size = 300\n"
            "hidden_size = 32\nnum_hidden_layers = 2\nnum_attention_heads = 4\nffn_dim = 48\n"
            "max_position_embeddings = 640\n");
    w.must("train --config long.toml --tokenizer tok --train text.txt --valid text.txt --out base");
    w.must(
        "distill --teacher base --data text.txt --sequence-length 32 --batch-size 2 --steps 2 "
        "--columns 12 --k 4 --out sparse");
  }
};

const World& suite_world() {
  static const SuiteWorld made;
  return world();
}

const char* const kGrid =
    "eval --quiet --suite ruler --tasks passkey,copy --lengths 560,600 --depths 0,100 "
    "--samples 2 --answer-tokens 6 ";

Json suite_object(const std::string& arguments) {
  return Json::parse(suite_world().must(kGrid + std::string("--json ") + arguments).out);
}

}  // namespace

TEST_CASE("suites: every cell of the grid for the student and each method at every k") {
  const Json out = suite_object(
      "--model sparse --teacher base --compare dense,recent:block=4,recent:block=4:k=8 --k 4,16");
  CHECK(out["suite"] == "ruler");
  CHECK(out["query_skip"] == 1);
  CHECK(out["attention"] == "sea");
  CHECK(out["prompts"] == 2 * (2 * 2 + 2));
  // Six methods with their k; of passkey 2 lengths x 2 depths, of copy 2 lengths.
  CHECK(out["rows"].size() == 6 * (4 + 2));
  std::set<std::string> cells;
  for (const Json& row : out["rows"]) {
    cells.insert(row["task"].get<std::string>() + row["length"].dump() + row["depth"].dump() +
                 row["method"].get<std::string>() + row["k"].dump());
    CHECK(row["prompts"] == 2);
    CHECK(row["forced"] >= 0);
    CHECK(row["forced"] <= 1);
    CHECK(row["nll"] > 0);
    const double read = row["keys_read"], k = row["k"].is_null() ? 0.0 : double(row["k"]);
    if (row["method"] == "dense") {
      CHECK(read > 100);
    } else {
      CHECK(read > 0.5 * k);
      CHECK(read <= 1.1 * k);
    }
    CHECK(row["generated"].is_null() == (row["task"] == "copy"));
    CHECK(row["depth"].is_null() == (row["task"] == "copy"));
    CHECK(row["k"].is_null() == (row["method"] == "dense"));
  }
  CHECK(cells.size() == out["rows"].size());
  CHECK(cells.count("passkey600100student16") == 1);
  CHECK(cells.count("passkey600100recent:block=4:k=88") == 1);  // a k that is named stays
  CHECK(out["tasks"].size() == 6 * 3);
  for (const char* task : {"passkey", "copy", "all"}) {
    CHECK(out["interval"][task]["forced"].size() == 2);
    for (const char* method : {"student", "recent:block=4"})
      CHECK(out["sparsest_k"][method][task].contains("forced"));
  }
  CHECK(out["interval"]["copy"]["generated"].is_null());
}

TEST_CASE("suites: blocks that are compared are calibrated on the first prompt") {
  const Finished f = suite_world().must(
      "eval --suite ruler --tasks copy --lengths 560 --samples 1 --no-generate --json --model base "
      "--compare dense,blocks:block=4:tile=4:k=64");
  CHECK(contains(f.error, "blocks: key_scale calibrated on the first "));
  for (const Json& row : Json::parse(f.out)["rows"]) {
    std::ostringstream right;  // each method's as soon as it is known
    right << ", copy " << std::round(double(row["forced"]) * 1e4) / 1e4;
    CHECK(contains(f.error, right.str()));
    if (row["method"] == "dense") continue;
    CHECK(double(row["keys_read"]) > 40);
    CHECK(double(row["keys_read"]) < 120);
  }
}

TEST_CASE("suites: by default blocks stand beside methods that read as many keys") {
  const World& w = suite_world();
  w.must(
      "distill --attention blocks --teacher base --data text.txt --out kept --attention.block 4 "
      "--attention.tile 4 --k 64");
  const Json out =
      Json::parse(w.must("eval --suite ruler --tasks copy --lengths 400,600 --samples 1 "
                         "--no-generate --json --model kept --teacher base --k 64 128")
                      .out);
  std::map<std::string, std::vector<double>> read;
  for (const Json& row : out["tasks"])
    if (row["task"] == "all") read[row["method"]].push_back(row["keys_read"]);
  REQUIRE(read.size() == 4);
  const std::vector<double> kept = read["student"];
  REQUIRE(kept.size() == 2);
  for (const char* method : {"top", "recent:block=4:sinks=1"}) {
    INFO(method);
    REQUIRE(read[method].size() == 2);
    for (size_t i = 0; i < 2; ++i) {
      CHECK(read[method][i] > kept[i] - 3);
      CHECK(read[method][i] < kept[i] + 3);
      CHECK(read[method][i] > double(i ? 80 : 50));
    }
  }
}

TEST_CASE("suites: a default window has a block beside its first, however short the prompts") {
  const World& w = suite_world();
  w.must(
      "distill --attention blocks --teacher base --data text.txt --out wide --attention.block 128 "
      "--attention.tile 32 --k 512");
  const std::string text =
      w.must("eval --suite ruler --tasks copy --lengths 100 --samples 1 --no-generate --model wide")
          .out;
  CHECK(contains(text, "recent:block=128:sinks=1"));
}

TEST_CASE("suites: prompts that are read through a cache say so, by methods that have one") {
  auto scored = [](const std::string& cache) {
    return Json::parse(
        suite_world()
            .must("eval --suite ruler --tasks copy --lengths 560 --samples 1 --no-generate --json "
                  "--model base --prefill 64 --cache " +
                  cache)
            .out);
  };
  const Json out = scored("q8");
  CHECK(out["cache"] == "q8");
  CHECK(out["prefill"] == 64);
  CHECK(scored("exact")["cache"] == "exact");
  CHECK(out["tasks"].size() == 4);  // two methods, on the task and on all
}

TEST_CASE("suites: dense scores are the teacher's, and the prompts depend on the seed only") {
  const Json student = suite_object("--model sparse --teacher base --compare dense --k 4");
  const Json teacher = suite_object("--model base --compare dense");
  const Json other = suite_object("--model base --compare dense --seed 2");
  auto dense = [](const Json& out) {
    std::vector<Json> rows;
    for (const Json& row : out["rows"])
      if (row["method"] == "dense") rows.push_back(row);
    return rows;
  };
  CHECK(dense(student).size() == 6);
  CHECK(dense(student) == dense(teacher));
  CHECK(dense(teacher) != dense(other));
  // The teacher itself is dense: it is not scored a second time.
  CHECK(teacher["rows"].size() == 6);
  CHECK_FALSE(teacher.contains("sparsest_k"));
}

TEST_CASE("suites: a table of methods and the sparsest k for people") {
  const World& w = suite_world();
  const std::string text =
      w.must(kGrid + std::string("--model sparse --compare dense,recent --k 4,16 --data text.txt "
                                 "--no-generate"))
          .out;
  for (const char* part : {"suite ruler", "passkey", "copy", "all", "student", "dense", "recent",
                           "keys read", "sparsest k", "Wilson"})
    CHECK_MESSAGE(contains(text, part), part);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("suites: what does not go together is refused in one line") {
  const World& w = suite_world();
  std::filesystem::create_directories(w.path("bare"));
  for (const char* name : {"config.json", "model.safetensors"}) {
    for (const auto& e : std::filesystem::recursive_directory_iterator(w.path("base"))) {
      if (e.path().filename() == name)
        std::filesystem::copy_file(e.path(), w.path("bare") + "/" + name,
                                   std::filesystem::copy_options::overwrite_existing);
    }
  }
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"--model base --suite helmet", {"suite", "ruler"}},
      {"--model base --suite ruler --tasks niah --lengths 64", {"'niah'", "niah_single"}},
      {"--model base --suite ruler --tasks cwe --lengths 300", {"cwe", "at least", "300"}},
      {"--model base --suite ruler --lengths 64 --compare recent:k=8 --k 4", {"--k has no effect"}},
      {"--model base --suite ruler --lengths 641", {"641", "640"}},
      {"--model base --suite ruler --tasks copy --lengths 64 --compare nearest", {"nearest"}},
      {"--model base --suite ruler --tasks copy --lengths 64 --compare dense --k 4",
       {"--k", "no effect", "flash"}},
      {"--model base --suite ruler --task cola", {"--task", "--suite"}},
      {"--model base --suite ruler --protocol gptq", {"--protocol", "--suite"}},
      {"--model base --data text.txt --lengths 64", {"--lengths", "without --suite"}},
      {"--model sparse --data text.txt --k 4 8", {"values of k", "--suite"}},
      {"--model bare --suite ruler --tasks copy --lengths 64", {"tokenizer"}},
      {"--model base --teacher nowhere --suite ruler --tasks copy --lengths 64", {"nowhere"}}};
  for (const auto& [arguments, parts] : cases) {
    INFO(arguments);
    const Finished f = w.run("eval --quiet " + std::string(arguments));
    CHECK(f.status == 1);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
    for (const char* part : parts) CHECK_MESSAGE(contains(f.error, part), f.error);
  }
}

TEST_CASE("suites: prompts are written with their answers, in the order of the tables") {
  const World& w = suite_world();
  suite_object("--model sparse --teacher base --compare dense --k 4 --write-prompts prompts.jsonl");
  std::istringstream lines(read_all(w.path("prompts.jsonl")));
  std::vector<Json> prompts;
  for (std::string line; std::getline(lines, line);) prompts.push_back(Json::parse(line));
  REQUIRE(prompts.size() == 2 * (2 * 2 + 2));
  for (const Json& p : prompts) {
    CHECK(p["scored"].size() == p["answer_ids"].size());
    CHECK(p["prompt_ids"].size() + p["answer_ids"].size() <= p["length"].get<size_t>());
    if (p["task"] != "passkey") continue;
    const std::string prompt = p["prompt"], answer = p["answer"], key = p["references"][0];
    CHECK(contains(prompt, key));
    CHECK(answer == " " + key);
    CHECK((p["depth"] == 0 || p["depth"] == 100));
  }
  CHECK(prompts.front()["task"] == "passkey");
  CHECK(prompts.back()["task"] == "copy");
  CHECK(prompts.back()["depth"].is_null());
  CHECK(w.run("eval --model student --data text.txt --write-prompts no.jsonl").status == 1);
}

}  // namespace brine::tests
