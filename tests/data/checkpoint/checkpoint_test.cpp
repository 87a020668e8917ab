// Checkpoints after kill -9, on full disks, with flipped bits and of newer formats: the last intact
// one stays.
#include "data/checkpoint/checkpoint.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fstream>

#include "data/codec/checksums.h"
#include "data/io/temporary.h"
#include "tests/faults.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace fs = std::filesystem;
using namespace brine;
using namespace brine::data;
using brine::data::read_file;
using brine::data::remove_stale_temporaries;
using namespace brine::test;

namespace {

std::string model_of(int64_t step) { return "weights of " + std::to_string(step); }

std::vector<CheckpointFile> files_of(int64_t step) {
  return {{"model.safetensors",
           [=](const data::ByteSink& sink) {
             sink(model_of(step).substr(0, 4));
             sink(model_of(step).substr(4));
           }},
          {"state.json", [](const data::ByteSink& sink) { sink("{}"); }},
          {"empty", [](const data::ByteSink&) {}}};
}

Path save(const Path& run, int64_t step, int keep = 2) {
  return save_checkpoint(run, step, files_of(step), keep);
}

std::vector<int64_t> steps_in(const Path& run) {
  std::vector<int64_t> steps;
  for (const Checkpoint& c : list_checkpoints(run)) steps.push_back(c.step);
  return steps;
}

// The step of the newest intact checkpoint, whose content is checked; 0 when there is none.
int64_t good_step(const Path& run) {
  LatestCheckpoint latest = latest_good_checkpoint(run);
  if (!latest.good) return 0;
  CHECK(read_file(latest.good->path / "model.safetensors") == model_of(latest.good->step));
  return latest.good->step;
}

void overwrite(const Path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A manifest with changed text and a checksum that fits it.
void forge_manifest(const Path& checkpoint, const std::string& from, const std::string& to) {
  std::string text = read_file(checkpoint / "manifest.json");
  std::string body = text.substr(0, text.rfind(",\n  \"sha256\""));
  size_t at = body.find(from);
  REQUIRE(at != body.npos);
  body.replace(at, from.size(), to);
  overwrite(checkpoint / "manifest.json",
            body + ",\n  \"sha256\": \"" + data::sha256_hex(body) + "\"\n}\n");
}

}  // namespace

TEST_CASE("checkpoint: saves, lists, reads back and keeps the newest") {
  Scratch run;
  CHECK(list_checkpoints(run / "nowhere").empty());
  CHECK_FALSE(latest_good_checkpoint(run.path()).good);
  fs::create_directory(run / "step-12");  // not a checkpoint name
  for (int64_t step : {5, 10, 20, 123456789}) {
    Path path = save(run.path(), step);
    CHECK_FALSE(checkpoint_defect(path));
    CHECK(good_step(run.path()) == step);
  }
  CHECK(steps_in(run.path()) == std::vector<int64_t>{123456789, 20});
  CHECK(fs::exists(run / "step-00000020/state.json"));
  CheckpointManifest manifest = read_checkpoint_manifest(run / "step-00000020");
  CHECK(manifest.version == kCheckpointVersion);
  CHECK(manifest.step == 20);
  REQUIRE(manifest.files.size() == 3);
  CHECK(manifest.files[0].bytes == model_of(20).size());
  CHECK(manifest.files[0].sha256 == data::sha256_hex(model_of(20)));
  CHECK(remove_stale_temporaries(run.path()).empty());
  save(run.path(), 123456790, 0);
  CHECK(steps_in(run.path()).size() == 3);
}

TEST_CASE("checkpoint: a damaged one does not count, one of a later step is left alone") {
  Scratch run;
  for (int64_t step : {10, 20, 30}) save(run.path(), step, 0);
  fs::remove(run / "step-00000020/manifest.json");
  overwrite(run / "step-00000030/state.json", "[]");
  LatestCheckpoint latest = latest_good_checkpoint(run.path());
  REQUIRE(latest.good);
  CHECK(latest.good->step == 10);
  REQUIRE(latest.skipped.size() == 2);
  CHECK(contains(latest.skipped[0], "step-00000030/state.json: content does not match"));
  CHECK(contains(latest.skipped[1], "step-00000020/manifest.json: cannot open: No such file"));
  save(run.path(), 25, 2);
  CHECK(steps_in(run.path()) == std::vector<int64_t>{30, 25, 20, 10});
  save(run.path(), 26, 2);
  CHECK(steps_in(run.path()) == std::vector<int64_t>{30, 26, 25});
  save(run.path(), 30, 2);  // replaces the damaged one
  CHECK(good_step(run.path()) == 30);
  CHECK(steps_in(run.path()) == std::vector<int64_t>{30, 26});
}

TEST_CASE("checkpoint: every flipped bit of every file is found") {
  Scratch run;
  save(run.path(), 10);
  Path path = save(run.path(), 20);
  for (const char* name : {"model.safetensors", "state.json", "manifest.json"}) {
    const std::string bytes = read_file(path / name);
    int missed = 0;
    for (size_t i = 0; i < 8 * bytes.size(); ++i) {
      std::string flipped = bytes;
      flipped[i / 8] = char(flipped[i / 8] ^ (1 << (i % 8)));
      overwrite(path / name, flipped);
      missed += !checkpoint_defect(path);
    }
    CHECK(missed == 0);
    CHECK(good_step(run.path()) == 10);
    for (size_t size = 0; size < bytes.size(); ++size) {
      overwrite(path / name, bytes.substr(0, size));
      missed += !checkpoint_defect(path);
    }
    CHECK(missed == 0);
    overwrite(path / name, bytes + " ");
    CHECK(checkpoint_defect(path));
    fs::remove(path / name);
    CHECK(checkpoint_defect(path));
    overwrite(path / name, bytes);
    CHECK(good_step(run.path()) == 20);
  }
}

TEST_CASE("checkpoint: a newer format is refused by name, not passed over") {
  Scratch run;
  save(run.path(), 10);
  Path path = save(run.path(), 20);
  forge_manifest(path, "\"version\": 1", "\"version\": 2");
  std::string message;
  try {
    latest_good_checkpoint(run.path());
  } catch (const NewerCheckpoint& e) {
    message = e.what();
  }
  check_says(message, {"step-00000020/manifest.json", "version 2", "brine"});
  CHECK_THROWS_AS(checkpoint_defect(path), NewerCheckpoint);
}

TEST_CASE("checkpoint: an inconsistent manifest is refused") {
  Scratch run;
  struct Lie {
    std::string from, to, reason;
  };
  const Lie lies[] = {{"\"step\": 20", "\"step\": 21", "is of step 21"},
                      {"brine checkpoint", "brine something", "not the manifest of a checkpoint"},
                      {"\"state.json\"", "\"../state.json\"", "bad file name"},
                      {"\"state.json\"", "\"..\"", "bad file name"},
                      {"\"state.json\"", "7", "must be string"},
                      {"\"state.json\"", "\"empty\"", "file 'empty' is listed twice"},
                      {"\"bytes\": 2", "\"bytes\": 3", "has 2 bytes, but the manifest has 3"},
                      {"\"version\": 1", "\"version\": \"1\"", "\"version\" is not an integer"},
                      {"\"version\": 1", "\"version\": 1.5", "\"version\" is not an integer"},
                      {"\"bytes\": 2", "\"bytes\": -2", "state.json cannot have -2 bytes"},
                      {"\"files\"", "\"flies\"", "key 'files' not found"}};
  for (const Lie& lie : lies) {
    Path path = save(run.path(), 20);
    forge_manifest(path, lie.from, lie.to);
    std::string reason = checkpoint_defect(path).value_or("");
    CAPTURE(reason);
    CHECK(contains(reason, lie.reason));
  }
}

TEST_CASE("checkpoint: bad arguments and a failing writer leave nothing") {
  Scratch run;
  auto with_name = [&](const std::string& name) {
    save_checkpoint(run.path(), 1, {{name, [](const data::ByteSink&) {}}}, 2);
  };
  for (const char* name : {"", ".", "..", "a/b", "manifest.json"})
    CHECK_THROWS_AS(with_name(name), Error);
  auto nothing = [](const data::ByteSink&) {};
  CHECK_THROWS_AS(save_checkpoint(run.path(), 1, {{"a", nothing}, {"a", nothing}}, 2), Error);
  CHECK_THROWS_AS(save(run.path(), -1), Error);
  CHECK_THROWS_AS(save(run.path(), 1, -1), Error);
  auto fails = [](const data::ByteSink& sink) {
    sink("some");
    throw Error("no weights");
  };
  CHECK_THROWS_WITH_AS(save_checkpoint(run.path(), 1, {{"a", fails}}, 2), "no weights", Error);
  CHECK(fs::is_empty(run.path()));
}

TEST_CASE("checkpoint: every file and directory is synced before the next step relies on it") {
  Scratch run;
  save(run.path(), 10);
  std::string order = run_with_fault({}, [&] { save(run.path(), 20, 1); }).order;
  const std::string files =
                        "wwf"
                        "wf"
                        "f",
                    manifest = "wf", publish = "frf";
  CHECK(order.starts_with("m" + files + manifest + publish + "ru"));  // then step 10 goes
  CHECK(order.find_first_not_of('u', 17) == order.npos);
}

TEST_CASE("checkpoint: a fault at every system call leaves the last intact one") {
  int calls = 0;
  {
    Scratch run;
    save(run.path(), 10);
    calls = run_with_fault({Fault::kill, 0}, [&] { save(run.path(), 20, 1); }).calls;
  }
  REQUIRE(calls > 15);
  for (Fault fault : {Fault::kill, Fault::torn, Fault::fail, Fault::disk_full}) {
    Scratch run;
    int committed = 0;
    for (int at = 1; at <= calls; ++at) {
      CAPTURE(int(fault));
      CAPTURE(at);
      fs::remove_all(run / "step-00000020");
      save(run.path(), 10, 1);
      auto end = run_with_fault({fault, at}, [&] { save(run.path(), 20, 1); });
      if (fault == Fault::kill) CHECK(end.killed);
      int64_t good = good_step(run.path());
      CHECK((good == 10 || good == 20));
      committed += good == 20;
      if (end.status == 0) CHECK(good == 20);
      // A start after the accident: leftovers go, and the step can be saved.
      remove_stale_temporaries(run.path());
      CHECK(latest_good_checkpoint(run.path()).skipped.empty());
      save(run.path(), 20, 1);
      CHECK(good_step(run.path()) == 20);
      CHECK(steps_in(run.path()) == std::vector<int64_t>{20});
      CHECK(std::distance(fs::directory_iterator(run.path()), fs::directory_iterator()) == 1);
    }
    CHECK((committed > 0 && committed < calls));
  }
}

TEST_CASE("checkpoint: one that may not survive a power failure is read back, older ones go") {
  Scratch run;
  for (int64_t step : {10, 20}) save(run.path(), step, 0);
  const std::string order = run_with_fault({}, [&] { save(run.path(), 20, 1); }).order;
  const int last = int(order.find("frf")) + 3;  // the second directory's fsync
  REQUIRE(last > 3);
  for (int64_t step : {10, 20}) save(run.path(), step, 0);
  auto end = run_with_fault({Fault::fail, last}, [&] {
    try {
      save(run.path(), 30, 1);
    } catch (const DurabilityUncertain&) {
      ::_exit(7);
    }
  });
  CHECK(end.status == 7);
  CHECK(steps_in(run.path()) == std::vector<int64_t>{30});
  CHECK(good_step(run.path()) == 30);
}

TEST_CASE("checkpoint: a size limit is one clear error") {
  Scratch run;
  save(run.path(), 10);
  auto end = run_with_fault({}, [&] {
    ::signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto big = [](const data::ByteSink& sink) { sink(std::string(3000, 'x')); };
    try {
      save_checkpoint(run.path(), 20, {{"model", big}}, 1);
    } catch (const Error& e) {
      ::_exit(contains(e.what(), "model: cannot write: the file would be larger") ? 5 : 6);
    }
  });
  CHECK(end.status == 5);
  CHECK(good_step(run.path()) == 10);
  CHECK(steps_in(run.path()) == std::vector<int64_t>{10});
}
