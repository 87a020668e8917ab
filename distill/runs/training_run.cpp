// The parts of a training run: its text, its model and its directory; the memory of a step.
#include "distill/runs/training_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/checkpoint/checkpoint.h"
#include "data/io/file_io.h"
#include "data/io/human.h"
#include "data/io/json.h"
#include "distill/evaluation/recall_observer.h"
#include "tensor/device/allocator.h"

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
    std::string pointer = "/" + key;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    const data::Json::json_pointer at(pointer);
    if (!given.contains(at)) continue;
    const bool has = theirs.contains(at);
    // The configuration that a run has written names them too.
    if (has && theirs.at(at) == given.at(at)) continue;
    throw Error(join(section, ".", key, " cannot be set, ", path, " has its own; given ",
                     json_text(given.at(at)), ", found ",
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
  run.config = config;
  run.model = loaded.model;
  run.store = std::move(loaded.store);
}

void clear_other_tokens(TrainingRun& run, const std::string& model) {
  const bool same_tokenizer =
      nn::is_model_path(model) && nn::is_tokenizer_of(*run.tokenizer, nn::resolve_model(model));
  if (!same_tokenizer) run.config.token_settings = {};
}

void claim_directory(TrainingRun& run, const RunOptions& options, const RunHost& host) {
  if ((options.dry_run && !options.resume) || !host.is_first()) return;
  const std::string& out = options.out;
  const bool exists = fs::exists(out);
  check(!exists || fs::is_directory(out), out, ": not a directory");
  if (exists && !run.lock && !options.dry_run) {
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

namespace {

// A rough number of bytes for the activations of a micro-batch.
double rough_memory(const TrainingRun& run) {
  const nn::ModelShape shape = run.config.shape();
  const double T = double(run.train->window()), rows = double(run.trainer.batch_size) * T;
  const double layer = 16.0 * double(shape.hidden_size) + double(shape.heads) * T;
  return 4 * rows * (double(shape.layers) * layer + 3.0 * double(shape.vocab_size));
}

constexpr int64_t kMaxSamples = 4096;  // of larger batches these tell the lengths

// Some samples of a batch, with its longest one: a teacher from a dump has no padding beyond it.
Batch part_of(const Batch& batch, int64_t count) {
  const int64_t B = batch.ids.dim(0);
  const int64_t* lengths = nullptr;
  int64_t first = 0;
  if (batch.lengths.defined()) {
    lengths = batch.lengths.data<int64_t>();
    first = std::min<int64_t>(std::max_element(lengths, lengths + B) - lengths, B - count);
  }
  auto cut = [&](const Tensor& t) { return t.defined() ? t.slice(0, first, count).clone() : t; };
  Batch out{.ids = cut(batch.ids),
            .lengths = cut(batch.lengths),
            .windows = {batch.windows.begin() + first, batch.windows.begin() + first + count},
            .tokens = count * batch.ids.dim(1),
            .type_ids = cut(batch.type_ids),
            .classes = cut(batch.classes),
            .scores = cut(batch.scores)};
  if (lengths) out.tokens = std::accumulate(lengths + first, lengths + first + count, int64_t(0));
  return out;
}

}  // namespace

RunBatches batches_of(const TrainingRun& run) {
  constexpr int64_t kLooked = 4096;  // a pool of a large task's texts is drawn in milliseconds
  const std::unique_ptr<BatchSource> source = run.train->clone();
  const int64_t B = std::min(run.trainer.batch_size, kMaxSamples);
  const int64_t count = std::min(kLooked, run.trainer.steps * run.trainer.accumulate);
  std::vector<int64_t> lengths;
  for (int64_t n = 0; n < count; ++n) lengths.push_back(source->row_tokens(n, B));
  const double mean = double(std::accumulate(lengths.begin(), lengths.end(), int64_t(0))) /
                      double(std::max<int64_t>(count, 1));
  auto nearer = [mean](int64_t a, int64_t b) {
    return std::abs(double(a) - mean) < std::abs(double(b) - mean);
  };
  RunBatches out;
  if (lengths.empty()) return out;
  const auto longest = std::max_element(lengths.begin(), lengths.end());
  out.longest = longest - lengths.begin();
  out.usual = std::min_element(lengths.begin(), lengths.end(), nearer) - lengths.begin();
  out.differ = *std::min_element(lengths.begin(), lengths.end()) < *longest;
  return out;
}

double step_memory(TrainingRun& run, uint64_t seed) {
  std::unique_ptr<Objective> losses;
  if (!run.objective)
    losses = std::make_unique<Objective>(*run.model, run.teacher.get(), run.losses);
  StepObjective& objective = run.objective ? *run.objective : *losses;
  const int64_t samples = run.trainer.batch_size;
  const int64_t number = batches_of(run).longest;
  const std::unique_ptr<BatchSource> source = run.train->clone();
  Batch longest = source->batch(number, std::min<int64_t>(samples, 2));
  if (longest.lengths.defined()) longest = source->batch(number, std::min(samples, kMaxSamples));
  const int64_t before = allocator_stats().live;
  double peak[2];
  for (int64_t count : {1, 2}) {
    RandomStream random{.seed = seed, .stream = 2};
    const Batch batch = part_of(longest, std::min(count, samples));
    reset_peak();
    LossTerms terms;
    read_terms(
        {objective.accumulate(batch, {.random = &random, .recompute = run.trainer.recompute})}, {},
        terms);
    peak[count - 1] = double(allocator_stats().peak_live - before);
  }
  run.store->zero_gradients();
  const double one = std::max(peak[1] - peak[0], 0.0);
  return peak[0] + one * double(samples - 1) + 8.0 * double(run.store->size());
}

std::optional<double> check_memory(TrainingRun& run, uint64_t seed, double available) {
  constexpr int64_t kCheap = 8;  // samples, of which three are a small part of a step
  const int64_t samples = run.trainer.batch_size;
  if (samples <= 2 || (samples < kCheap && rough_memory(run) < available / 4)) return {};
  const double wanted = step_memory(run, seed);
  check(wanted <= available, "a step of batch_size ", run.trainer.batch_size, " needs about ",
        human_bytes(wanted), " of memory, the machine has ", human_bytes(available),
        "; give a smaller --batch-size (with --accumulate), --recompute, or --force to start "
        "nevertheless");
  return wanted;
}

}  // namespace brine::distill
