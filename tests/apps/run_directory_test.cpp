// The directory of a run: finished, stopped by a signal, in use, or resumed with other inputs.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/temporary.h"
#include "tests/apps/world.h"
#include "tests/paths.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

// A run of the world under another name.
std::string copy_of(const std::string& from, const std::string& name) {
  fs::copy(world().path(from), world().path(name), fs::copy_options::recursive);
  return name;
}

// The end of `command`, which was refused.
std::string refused_run(const std::string& command) {
  return refusal_in(world().run(command + " --quiet"));
}

void say(const std::string& error, const std::string& part) {
  CHECK_MESSAGE(error.find(part) != std::string::npos, "no '" << part << "' in: " << error);
}

}  // namespace

TEST_CASE("run directory: a finished run that is resumed stays as it is and reports it") {
  const World& w = world();
  auto before = w.files();
  Finished f = w.must(World::train() + " --valid text.txt --out teacher --resume");
  say(f.error, "teacher: the run is finished, 3 steps; nothing left to do");
  CHECK(w.files() == before);
}

TEST_CASE("run directory: an evaluation that a dead process still owed is made once") {
  const World& w = world();
  std::string run = copy_of("teacher", "owing"), log = read_all(w.path("owing/log.jsonl"));
  const size_t at = log.find("{\"type\":\"evaluation\"");
  REQUIRE(at != std::string::npos);
  w.write("owing/log.jsonl", log.substr(0, at));
  std::string command = World::train() + " --valid text.txt --out owing --resume";
  w.must(command);
  CHECK(occurrences(read_all(w.path("owing/log.jsonl")), "\"evaluation\"") == 1);
  say(w.must(command).error, "nothing left to do");
  CHECK(occurrences(read_all(w.path("owing/log.jsonl")), "\"evaluation\"") == 1);
}

TEST_CASE("run directory: a second process is refused at once") {
  const World& w = world();
  copy_of("teacher", "busy");
  fs::create_directory(w.path("busy-new"));
  data::DirectoryLock run(w.path("busy"), "?"), empty(w.path("busy-new"), "?");
  auto before = w.files();
  const std::string said = ": another process is working on this run\n";
  CHECK(refused_run(World::train() + " --valid text.txt --out busy --resume") ==
        "brine train: busy" + said);
  CHECK(refused_run(World::train() + " --out busy-new") == "brine train: busy-new" + said);
  CHECK(refused_run(World::distill() + " --out busy-new") == "brine distill: busy-new" + said);
  CHECK(w.files() == before);
  w.must(World::train() + " --out busy-new --dry-run");  // writes nothing there
}

TEST_CASE("run directory: inputs with another content stop a resumption and are named") {
  const World& w = world();
  w.write("here.txt", sample_text(100));
  w.write("there.txt", sample_text(80));
  copy_of("tok", "tok-2");
  std::string train =
      "train --config model.toml --tokenizer tok-2 --train here.txt --valid there.txt --out inputs";
  w.must(train);
  nlohmann::json state =
      nlohmann::json::parse(read_all(w.path("inputs/step-00000003/trainer.json")));
  const auto& inputs = state.at("configuration").at("inputs");
  CHECK(inputs.at("train.here.txt").get<std::string>().size() == 64);
  CHECK(inputs.size() == 3);
  w.write("here.txt", sample_text(100) + "And more.");
  std::string error = refused_run(train + " --resume");
  say(error, "inputs: the configuration changed since; inputs.train.here.txt: ");
  CHECK(error.find("there.txt") == std::string::npos);
  w.write("here.txt", sample_text(100));
  w.write("there.txt", sample_text(79));
  say(refused_run(train + " --resume"), "inputs.valid.there.txt: ");
  w.write("there.txt", sample_text(80));
  say(w.must(train + " --resume").error, "nothing left to do");
  fs::remove_all(w.path("tok-2"));
  w.must("tokenizer --train there.txt --vocab-size 290 --out tok-2");
  say(refused_run(train + " --resume"), "inputs.tokenizer: ");
}

TEST_CASE("run directory: another teacher or dump stops a resumption too") {
  const World& w = world();
  copy_of("teacher", "teacher-2");
  std::string online = World::distill("--steps 2 --columns 12", "teacher-2") + " --out inputs-2";
  w.must(online);
  fs::remove_all(w.path("teacher-2"));
  w.must(World::train() + " --seed 2 --out teacher-2");
  say(refused_run(online + " --resume"), "inputs.teacher: ");
  say(refused_run(online + " --resume --dry-run"), "inputs.teacher: ");
  std::string dump = "dump --model teacher --data text.txt --out dump-2 --windows ";
  w.must(dump + "6");
  std::string dumped = World::distill("--steps 2 --columns 12") + " --dump dump-2 --out inputs-3";
  Finished f = w.must(dumped);
  CHECK(occurrences(f.error, "tokens at the end dropped") == 1);  // the text was read once
  fs::remove_all(w.path("dump-2"));
  w.must(dump + "5");
  say(refused_run(dumped + " --resume"), "inputs.dump: ");
}

TEST_CASE("run directory: SIGTERM saves a checkpoint, exits with 130, and nothing is lost") {
  const World& w = world();
  std::string command = World::train() + " --steps 400 --save-every 50 --model.dropout 0.1";
  w.must(command + " --out calm");
  // Stopped as soon as it has taken its first steps.
  std::string script =
      "cd " + w.path(".") + "; " + brine::test::binary_dir() + "/brine " + command +
      " --out stopped " +
      "2>stopped.err & n=0; while ! grep -q step stopped/log.jsonl 2>/dev/null && " +
      "[ $n -lt 3000 ]; do sleep 0.01; n=$((n+1)); done; " + brine::test::binary_dir() + "/brine " +
      command +
      " --out stopped --quiet 2>second.err; echo $? >second.status; kill -TERM $!; wait $!";
  int code = std::system(("bash -c '" + script + "'").c_str());
  CHECK(WEXITSTATUS(code) == 130);
  CHECK(read_all(w.path("second.status")) == "1\n");
  CHECK(read_all(w.path("second.err")) ==
        "brine train: stopped: another process is working on this run\n");
  CHECK_FALSE(fs::exists(w.path("stopped/step-00000400")));
  std::string said = read_all(w.path("stopped.err"));
  const size_t at = said.find("SIGTERM: saving at step ");
  REQUIRE_MESSAGE(at != std::string::npos, said);
  const std::string step = std::to_string(std::stoi(said.substr(at + 24)));
  CHECK(fs::exists(w.path("stopped/step-" + std::string(8 - step.size(), '0') + step)));
  say(said, "interrupted after " + step + " steps");
  say(w.must(command + " --out stopped --resume").error, "resuming at step " + step);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    CHECK(read_all(w.path(std::string("stopped/step-00000400/") + name)) ==
          read_all(w.path(std::string("calm/step-00000400/") + name)));
  }
}

TEST_CASE("run directory: the configuration that a run has written starts the same run again") {
  const World& w = world();
  int number = 0;
  // Weights of the run `arguments` and of one with its configuration alone.
  auto again = [&](const std::string& command, const std::string& arguments, int step) {
    const std::string out = "kept-" + std::to_string(number++);
    w.must(command + " " + arguments + " --batch-size 2 --steps 2 --out " + out);
    w.must(command + " --config " + out + "/config.toml --out " + out + "-again");
    const std::string weights = "/step-0000000" + std::to_string(step) + "/model.safetensors";
    CHECK_MESSAGE(read_all(w.path(out + weights)) == read_all(w.path(out + "-again" + weights)),
                  command << " " << arguments);
    return out;
  };
  const std::string on = again("train", "--model student --train text.txt", 2);
  again("train", "--model teacher --train text.txt --attention recent --attention.k 4", 2);
  again("train", "--model export/config.json --tokenizer tok --train text.txt --seed 4", 2);
  again("distill", "--teacher teacher --model student --data text.txt", 2);
  again("distill", "--teacher self --model student --data text.txt --seed 2", 2);
  again("distill", "--teacher teacher --data text.txt --stages attention --columns 12 --k 4", 2);
  say(refused_run("train --config " + on + "/config.toml --hidden-size 48 --out never"),
      "model.hidden_size cannot be set, student has its own; given 48, found 32");
  say(refused_run("train --config " + on + "/config.toml --attention.k 5 --out never"),
      "attention.k cannot be set, student has its own; given 5, found 4");
  say(refused_run("train --config " + on + "/config.toml --model.type llama --out never"),
      "cannot be set, student has its own");
}

TEST_CASE("run directory: what changes nothing of the weights may change when a run is resumed") {
  const World& w = world();
  fs::create_directory(w.path("sub"));
  fs::copy(w.path("text.txt"), w.path("sub/same.txt"));
  copy_of("tok", "sub/tok");
  const std::string train = "train --config model.toml --steps 4 --save-every 2 --tokenizer tok ";
  w.must(train + "--train text.txt --valid text.txt --out free-keys");
  fs::remove_all(w.path("free-keys/step-00000004"));
  w.must(
      "train --config model.toml --out free-keys --steps 4 --resume --log-steps 1 --keep 1 "
      "--save-every 1 --eval-every 1 --max-seconds 1000 --no-keep-moments --tokenizer sub/tok "
      "--train sub/../sub/same.txt --valid " +
      w.path("text.txt"));
  w.must(train + "--train text.txt --out whole-keys");
  CHECK(read_all(w.path("free-keys/step-00000004/model.safetensors")) ==
        read_all(w.path("whole-keys/step-00000004/model.safetensors")));
  CHECK_FALSE(fs::exists(w.path("free-keys/step-00000003")));
  // The order of files counts, and so do other settings.
  w.write("sub/other.txt", sample_text(90));
  const std::string two = train + "--out free-order --train ";
  w.must(two + "text.txt sub/other.txt");
  say(w.must(two + "sub/same.txt ./sub/other.txt --resume").error, "nothing left to do");
  say(refused_run(two + "sub/other.txt text.txt --resume"),
      "the configuration changed since; train");
  say(refused_run(two + "text.txt sub/other.txt --accumulate 2 --resume"), "accumulate: 1 -> 2");
  const std::string distill = World::distill("--steps 2 --columns 12", "./teacher/");
  w.must(World::distill("--steps 2 --columns 12") + " --dump dump --out free-dump");
  say(w.must(distill + " --dump ../$(basename $PWD)/dump --out free-dump --resume").error,
      "nothing left to do");
}

TEST_CASE("run directory: a run that its limit of time has ended goes on with another limit") {
  const World& w = world();
  const std::string train = World::train() + " --steps 1000000 --out timed ";
  auto steps = [&] {
    int64_t last = 0;
    for (const auto& e : fs::directory_iterator(w.path("timed"))) {
      const std::string name = e.path().filename().string();
      if (name.starts_with("step-")) last = std::max<int64_t>(last, std::stoll(name.substr(5)));
    }
    return last;
  };
  say(w.must(train + "--max-seconds 0.05").error, "of 1000000 steps; --resume with a larger");
  const int64_t first = steps();
  say(w.must(train + "--max-seconds 0.05 --resume").error,
      "timed: the limit of 0.05 s (max_seconds) is reached after " + std::to_string(first) + " of");
  say(w.must(train + "--max-seconds 0.2 --resume").error, "resuming at step ");
  const int64_t second = steps();
  CHECK(second > first);
  // Without a limit in the command it keeps that of the run.
  say(w.must(train + "--resume").error, "the limit of 0.20 s (max_seconds) is reached after ");
  CHECK(steps() == second);
}

TEST_CASE("run directory: a batch that no memory can hold is refused before the run starts") {
  const World& w = world();
  const std::string distill = "distill --teacher teacher --data text.txt --columns 12 --k 4";
  for (const std::string& command : {World::train(), World::train() + " --dry-run", distill}) {
    const std::string error = refused_run(command + " --batch-size 1000000000 --out too-large");
    say(error, "a step of batch_size 1000000000 needs about ");
    say(error, ", the machine has ");
    say(error, " or --force to start nevertheless");
  }
  CHECK_FALSE(fs::exists(w.path("too-large")));
  w.must(World::train() + " --force --out forced");
}

TEST_CASE("run directory: what is a model, a run, a dump or a tokenizer stays it") {
  const World& w = world();
  const std::string distill = "distill --teacher teacher --data text.txt --columns 12 --k 4";
  const std::string commands[] = {World::train(),
                                  distill,
                                  distill + " --stages attention",
                                  "dump --model teacher --data text.txt --windows 2",
                                  "export --checkpoint student",
                                  "extend --model student --positions 48"};
  const auto before = w.files();
  for (const std::string& command : commands) {
    CAPTURE(command);
    say(refused_run(command + " --out export"),
        "already contains a model (config.json); give another directory");
    say(refused_run(command + " --out tok"), "tok: already contains a tokenizer (");
    say(refused_run(command + " --out teacher"), "teacher: already contains a run");
    if (!command.starts_with("dump "))
      say(refused_run(command + " --out dump"), "dump: already contains a dump or token shards (");
  }
  say(refused_run("dump --model teacher --data text.txt --windows 5 --out dump"),
      "dump: contains another dump");
  CHECK(w.files() == before);
  // A run that ended before its first checkpoint starts again.
  w.must(World::train() + " --out started");
  fs::remove_all(w.path("started/step-00000003"));
  w.must(World::train() + " --out started");
}

}  // namespace brine::tests
