// Flags that would do nothing are refused in one line that names them and what leaves them idle.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"

namespace brine::tests {
namespace {

struct Idle {
  const char* command;
  const char* said;
};

void check_idle(const std::string& command, const std::string& said) {
  INFO(command);
  const Finished f = world().run(command + " --quiet");
  CHECK(f.status == 1);
  CHECK(f.out.empty());
  CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  CHECK_MESSAGE(contains(f.error, said), f.error);
}

// The student's weights under attention to the most recent keys.
const World& with_recent() {
  static const World& w = [&]() -> const World& {
    world().must(
        "distill --teacher teacher --data text.txt --batch-size 2 --steps 1 --attention recent "
        "--attention.k 4 --losses.approx 0 --losses.prob 0 --out recent");
    return world();
  }();
  return w;
}

}  // namespace

TEST_CASE("idle flags: those for text, for tasks, for shards") {
  const Idle cases[] = {
      {"eval --model teacher --task cola --protocol windows",
       "--protocol has no effect with --task"},
      {"eval --model teacher --task cola --stride 4", "--stride has no effect with --task"},
      {"eval --model teacher --task cola --loss-from 4", "--loss-from has no effect with --task"},
      {"eval --model teacher --task cola --stride 2", "--stride has no effect with --task"},
      {"eval --model teacher --data text.txt --split dev", "--split has no effect without --task"},
      {"dump --model teacher --data text.txt --out no --split dev",
       "--split has no effect without --task"},
      {"dump --model teacher --task cola --out no --windows 3",
       "--windows has no effect on a task"},
      {"dump --model teacher --task cola --out no --logits full",
       "--logits has no effect on a task"},
      {"dump --model teacher --data text.txt --out no --logits none --top-logits 3",
       "--top-logits has no effect with --logits none"},
      {"bench train --quick --data text.txt",
       "--data has no effect without the suite generate or trained"},
      {"tokenize --tokenizer tok --out no --joining lines --key x text.txt",
       "--joining lines does not use --key"}};
  for (const auto& [command, said] : cases) check_idle(command, said);
  CHECK_FALSE(std::filesystem::exists(world().path("no")));
}

TEST_CASE("idle flags: options that the attention does not obey") {
  with_recent();
  const Idle cases[] = {
      {"flops --model teacher --k 4", "--k has no effect on attention 'flash'"},
      {"flops --model teacher --query-skip 2", "--query-skip has no effect on attention 'flash'"},
      {"flops --model recent --query-skip 2", "--query-skip has no effect on attention 'recent'"},
      {"sweep --model recent --data text.txt --k 2 --query-skip 1 2",
       "--query-skip has no effect on attention 'recent'"},
      {"eval --model teacher --data text.txt --k 4", "--k has no effect on attention 'flash'"},
      {"generate --model teacher --prompt the --k 4", "--k has no effect on attention 'flash'"}};
  for (const auto& [command, said] : cases) check_idle(command, said);
  world().must("flops --model student --k 2 --query-skip 2");
  world().must("flops --model recent --k 2");
  world().must("sweep --model recent --data text.txt --k 2 3 --max-windows 2");
}

TEST_CASE(
    "idle flags: keys of a task in a distillation of text; a saved configuration runs again") {
  const World& w = world();
  for (const char* flag :
       {"--train-split dev", "--valid-split dev", "--epochs 3", "--warmup-ratio 0.5"}) {
    const std::string words = flag;
    std::string name = words.substr(2, words.find(' ') - 2);
    std::ranges::replace(name, '-', '_');
    const std::string said = name + " is a setting of a run on a --task";
    check_idle(World::distill() + " --out no " + flag, said);
    check_idle("distill --teacher self --model student --data text.txt --out no " + words, said);
  }
  // It has every key, those of tasks with their defaults.
  REQUIRE(contains(read_all(w.path("student/config.toml")), "train_split = \"train\""));
  w.must("distill --config student/config.toml --out of-kept-configuration");
  CHECK(read_all(w.path("of-kept-configuration/step-00000002/model.safetensors")) ==
        read_all(w.path("student/step-00000002/model.safetensors")));
}

}  // namespace brine::tests
