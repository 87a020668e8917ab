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

}  // namespace brine::tests
