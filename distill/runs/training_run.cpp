// The parts of a training run: its text, its model and its directory.
#include "distill/runs/training_run.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/checkpoint/checkpoint.h"
#include "data/checkpoint/occupied.h"
#include "data/io/file_io.h"
#include "data/io/json.h"
#include "distill/evaluation/recall_observer.h"

namespace brine::distill {
namespace fs = std::filesystem;

void RunOptions::describe(data::Schema& s) {
  s.field("out", out, "Directory of the run", {.required = true});
  s.field("log_steps", log_steps, "Also print a line every so many steps; 0 = by time only",
          {.min = 0});
  s.field("rank_seconds", rank_seconds, "Seconds that a rank waits for others in a step",
          {.above = 0, .transient = true});
  s.field("nccl", nccl, "With several ranks on GPUs: use NCCL if it is found", {.transient = true});
  s.field("resume", resume, "Continue the run in --out from its newest checkpoint",
          {.transient = true});
  s.field("dry_run", dry_run, "Print parameters, memory and time, train nothing",
          {.transient = true});
  s.field("force", force,
          "Start a run whose step needs more memory than the machine has, by its estimate",
          {.transient = true});
  s.field("anomaly", anomaly,
          "Stop at the first op that makes a NaN or infinity, and name it; slow",
          {.transient = true});
}

data::TokenCorpus load_run_texts(TrainingRun& run, const std::string& role,
                                 const std::vector<std::string>& files, const TextFiles& text,
                                 const RunHost& host) {
  data::TokenCorpus corpus = load_texts(files, *run.tokenizer, text.window, host.messages);
  for (size_t i = 0; i < files.size(); ++i) {
    run.inputs[role + "." + files[i]] = corpus.text_hashes[i];
  }
  return corpus;
}

void use_text(TrainingRun& run, const TextFiles& text, const RunHost& host) {
  run.train =
      windows_of(load_run_texts(run, text.role, text.train, text, host), text.window, host.seed);
  use_valid_text(run, text, host);
}

void use_valid_text(TrainingRun& run, const TextFiles& text, const RunHost& host) {
  if (text.valid.empty()) return;
  run.valid = windows_of(load_run_texts(run, "valid", text.valid, text, host), text.window, 0);
}

void refuse_other(const std::set<std::string>& chosen, const std::string& section,
                  const data::Json& given, const data::Json& theirs, const std::string& path) {
  for (const std::string& key : chosen) {
    std::string place = "/" + key;
    std::replace(place.begin(), place.end(), '.', '/');
    const data::Json::json_pointer at(place);
    if (!given.contains(at)) continue;
    const bool has = theirs.contains(at);
    // The configuration that a run has written names them too.
    if (has && theirs.at(at) == given.at(at)) continue;
    throw Error(join(section, ".", key, " cannot be set, ", path, " has its own; given ",
                     json_text(given.at(at)), ", there ",
                     has ? json_text(theirs.at(at)) : "no such key"));
  }
}

void refuse_other_attention(const std::set<std::string>& chosen, nn::ModelConfig& given,
                            const nn::LoadedModel& theirs, const std::string& path) {
  nn::ModelConfig other = theirs.config;
  data::Schema wanted, actual;
  given.describe_attention(wanted);
  other.describe_attention(actual);
  refuse_other(chosen, "attention", wanted.to_json().at("attention"),
               actual.to_json().at("attention"), path);
}

void train_on(TrainingRun& run, nn::ModelConfig& config, nn::LoadedModel loaded) {
  run.inputs["model"] = loaded.hash();
  config.copy_sizes(loaded.config);
  // In place: a schema may be bound to `config`.
  data::Schema theirs, ours;
  loaded.config.describe_attention(theirs);
  config.describe_attention(ours);
  ours.set_all(theirs.to_json());
  run.model = loaded.model;
  run.store = std::move(loaded.store);
}

void clear_other_tokens(TrainingRun& run, const std::string& model) {
  const bool same_tokenizer =
      nn::is_model_path(model) && nn::is_tokenizer_of(*run.tokenizer, nn::resolve_model(model));
  if (!same_tokenizer) run.config.token_settings = {};
}

void claim_directory(TrainingRun& run, const RunOptions& options, const RunHost& host) {
  if (options.dry_run || !host.is_first()) return;
  const std::string& out = options.out;
  const bool exists = fs::exists(out);
  check(!exists || fs::is_directory(out), out, ": not a directory");
  if (exists && !run.lock) {
    run.lock = std::make_unique<data::DirectoryLock>(out, "is working on this run");
  }
  const bool has_run = exists && !data::list_checkpoints(out).empty();
  if (!has_run) data::refuse_occupied(out, {data::Holding::run});
  check(options.resume || !has_run || run.trainer.first_step > 0, out,
        ": already contains a run; add --resume or give another directory");
  check(!options.resume || has_run, out,
        ": contains no checkpoint to resume from; start without --resume");
}

data::Json stored_configuration(const std::string& run_dir) {
  if (!fs::is_directory(run_dir)) return nullptr;
  for (const data::Checkpoint& checkpoint : data::list_checkpoints(run_dir)) {
    const data::Path file = checkpoint.path / "trainer.json";
    if (!fs::exists(file)) continue;
    const data::Json state = parse_json_or_discard(data::read_file(file));
    const bool has = state.is_object() && state.contains("configuration");
    if (has && state["configuration"].is_object()) return state["configuration"];
  }
  return nullptr;
}

}  // namespace brine::distill
