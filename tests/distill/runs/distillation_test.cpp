// Distillations in stages as library calls: their boundary, interruptions, and what they leave.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/io/file_io.h"
#include "data/safetensors/safetensors.h"
#include "distill/changed_settings.h"
#include "distill/runs/distillation.h"
#include "distill/runs/finetuning.h"
#include "distill/runs/training_run.h"
#include "nn/io/shared_student.h"
#include "tensor/device/allocator.h"
#include "tests/distill/attention_keys.h"
#include "tests/distill/runs.h"
#include "tests/distill/task_setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/small_models.h"

namespace brine::test {
namespace {

// A teacher in a directory, with a tokenizer of bytes, and a text.
struct Site {
  Scratch scratch;
  std::string teacher = (scratch / "teacher").string(), text = (scratch / "text.txt").string();

  explicit Site(const std::string& family = "opt") {
    save_teacher(family == "bert" ? small_bert(260, 48, 0.15) : small_opt(260, 48, 0.15), teacher);
    write_sentences(text);
  }
  std::string run(const std::string& name) const { return (scratch / name).string(); }

  Distillation what(bool joint = false) const {
    Distillation c{.teacher = teacher};
    c.data = {text};
    c.valid = {text};
    c.text.lengths = "24,48";
    c.training.steps = 6;
    c.training.batch_size = 1;
    c.training.rest.accumulate = 2;
    c.training.rest.save_every = 3;
    c.training.rest.keep = 0;
    c.training.rest.eval_windows = 2;
    c.mask = {.preset = "light", .k = 3, .columns = 12};
    c.stages = joint ? Stages::both : Stages::attention;
    if (joint) c.joint.training.steps = 6;
    return c;
  }
  // Stage joint alone.
  Distillation whole(int64_t batch_size = 2) const {
    Distillation c{.teacher = teacher, .data = {text}, .valid = {text}};
    c.training.steps = 3;
    c.training.batch_size = batch_size;
    c.training.rest.save_every = 2;
    c.training.rest.keep = 0;
    c.mask = {.k = 3, .columns = 12};
    return c;
  }
};

RunResult distil_to(const Site& site, const std::string& name, Distillation what,
                    bool resume = false, RunHost host = {}) {
  return distil(what, {.out = site.run(name), .resume = resume}, host);
}

RunHost stopping_after(int steps) {
  RunHost host;
  host.stop = [asked = 0, steps]() mutable { return ++asked > steps ? "asked to" : ""; };
  return host;
}

// The parts of a student that are not its attention's.
std::string base_hash(const std::string& path) {
  const nn::LoadedModel m = nn::load_model(path);
  std::vector<NamedTensor> base;
  for (NamedTensor& t : nn::tensors_of(*m.model)) {
    if (!m.model->is_attention_tensor(t.name)) base.push_back(t);
  }
  return nn::tensor_hash(base);
}

int64_t steps_with(const fs::path& run, const char* term) {
  int64_t n = 0;
  for (const std::string& line : log_lines(run)) n += Json::parse(line).contains(term);
  return n;
}

// The bytes that stand after a word: "memory at peak    1.5 MiB".
double bytes_after(const std::string& text, const std::string& word) {
  const size_t at = text.find(word);
  REQUIRE(at != std::string::npos);
  std::istringstream in(text.substr(at + word.size()));
  double value = 0;
  std::string unit;
  in >> value >> unit;
  const std::map<std::string, double> units = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
  return value * units.at(unit.substr(0, 3));
}

// A term of the line of a step.
double term_at(const fs::path& run, int64_t step, const char* term) {
  for (const std::string& line : log_lines(run)) {
    const Json json = Json::parse(line);
    if (json.value("step", int64_t(0)) == step && json.contains(term)) return json.at(term);
  }
  FAIL("no step " << step << " with " << term);
  return 0;
}

}  // namespace

TEST_CASE("stages: stage attention leaves a student that loads, with the teacher's base") {
  for (const char* family : {"opt", "bert"}) {
    INFO(family);
    const Site site(family);
    Distillation what = site.what();
    if (family == std::string("bert")) what.valid.clear();  // no next tokens to predict
    const RunResult done = distil_to(site, "run", what);
    CHECK(done.outcome.steps == 6);
    const nn::LoadedModel student = nn::load_model(site.run("run"));
    CHECK(student.config.attention == "sea");
    CHECK(base_hash(site.run("run")) == nn::load_model(site.teacher).hash());
    for (const char* term : {"approx", "context", "worst_loss", "worst_layer", "rate"}) {
      CHECK_MESSAGE(steps_with(site.run("run"), term) >= 6, term);
    }
    if (what.valid.empty()) continue;
    const Json last = Json::parse(log_lines(site.run("run")).back());
    CHECK(last.contains("valid_perplexity"));
    bool measured = false;
    for (const std::string& line : log_lines(site.run("run"))) {
      const Json json = Json::parse(line);
      if (!json.contains("block_mask_recall")) continue;
      measured = true;
      CHECK(json.at("block_mask_recall") > 0);
      CHECK(json.at("block_mask_recall_min") <= json.at("block_mask_recall"));
      CHECK(json.at("layer.1.recall") > 0);
      CHECK(json.at("layer.1.loss") > 0);
    }
    CHECK(measured);
  }
}

TEST_CASE("stages: a run that was killed or stopped continues to the bits of a whole one") {
  const Site site;
  const std::string whole = site.run("whole");
  auto what = [&] {
    Distillation c = site.what();
    c.mask.preset = "paper";
    return c;
  };
  distil_to(site, "whole", what());
  copy_killed(whole, site.run("killed"));
  distil_to(site, "killed", what(), true);
  check_same_run(whole, site.run("killed"), 6);
  CHECK(distil_to(site, "stopped", what(), false, stopping_after(4)).interrupted);
  distil_to(site, "stopped", what(), true);
  CHECK(file(site.run("stopped"), 6, "model.safetensors") == file(whole, 6, "model.safetensors"));
  // A damaged newest checkpoint falls back to the one before.
  fs::resize_file(data::checkpoint_path(whole, 6) / "optimizer.safetensors", 100);
  distil_to(site, "whole", what(), true);
  check_same_run(site.run("killed"), whole, 6);
}

// Blocks of 4 keys, of which a row keeps 3 by itself.
Distillation of_blocks(const Site& site, bool joint) {
  Distillation c = site.what(joint);
  c.student.attention = "blocks";
  c.mask = {.k = 16, .block = 4};
  c.training.steps.reset();
  set_attention(c, "tile", "4");
  return c;
}

TEST_CASE("stages: blocks are calibrated on the start of the text, then trained through") {
  const Site site;
  const std::string whole = site.run("whole");
  CHECK(distil_to(site, "apart", of_blocks(site, false)).outcome.steps == 1);
  const nn::LoadedModel student = nn::load_model(site.run("apart"));
  CHECK(student.config.attention == "blocks");
  CHECK(base_hash(site.run("apart")) == nn::load_model(site.teacher).hash());
  // As a model that was never distilled is calibrated on the same tokens.
  nn::LoadedModel direct = nn::load_model(site.teacher);
  use_attention(direct, "blocks", {{"k", 16}, {"block", 4}, {"tile", 4}});
  CHECK(direct.uncalibrated);
  const std::vector<int32_t> ids = byte_tokenizer()->encode(data::read_file(site.text));
  CHECK(nn::calibrate_attention(direct, Tensor::from(ids, {1, int64_t(ids.size())})) == 48);
  CHECK_FALSE(direct.uncalibrated);
  const auto theirs = student.model->named_buffers(), ours = direct.model->named_buffers();
  REQUIRE(ours.size() == 2);
  for (size_t i = 0; i < ours.size(); ++i) {
    CHECK(same_bits(ours[i].buffer->value, theirs[i].buffer->value));
    for (const double x : ours[i].buffer->value.to_vector()) CHECK(x > 0);
  }
  CHECK(distil_to(site, "apart", of_blocks(site, false), true).outcome.steps == 0);
  check_says(message([&] {
               Distillation other = of_blocks(site, false);
               other.mask.k = 20;
               distil_to(site, "apart", other, true);
             }),
             {"attention.k", "16", "20"});
  distil_to(site, "whole", of_blocks(site, true));
  distil_to(site, "apart", of_blocks(site, true), true);
  check_same_run(whole, site.run("apart"), 7);
  CHECK(steps_with(whole, "kd_task") == 6);
  CHECK(steps_with(whole, "valid_perplexity") == 2);
  // Without stage attention the student is calibrated, too.
  Distillation alone = of_blocks(site, false);
  alone.stages = Stages::joint;
  alone.training.steps = 2;
  distil_to(site, "alone", alone);
  const nn::LoadedModel trained = nn::load_model(site.run("alone"));
  for (const auto& b : trained.model->named_buffers())
    CHECK_FALSE(b.buffer->value.to_vector() ==
                std::vector<double>(size_t(b.buffer->value.numel()), 1));
}

TEST_CASE("stages: a damaged key_scale, a student of an earlier version and steps are refused") {
  const Site site;
  distil_to(site, "run", of_blocks(site, false));
  const data::Path checkpoint = data::checkpoint_path(site.run("run"), 1);
  auto copied = [&](const std::string& name) {  // without the manifest
    const std::string copy = site.run(name);
    fs::create_directories(copy);
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy(checkpoint / file, data::Path(copy) / file);
    return copy;
  };
  for (const double bad : {0.0, -1.0, double(NAN), double(INFINITY)}) {
    const std::string copy = copied(join("bad", bad));
    nn::LoadedModel m = nn::load_model(copy);
    std::vector<NamedTensor> tensors = nn::tensors_of(*m.model);
    for (NamedTensor& t : tensors) {
      if (!t.name.ends_with("key_scale")) continue;
      t.tensor = t.tensor.clone();
      t.tensor.data<float>()[3] = float(bad);
    }
    data::save_safetensors(data::Path(copy) / "model.safetensors", tensors);
    const std::string error = message([&] { nn::load_model(copy); });
    check_says(error, {copy, "key_scale", "above 0"});
    CHECK(error.find('\n') == error.npos);
  }
  auto edited = [&](const char* name, const Json& attention) {
    const std::string copy = copied(name);
    Json config = Json::parse(data::read_file(copy + "/config.json"));
    config["brine"]["attention"] = attention;
    data::write_file_atomic(copy + "/config.json", config.dump());
    return message([&] { nn::load_config(copy); });
  };
  for (const Json& first : {Json{{"method", "sea"}, {"mask", "blocks"}, {"parts", 4}},
                            Json{{"method", "sea"}, {"preset", "blocks"}}}) {
    const std::string error = edited(first.contains("mask") ? "mask" : "preset", first);
    check_says(error, {"earlier version", "brine distill --attention blocks"});
    CHECK(error.find('\n') == error.npos);
  }
  CHECK(edited("columns", {{"method", "sea"}, {"mask", "columns"}, {"parts", 1}, {"k", 8}}) ==
        "no error");
  Distillation steps = of_blocks(site, false);
  steps.training.steps = 5;
  CHECK_REFUSES(distil_to(site, "no", steps), "blocks", "5 steps", "--joint-steps");
}

TEST_CASE("stages: stage 2 after stage 1 is one run through both, bit for bit") {
  const Site site;
  struct Kind {
    const char* name;
    int64_t rank;
    double rate;
  };
  for (const Kind kind : {Kind{"frozen", 0, 0}, Kind{"lora", 2, 1e-2}, Kind{"all", 0, 1e-3}}) {
    INFO(kind.name);
    auto name = [&](const char* part) { return join(kind.name, part); };
    auto what = [&](bool joint) {
      Distillation c = site.what(joint);
      if (!joint) return c;
      c.lora_rank = kind.rank;
      c.joint.training.learning_rate = kind.rate;
      return c;
    };
    const std::string whole = site.run(name("-whole"));
    distil_to(site, name("-whole"), what(true));
    // Two processes.
    distil_to(site, name("-parts"), what(false));
    CHECK(file(whole, 6, "model.safetensors") ==
          file(site.run(name("-parts")), 6, "model.safetensors"));
    distil_to(site, name("-parts"), what(true), true);
    check_same_run(whole, site.run(name("-parts")), 12);
    // Killed inside stage 2.
    const std::string killed = site.run(name("-killed"));
    fs::create_directories(killed);
    for (const int64_t step : {6, 9}) {
      fs::copy(data::checkpoint_path(whole, step), data::checkpoint_path(killed, step),
               fs::copy_options::recursive);
    }
    fs::copy(fs::path(whole) / "log.jsonl", fs::path(killed) / "log.jsonl");
    distil_to(site, name("-killed"), what(true), true);
    check_same_run(whole, killed, 12);
    // What was trained.
    const bool frozen = kind.rank == 0 && kind.rate == 0;
    const nn::LoadedModel student = nn::load_model(whole);
    CHECK(student.config.lora_rank == kind.rank);
    if (kind.rank == 0) {
      CHECK((base_hash(whole) == nn::load_model(site.teacher).hash()) == frozen);
    }
    CHECK(file(whole, 9, "model.safetensors") != file(whole, 12, "model.safetensors"));
    CHECK(steps_with(whole, "kd_task") == 6);
    // It begins with the blocks of stage 1: new ones are further from the teacher on the same text.
    if (frozen) {
      Distillation alone = what(false);
      alone.stages = Stages::joint;
      alone.losses["approx"] = 1;
      distil_to(site, name("-alone"), alone);
      CHECK(term_at(whole, 7, "approx") < .97 * term_at(site.run(name("-alone")), 1, "approx"));
    }
    CHECK(distil_to(site, name("-killed"), what(true), true).outcome.steps == 0);  // finished
  }
}

TEST_CASE("stages: a limit of time ends stage attention, and stage joint waits for its end") {
  const Site site;
  auto limited = [&](double seconds, bool resume) {
    Distillation what = site.what(true);
    what.training.rest.max_seconds = seconds;
    return distil_to(site, "limited", what, resume);
  };
  for (const bool resume : {false, true}) {
    const RunResult result = limited(1e-9, resume);
    CHECK(result.out_of_time);
    CHECK_FALSE(result.interrupted);
    CHECK(steps_with(site.run("limited"), "kd_task") == 0);
  }
  CHECK_FALSE(limited(0, true).out_of_time);
  for (const int64_t step : {6, 12})  // the ends of the stages
    CHECK(fs::exists(data::checkpoint_path(site.run("limited"), step)));
  CHECK(steps_with(site.run("limited"), "kd_task") == 6);
}

TEST_CASE("stages: stage joint at a rate of 0 ends with what stage attention learned") {
  const Site site;
  Distillation still = site.what(true);
  still.joint.training.learning_rate = 0;
  still.joint.training.attention_learning_rate = 0;
  distil_to(site, "still", still);
  const std::string run = site.run("still");
  CHECK(file(run, 12, "model.safetensors") == file(run, 6, "model.safetensors"));
}

TEST_CASE(
    "distillation: a step's memory is known from small ones, and what does not fit is refused") {
  const Site site;
  Distillation what = site.whole(8);
  const std::unique_ptr<TrainingRun> eight =
      prepare(what, {.options = {.out = site.run("measured")}}, {});
  // What a step of 8 windows takes, and its moments.
  Objective objective(*eight->model, eight->teacher.get(), eight->losses);
  const Batch batch = eight->train->batch(0, 8);
  const int64_t before = allocator_stats().live;
  reset_peak();
  LossTerms terms;
  objective.run(batch, {}, terms);
  const double taken =
      double(allocator_stats().peak_live - before) + 8.0 * double(eight->store->size());
  const double known = step_memory(*eight, 1);
  CHECK(known == doctest::Approx(taken).epsilon(0.2));
  CHECK(message([&] { check_memory(*eight, 1, 1.2 * known); }) == "no error");
  const std::string refusal = message([&] { check_memory(*eight, 1, 0.2 * known); });
  check_says(refusal, {"a step of batch_size 8 needs about ", "the machine has ", "--force"});
  // It measured nothing that a run could notice.
  const RunOptions options{.out = site.run("measured")};
  train(*eight, options, {});
  distil_to(site, "plain", site.whole(8));
  CHECK(file(site.run("measured"), 3, "model.safetensors") ==
        file(site.run("plain"), 3, "model.safetensors"));
}

TEST_CASE("finetuning: the memory that is said before is that of the longest batch") {
  const Site site("bert");
  std::string texts = "text\tlabel\n";
  for (int i = 0; i < 128; ++i)  // batches of 4 to 8 tokens, and one of 48
    texts += (i == 77 ? std::string(46, 'x') : std::string(size_t(2 + i % 5), 'y')) +
             (i % 2 ? "\tno\n" : "\tyes\n");
  fs::create_directories(site.run("data"));
  data::write_file_atomic(site.run("data/train.tsv"), texts);
  data::write_file_atomic(site.run("data/dev.tsv"), "text\tlabel\ny\tno\n");
  Finetuning what;
  what.model = site.teacher;
  what.task.task = "tsv";
  what.task.data = site.run("data");
  what.epochs = 1;
  what.training.batch_size = 8;
  what.training.rest.save_every = 0;
  RunHost host;
  host.seed = 4;  // with which the longest batch is not the first one
  const RunOptions dry{.out = site.run("dry"), .dry_run = true};
  const std::unique_ptr<TrainingRun> planned = prepare(what, dry, host);
  const RunBatches batches = batches_of(*planned);
  CHECK(batches.longest > 1);
  CHECK(planned->train->row_tokens(batches.longest, 8) == 48);
  CHECK(planned->train->row_tokens(batches.usual, 8) == 8);
  CHECK(batches.differ);
  const std::string said = train(*planned, dry, host).dry_run;
  const RunOptions options{.out = site.run("run")};
  std::string told;
  const std::unique_ptr<TrainingRun> run = prepare(what, options, host);
  reset_peak();
  host.messages = Messages([&](auto, const std::string& line) { told += line + "\n"; });
  train(*run, options, host);
  const double peak = double(allocator_stats().peak_live);
  CHECK(bytes_after(said, "memory at peak") == doctest::Approx(peak).epsilon(0.1));
  CHECK(bytes_after(said, "held at most") > 1.4 * peak);
  CHECK(bytes_after(told, "memory            about") == doctest::Approx(peak).epsilon(0.2));
}

TEST_CASE("distillation: a resumed run has its own recipe, and other settings are refused") {
  const Site site;
  auto start = [&](const char* name, Recipe recipe) {
    Distillation what = site.whole();
    what.recipe = recipe;
    distil_to(site, name, what, false, stopping_after(2));
  };
  auto resume = [&](const char* name, std::optional<Recipe> recipe = std::nullopt,
                    const char* prior = nullptr) {
    Distillation what = site.whole();
    what.recipe = recipe;
    if (prior) set_attention(what, "prior", prior);
    distil(what, {.out = site.run(name), .resume = true}, {});
    return what.recipe;
  };
  start("paper", Recipe::paper);
  CHECK(resume("paper") == Recipe::paper);
  start("other", Recipe::short_run);
  CHECK_REFUSES(resume("other", std::nullopt, "none"), "attention.prior: \"learned\" -> \"none\"");
  const std::string refused = message([&] { resume("other", Recipe::paper); });
  CHECK(refused.find("optimizer.learning_rate: 0.0003 -> 2e-06") != std::string::npos);
  CHECK(refused.find("recipe") == std::string::npos);  // values are compared, not names
}

TEST_CASE("distillation: a student that learned by layers learns on") {
  const Site site;
  distil_to(site, "layers", site.what());
  const nn::LoadedModel before = nn::load_model(site.run("layers"));
  Distillation what = site.whole();
  what.mask = {};
  what.model = site.run("layers");
  what.text.retrieval_share = 0.5;
  what.training.learning_rate = what.training.attention_learning_rate = 0;
  what.training.rest.optimizer.weight_decay = 0;
  const RunResult done = distil_to(site, "joint", what);
  CHECK(done.outcome.last.count("kd_task") == 1);
  // It started from that student: with rates of 0 it stays what it was.
  CHECK(nn::load_model(site.run("joint")).hash() == before.hash());
  CHECK(distil_to(site, "joint", what, true).outcome.steps == 0);
}

TEST_CASE("distillation: a student of blocks with additions learns on by the defaults of blocks") {
  const Site site;
  distil_to(site, "whole", of_blocks(site, true));
  Distillation what{.teacher = site.teacher, .data = {site.text}};
  what.text.lengths = "24";
  what.training.steps = 2;
  what.model = site.run("whole");
  const RunResult done = distil_to(site, "on", what);
  CHECK(done.outcome.last.count("kd_task") == 1);
  CHECK(done.outcome.last.count("approx") == 0);
  const nn::LoadedModel student = nn::load_model(site.run("on"));
  CHECK(student.config.attention == "blocks");
  CHECK(student.hash() != nn::load_model(site.run("whole")).hash());
}

TEST_CASE("distillation: records of runs from before the stages were one command go on") {
  Distillation what;
  what.stages = Stages::attention;
  what.resolve({});
  Json now = data::schema_of(what).to_json(), before = now;
  before["stage"] = "attention";
  for (const char* key : {"stages", "model", "task", "train_split"}) before.erase(key);
  before["losses"].erase("kl");
  before["optimizer"].erase("feature_learning_rate");
  before["copies"] = 1;  // of a window, which could be repeated
  CHECK(changed_settings(before, now).empty());
  now["losses"]["newer"] = 0.0;  // a loss that there was not
  CHECK(changed_settings(before, now).empty());
  now["losses"]["newer"] = 0.5;
  CHECK(changed_settings(before, now).size() == 1);
  now["losses"].erase("newer");
  before["lengths"] = "64";
  CHECK(changed_settings(before, now).size() == 1);
  before["copies"] = 2;
  CHECK(changed_settings(before, now).size() == 2);
}

TEST_CASE("stages: what is refused") {
  const Site site;
  auto refused = [&](const std::function<void(Distillation&)>& change) {
    Distillation what = site.what();
    change(what);
    return message([&] { distil_to(site, "no", what); });
  };
  check_says(refused([](Distillation& w) { w.text.lengths = "49"; }), {"windows", "49", "48"});
  CHECK(refused([](Distillation& w) { w.data.clear(); }) == "distill: --data or --dump is needed");
  check_says(refused([](Distillation& w) { w.stages = Stages::joint, w.model = "x"; }),
             {"x", "no such model"});
  check_says(refused([](Distillation& w) { w.training.sequence_length = 49; }),
             {"distill", "sequence_length", "49", "48"});
  check_says(refused([](Distillation& w) { w.losses["approx"] = w.losses["context"] = 0; }),
             {"stage attention"});
  // Settings of stages that are not run.
  const std::pair<const char*, std::function<void(Distillation&)>> others[] = {
      {"joint.steps", [](Distillation& w) { w.joint.training.steps = 3; }},
      {"joint.lora_rank", [](Distillation& w) { w.lora_rank = 2; }},
      {"losses.kd", [](Distillation& w) { w.losses["kd"] = 1; }},
      {"recipe", [](Distillation& w) { w.recipe = Recipe::paper; }},
      {"optimizer.learning_rate", [](Distillation& w) { w.training.learning_rate = 1; }}};
  for (const auto& [key, change] : others)
    check_says(refused(change), {"distill: ", key, " is a setting of stage joint"});
  CHECK_FALSE(fs::exists(site.run("no")));
  distil_to(site, "run", site.what());
  CHECK_REFUSES(distil_to(site, "run", site.what()), "--resume");
  Distillation other = site.what(true);
  other.mask.k = 4;
  CHECK_REFUSES(distil_to(site, "run", other, true), "attention.k", "3", "4");
  Distillation student = site.what();
  student.teacher = site.run("run");
  CHECK_REFUSES(distil_to(site, "no", student), "distill", "sea", "flash");
}

TEST_CASE("distillation: a dry run says the memory of each part of a step") {
  const Site site;
  Distillation c = site.what();
  c.stages = Stages::joint;
  const RunResult result = distil(c, {.out = site.run("dry"), .dry_run = true}, {});
  const std::string& said = result.dry_run;
  size_t at = said.find("memory at peak");
  for (const char* part : {"\n  forward pass", "\n  logits", "\n  backward pass",
                           "\n  held at most", "\na checkpoint"}) {
    CAPTURE(part);
    const size_t next = said.find(part, at);
    CHECK(next != std::string::npos);
    CHECK((next - at) < 60);  // on the next line
    at = next;
  }
}

}  // namespace brine::test
