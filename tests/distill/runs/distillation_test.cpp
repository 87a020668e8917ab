// A distillation as a library call: three steps without a command line, and resumed runs.
#include "distill/runs/distillation.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "distill/runs/memory_check.h"
#include "tensor/device/allocator.h"
#include "tests/distill/attention_keys.h"
#include "tests/distill/task_setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/small_models.h"

using namespace brine;
using namespace brine::test;

namespace {

// A teacher in a directory, with a tokenizer of bytes, and a text.
struct Place {
  Scratch scratch;
  std::string teacher = (scratch / "teacher").string(), text = (scratch / "text.txt").string();

  Place() {
    nn::ModelConfig config = small_opt(260, 16, 0.15);
    config.attention = "flash";
    const std::unique_ptr<nn::Model> model = nn::make_model(config, 1);
    nn::ParameterStore store(*model);
    nn::export_model(config, *model, byte_tokenizer().get(), teacher);
    std::string words;
    for (int i = 0; i < 40; ++i) words += "the stone of the king " + std::to_string(i * i) + ". ";
    data::write_file_atomic(text, words);
  }
  std::string run(const std::string& name) const { return (scratch / name).string(); }

  Distillation what() const {
    Distillation d{.teacher = teacher, .data = {text}, .valid = {text}};
    d.recipe.training.steps = 3;
    d.recipe.training.batch_size = 2;
    d.recipe.training.rest.save_every = 2;
    d.recipe.training.rest.keep = 0;
    set_attention(d.recipe, "k", "3");
    set_attention(d.recipe, "columns", "12");
    return d;
  }
};

RunResult run_of(Distillation& what, const RunOptions& options, RunHost host = {}) {
  const std::unique_ptr<TrainingRun> run = prepare(what, options, host);
  return train(*run, options, host);
}

std::string weights(const std::string& run, const char* step) {
  return data::read_file(run + "/step-0000000" + step + "/model.safetensors");
}

// The settings of a run, as they are recorded.
std::function<std::string()> settings_of(Distillation& what) {
  return [&what] { return data::schema_of(what).to_json().dump(); };
}

}  // namespace

TEST_CASE("distillation: a library call distils three steps and saves a model that loads") {
  const Place place;
  Distillation what = place.what();
  std::vector<std::string> said;
  const RunHost host{.messages = Messages(
                         [&](Messages::Level, const std::string& text) { said.push_back(text); })};
  const std::string out = place.run("run");
  const RunResult done = run_of(what, {.out = out}, host);
  CHECK(done.outcome.steps == 3);
  CHECK_FALSE(done.interrupted);
  CHECK(done.dry_run.empty());
  CHECK(done.outcome.last.count("approx") == 1);
  CHECK(done.outcome.last.count("kd_task") == 1);
  CHECK(said.size() >= 4);  // the inputs, the training, the end
  const nn::LoadedModel student = nn::load_model(out);
  CHECK(student.config.attention == "sea");
  CHECK(student.config.shape().hidden_size == 24);
  CHECK(nn::load_model(place.teacher).hash() != student.hash());
  CHECK(what.recipe.training.learning_rate == 3e-4);
}

TEST_CASE("distillation: a stop ends the run, and resuming gives the bits of one without a stop") {
  const Place place;
  Distillation whole = place.what(), cut = place.what(), rest = place.what();
  run_of(whole, {.out = place.run("whole")});
  int asked = 0;
  RunHost host;
  host.stop = [&] { return ++asked > 2 ? "asked to" : ""; };
  CHECK(run_of(cut, {.out = place.run("cut")}, host).interrupted);
  CHECK(run_of(rest, {.out = place.run("cut"), .resume = true}).outcome.steps == 3);
  CHECK(weights(place.run("cut"), "3") == weights(place.run("whole"), "3"));
}

TEST_CASE("distillation: a dry run measures and writes nothing") {
  const Place place;
  Distillation what = place.what();
  const RunResult done = run_of(what, {.out = place.run("dry"), .dry_run = true});
  CHECK(done.dry_run.find("tokens a step     32\n") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(place.run("dry")));
}

TEST_CASE(
    "distillation: a step's memory is known from small ones, and what does not fit is refused") {
  const Place place;
  Distillation what = place.what();
  what.recipe.training.batch_size = 8;
  const std::unique_ptr<TrainingRun> eight = prepare(what, {.out = place.run("measured")}, {});
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
  const RunOptions options{.out = place.run("measured")};
  train(*eight, options, {});
  Distillation plain = place.what();
  plain.recipe.training.batch_size = 8;
  run_of(plain, {.out = place.run("plain")});
  CHECK(weights(place.run("measured"), "3") == weights(place.run("plain"), "3"));
}

TEST_CASE("distillation: a resumed run has its own recipe, and other settings are refused") {
  const Place place;
  auto start = [&](const char* name, RecipeName recipe) {
    Distillation what = place.what();
    what.recipe.name = recipe;
    RunHost host;
    host.configuration = settings_of(what);
    host.stop = [asked = 0]() mutable { return ++asked > 2 ? "enough" : ""; };
    run_of(what, {.out = place.run(name)}, host);
  };
  auto resume = [&](const char* name, std::optional<RecipeName> recipe = std::nullopt,
                    const char* prior = nullptr) {
    Distillation what = place.what();
    what.recipe.name = recipe;
    if (prior) set_attention(what.recipe, "prior", prior);
    RunHost host;
    host.configuration = settings_of(what);
    run_of(what, {.out = place.run(name), .resume = true}, host);
    return what.recipe;
  };
  start("paper", RecipeName::paper);
  CHECK(resume("paper").name == RecipeName::paper);
  start("other", RecipeName::short_run);
  check_says(message([&] { resume("other", std::nullopt, "none"); }),
             {"attention.prior: \"learned\" -> \"none\""});
  const std::string refused = message([&] { resume("other", RecipeName::paper); });
  CHECK(refused.find("optimizer.learning_rate: 0.0003 -> 2e-06") != std::string::npos);
  CHECK(refused.find("recipe") == std::string::npos);  // values are compared, not names
}

TEST_CASE("distillation: stage attention, then stage joint from its student") {
  const Place place;
  Distillation blocks = place.what();
  set_attention(blocks.recipe, "method", "sea");
  blocks.stage = Stage::attention;
  blocks.text.lengths = "8,16";
  run_of(blocks, {.out = place.run("blocks")});
  CHECK(blocks.recipe.losses["approx"] == 10);
  const nn::LoadedModel before = nn::load_model(place.run("blocks"));
  CHECK(before.config.attention == "sea");
  Distillation joint = place.what();
  joint.recipe.attention_keys.clear();
  joint.model = place.run("blocks");
  joint.text.retrieval_share = 0.5;
  joint.recipe.training.learning_rate = 0;
  joint.recipe.training.attention_learning_rate = 0;
  joint.recipe.training.rest.optimizer.weight_decay = 0;
  const RunResult done = run_of(joint, {.out = place.run("joint")});
  CHECK(done.outcome.last.count("kd_task") == 1);
  // It started from that student: with rates of 0 it stays what it was.
  CHECK(nn::load_model(place.run("joint")).hash() == before.hash());
  Distillation again = place.what();
  again.recipe.attention_keys.clear();
  again.model = place.run("blocks");
  again.text.retrieval_share = 0.5;
  again.recipe.training = joint.recipe.training;
  CHECK(run_of(again, {.out = place.run("joint"), .resume = true}).outcome.steps == 0);
  Distillation resumed = place.what();
  set_attention(resumed.recipe, "method", "sea");
  resumed.stage = Stage::attention;
  resumed.text.lengths = "8,16";
  CHECK(run_of(resumed, {.out = place.run("blocks"), .resume = true}).outcome.steps == 0);
}

TEST_CASE("distillation: what does not go together is refused before anything is written") {
  const Place place;
  auto refused = [&](const std::function<void(Distillation&)>& change) {
    Distillation what = place.what();
    change(what);
    return message([&] { run_of(what, {.out = place.run("no")}); });
  };
  CHECK(refused([](Distillation& d) { d.data.clear(); }) == "distill: --data is needed");
  check_says(refused([](Distillation& d) { d.model = "x"; }), {"x", "no such model"});
  check_says(refused([](Distillation& d) {
               d.stage = Stage::attention;
               d.copies = 2;
             }),
             {"distill", "stage attention", "copies"});
  check_says(refused([](Distillation& d) { d.recipe.training.sequence_length = 17; }),
             {"distill", "sequence_length", "17", "16"});
  CHECK(refused([](Distillation& d) { d.teacher = "self"; }) ==
        "distill: --teacher self needs --model, the student");
  CHECK_FALSE(std::filesystem::exists(place.run("no")));
}
