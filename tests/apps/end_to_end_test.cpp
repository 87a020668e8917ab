// From text to an exported student by the program itself, and a run that is killed.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"
#include "tests/paths.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json evaluation(const std::string& arguments) {
  return Json::parse(world().must("eval --data text.txt --json --max-windows 4 " + arguments).out);
}

}  // namespace

TEST_CASE("end to end: the files that each command promises are there") {
  const World& w = world();
  for (const char* name :
       {"tok/tokenizer.json", "teacher/config.toml", "teacher/log.jsonl",
        "teacher/step-00000003/model.safetensors", "teacher/tokenizer.json", "dump/manifest.json",
        "dump/shard-00000.h5", "maps/shard-00000.h5", "student/step-00000002/trainer.json",
        "export/config.json", "export/model.safetensors", "export/tokenizer.json"}) {
    CHECK_MESSAGE(fs::exists(w.path(name)), name);
  }
  std::string log = read_all(w.path("student/log.jsonl"));
  for (const char* term : {"approx", "prob", "context", "kd", "kd_task", "task"}) {
    CHECK(log.find("\"" + std::string(term) + "\"") != std::string::npos);
  }
}

TEST_CASE("end to end: evaluation by both paths and with mask recall") {
  Json sparse = evaluation("--model student --teacher teacher");
  Json dense = evaluation("--model student --path dense"), teacher = evaluation("--model teacher");
  CHECK(sparse.at("path") == "sparse");
  CHECK(dense.at("path") == "dense");
  double a = sparse.at("perplexity"), b = dense.at("perplexity"), c = teacher.at("perplexity");
  CHECK(a == doctest::Approx(b).epsilon(1e-5));
  CHECK(a == doctest::Approx(c).epsilon(0.05));  // two steps away from its teacher
  CHECK(a > 2);
  CHECK(a < 400);
  CHECK(std::log(a) == doctest::Approx(double(sparse.at("nll"))).epsilon(1e-9));
  REQUIRE(sparse.at("mask_recall").size() == 3);  // two layers and all
  for (const Json& row : sparse.at("mask_recall")) {
    double top = row.at("top_keys");
    CHECK(double(row.at("mask")) <= top);
    CHECK(double(row.at("random")) < top);
    CHECK(double(row.at("mask")) > 0);
  }
  CHECK_FALSE(dense.contains("mask_recall"));
  CHECK(evaluation("--model student --k 32").at("perplexity") != sparse.at("perplexity"));
}

TEST_CASE("end to end: the exported model is the run's model") {
  Json run = evaluation("--model student"), exported = evaluation("--model export");
  CHECK(run.at("perplexity") == exported.at("perplexity"));
  Json config = Json::parse(read_all(world().path("export/config.json")));
  CHECK(config.at("model_type") == "opt");
  CHECK(config.at("brine").at("attention").at("method") == "sea");
}

TEST_CASE("end to end: a distillation from a pooled dump runs without prob and reports it") {
  const World& w = world();
  w.must(
      "dump --model teacher --data text.txt --content pooled --columns 12 --windows 6 "
      "--out pooled");
  CHECK(w.must("inspect pooled").out.find("pooled into 12 columns in f16") != std::string::npos);
  Finished f = w.must(World::distill() + " --dump pooled --out from-pooled");
  check_says(f.error, {"pooled", "columns", "losses.prob", "0"});
  CHECK(read_all(w.path("from-pooled/config.toml")).find("prob = 0") != std::string::npos);
  auto refusal = [&](const std::string& flags) {
    Finished r = w.run(World::distill(flags) + " --dump pooled --out from-pooled-2");
    CHECK(r.status == 1);
    CHECK_FALSE(fs::exists(w.path("from-pooled-2")));
    return r.error;
  };
  CHECK(refusal("--columns 12 --losses.prob 0.5").find("set losses.prob to 0") !=
        std::string::npos);
  CHECK(refusal("--columns 16").find("pooled into 12 columns, the student has 16") !=
        std::string::npos);
  check_refusal(w.run("dump --model teacher --data text.txt --columns 12 --out never"),
                {"--columns has no effect with --content qk\n"});
}

TEST_CASE("end to end: a run that is killed and resumed ends with the weights of a whole one") {
  const World& w = world();
  std::string command = World::distill("--steps 120 --save-every 5 --columns 12") + " --dump dump";
  w.must(command + " --out whole");
  // The program runs in the background and is killed as soon as its second checkpoint exists.
  std::string program = brine::test::binary_dir() + "/brine ";
  std::string script = "cd " + w.path(".") + "; " + program + command +
                       " --out killed 2>/dev/null &\n" + "n=0; while [ ! -e " +
                       w.path("killed/step-00000010") +
                       " ] && [ $n -lt 3000 ]; do sleep 0.01; n=$((n+1)); done; kill -9 $!";
  CHECK(std::system(("bash -c '" + script + "'").c_str()) == 0);
  CHECK_FALSE(fs::exists(w.path("killed/step-00000120")));
  Finished resumed = w.must(command + " --out killed --resume");
  CHECK(resumed.error.find("resuming at step") != std::string::npos);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    CHECK(read_all(w.path(std::string("killed/step-00000120/") + name)) ==
          read_all(w.path(std::string("whole/step-00000120/") + name)));
  }
}

}  // namespace brine::tests
