// Training from start to end: directory, resumption, log and summary.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "data/io/human.h"
#include "data/io/json.h"
#include "distill/log/device_memory.h"
#include "distill/losses/loss_table.h"
#include "distill/ranks/exchange.h"
#include "distill/runs/training_run.h"
#include "nn/models/model_costs.h"
#include "tensor/comm/shared_work.h"
#include "tensor/device/allocator.h"
#include "tensor/device/machine_memory.h"

namespace brine::distill {
namespace {

// Elements of the parameters that are trained.
int64_t trained_count(const TrainingRun& run) {
  int64_t sum = 0;
  for (const auto& e : run.store->entries()) sum += e.size;
  return sum;
}

std::string row(const std::string& name, const std::string& value) {
  return name + std::string(std::max<size_t>(name.size() + 1, 18) - name.size(), ' ') + value;
}

// The method of the student with the settings that decide what it keeps.
std::string attention_text(const nn::ModelConfig& config) {
  data::Schema keys = data::schema_of(config.method());
  std::string out = config.attention;
  const char* scored = keys.find("candidates") ? "candidates" : "columns";
  for (const char* key : {"preset", "k", "block", scored})
    if (const data::Schema::Field* field = keys.find(key); field && !field->empty())
      out += join(", ", key, " ", field->toml());
  return out;
}

// What a run will do, as lines.
std::vector<std::string> plan_lines(TrainingRun& run) {
  const TrainerConfig& c = run.trainer;
  std::vector<std::string> out = {row("attention", attention_text(run.config))};
  if (!run.store) return out;
  std::string weights;
  for (const Loss& loss : losses())
    weights += join(weights.empty() ? "" : ", ", loss.name, " ", run.losses[loss.name]);
  const int64_t T = run.train->window(), windows = c.steps * c.batch_size * c.accumulate;
  out.push_back(row("losses", weights));
  out.push_back(row("steps", join(c.steps, " of ", c.batch_size, " x ", c.accumulate, " windows ",
                                  run.windows.empty() ? join("of ", T, " tokens") : run.windows)));
  out.push_back(row("rates", join("base ", c.optimizer.learning_rate, ", attention ",
                                  c.optimizer.attention_learning_rate, ", ",
                                  data::name_of(c.schedule.schedule, nn::kDecayNames), " after ",
                                  c.schedule.warmup_steps, " steps of warm-up")));
  std::string work = join("at most ", human_count(double(windows) * double(T)), " tokens");
  if (run.tokenizer) {  // a whole model
    nn::MetaModel meta(run.config);
    const double passes = 3 * double(windows);  // backward costs about two
    work +=
        join(", about ", human_count(passes * nn::total(nn::forward_costs(*meta.model, T)).macs),
             " multiply-adds of the student");
  }
  out.push_back(row("work", work));
  return out;
}

// With the free blocks that the allocator caches.
double held(double bytes) { return double(max_reserved(int64_t(bytes))); }

// Of a run that starts: what it takes at peak, if that was measured, and its fixed part.
std::string memory_text(const TrainingRun& run, std::optional<double> step) {
  const double fixed =
      4.0 * double(nn::parameter_count(*run.model)) + 12.0 * double(trained_count(run));
  const std::string parts = human_bytes(fixed) + " of weights, gradients and moments";
  if (!step) return parts + "; --dry-run measures a step";
  const double peak = double(allocator_stats().live) + *step;
  std::string out = join("about ", human_bytes(peak), " at peak");
  if (batches_of(run).differ)
    out += join(", ", human_bytes(held(peak)), " held, as batches differ in length");
  return out + "; " + parts;
}

// Memory and the time of a step, from steps that are discarded: one of the longest batch, which has
// the most memory and fills caches, then one of a usual batch, which has the time. Of batches of
// one length the first one counts if it is longer than ten seconds.
std::string measure_step(TrainingRun& run, uint64_t seed) {
  const TrainerConfig& config = run.trainer;
  const int64_t parameters = nn::parameter_count(*run.model), trained = trained_count(run);
  std::unique_ptr<Objective> losses;
  if (!run.objective)
    losses = std::make_unique<Objective>(*run.model, run.teacher.get(), run.losses);
  StepObjective& objective = run.objective ? *run.objective : *losses;
  RandomStream random{.seed = seed, .stream = 2};
  // The largest number of bytes that are allocated in each part.
  std::vector<std::pair<std::string, int64_t>> parts;
  auto ended = [&parts](const std::string& name) {
    const int64_t peak = allocator_stats().peak_live;
    auto at = std::find_if(parts.begin(), parts.end(), [&](auto& p) { return p.first == name; });
    if (at == parts.end()) at = parts.insert(parts.end(), {name, 0});
    at->second = std::max(at->second, peak);
    reset_peak();
  };
  const RunBatches batches = batches_of(run);
  reset_peak();
  double start = steady_seconds();
  auto seconds = [&start] { return steady_seconds() - start; };
  for (const int64_t number : {batches.longest, batches.usual}) {
    if (!parts.empty() && !batches.differ && seconds() > 10) break;
    start = steady_seconds();
    const Batch batch = run.train->batch(number, config.batch_size);
    LossTerms terms;
    read_terms({objective.accumulate(
                   batch, {.random = &random, .recompute = config.recompute, .ended = ended})},
               {}, terms);
  }
  const double step = seconds() * double(config.accumulate);
  double total = step * double(config.steps);
  const double limit = config.max_seconds.value_or(0);
  if (limit > 0) total = std::min(total, limit);
  double memory = double(allocator_stats().peak_live);
  for (const auto& [name, peak] : parts) memory = std::max(memory, double(peak));
  const double moments = 8.0 * double(trained);
  std::string out = run.subject + "\n";
  for (const std::string& line : plan_lines(run)) out += line + "\n";
  const double checkpoint = 4.0 * double(parameters) + 8.0 * double(trained);
  const int64_t tokens = config.batch_size * config.accumulate * run.train->window();
  std::vector<std::pair<std::string, std::string>> rows = {
      {"parameters", human_count(double(parameters))},
      {"memory at peak", human_bytes(memory + moments)}};
  for (const auto& [part, peak] : parts)
    rows.emplace_back("  " + part, human_bytes(double(peak) + moments));
  if (batches.differ)
    rows.emplace_back("  held at most",
                      human_bytes(held(memory + moments)) + ", as batches differ in length");
  rows.insert(rows.end(), {{"a checkpoint", human_bytes(checkpoint) + " on disk"},
                           {"tokens a step", std::to_string(tokens)},
                           {"a step", human_seconds(step)},
                           {"the run", human_seconds(total)}});
  for (const auto& [name, value] : rows) out += row(name, value) + "\n";
  if (!run.no_gain.empty()) out += row("time of attention", run.no_gain) + "\n";
  return out;
}

void make_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  check(!error, path, ": cannot be created: ", error.message());
}

// The settings of a run as it records them: without those that may change when it is resumed, or
// that have no effect.
std::string recorded(const TrainingRun& run, const RunHost& host) {
  data::Json configuration =
      parse_ordered_json(host.configuration ? host.configuration() : run.settings);
  if (!host.configuration) configuration["seed"] = host.seed;
  configuration.erase("out");  // a run directory may be moved
  if (configuration.value("compute", "") == "f32") configuration.erase("compute");
  for (const std::string& key : run.other_stage) configuration.erase(key);
  configuration["inputs"] = run.inputs;
  return json_text(configuration);
}

bool is_out_of_time(const Trainer& trainer, const TrainerConfig& config) {
  return trainer.finished() && trainer.step() - config.first_step < config.steps;
}

std::string time_limit_note(const Trainer& trainer, const TrainerConfig& config) {
  const int64_t done = trainer.step() - config.first_step;
  return join("the limit of ", human_seconds(trainer.max_seconds()),
              " (max_seconds) is reached after ", done, " of ", config.steps,
              " steps; --resume with a larger --max-seconds goes on, with 0 without limit");
}

void report_end(const TrainOutcome& done, const std::string& out, const Messages& messages) {
  messages.info(done.interrupted ? "interrupted after " : "done: ", done.steps, " steps, ",
                human_count(double(done.tokens)), " tokens in ", human_seconds(done.seconds), ", ",
                human_count(double(done.tokens) / std::max(done.seconds, 1e-9)), " tokens/s, ",
                peak_memory(), ", ", out);
}

// Throws unless all ranks run the same program with the same settings and inputs.
void compare_ranks(const TrainingRun& run, const RunHost& host) {
  if (!host.ranks) return;
  compare_texts(*host.ranks, "program", host.program);
  compare_settings(*host.ranks, "configuration", recorded(run, host));
}

// Bytes that this rank sent for a step, on average.
void report_traffic(const Communicator& ranks, int64_t steps, const Messages& messages) {
  if (ranks.size() == 1 || steps == 0) return;
  const Traffic& t = ranks.traffic();
  messages.info(ranks.size(), " ranks; rank 0 sent ", human_bytes(double(t.bytes) / double(steps)),
                " (", t.bytes, " bytes in all) and ", t.messages / steps, " messages a step");
}

// Continues the run in `out`; false when nothing is left to do.
bool resume(Trainer& trainer, const TrainingRun& run, const std::string& out,
            const Messages& messages) {
  for (const std::string& why : trainer.resume()) messages.warning("checkpoint skipped: ", why);
  const bool evaluated = (!run.valid && !run.evaluation) || has_evaluation(out, trainer.step());
  if (trainer.finished() && evaluated) {
    messages.info(
        out, ": ",
        is_out_of_time(trainer, run.trainer)
            ? time_limit_note(trainer, run.trainer)
            : join("the run is finished, ", trainer.step(), " steps; nothing left to do"));
    return false;
  }
  messages.info("resuming at step ", trainer.step());
  return true;
}

// Writes a student that is not trained: its checkpoint has step 1.
RunResult write_student(TrainingRun& run, const RunOptions& options, const RunHost& host) {
  RunResult result;
  if (options.dry_run) {
    if (host.is_first())
      result.dry_run = run.subject + "\n" + plan_lines(run)[0] + "\nnothing is trained\n";
    return result;
  }
  compare_ranks(run, host);
  const std::string& out = options.out;
  const data::Json configuration = parse_ordered_json(recorded(run, host));
  result.outcome.steps = options.resume ? 0 : 1;
  auto write = [&] {
    if (options.resume) {
      check_configuration(out, stored_configuration(out), configuration);
      host.messages.info(out, ": the student is finished; nothing left to do");
      return;
    }
    host.messages.info(run.subject, ", ", out);
    host.messages.info(plan_lines(run)[0]);
    make_directory(out);
    claim_directory(run, options, host);
    if (host.save_configuration) host.save_configuration(out);
    if (run.tokenizer) run.tokenizer->save(out);
    const data::Json state = {{"step", 1},
                              {"seed", host.seed},
                              {"configuration", configuration},
                              {"stage", run.stage},
                              {"first_step", 0}};
    data::save_checkpoint(out, 1, checkpoint_files(run, state), int(run.trainer.keep));
    std::ostream nowhere(nullptr);
    RunLog log(out, host.terminal ? *host.terminal : nowhere, {.progress = host.progress});
    log.event(run.subject);
    if (run.valid) {
      const Perplexity p = evaluate(*run.model, *run.valid,
                                    {.batch_size = run.trainer.batch_size,
                                     .max_windows = run.trainer.eval_windows,
                                     .loss_from = run.trainer.loss_from});
      log.evaluation(1, {{"valid_perplexity", p.value()}, {"valid_nll", p.nll}});
    }
    if (run.after) run.after();
  };
  SelfCommunicator alone;
  do_work_of_first(host.ranks ? *host.ranks : alone, "student", write);
  return result;
}

}  // namespace

RunResult train(TrainingRun& run, const RunOptions& options, const RunHost& host) {
  const std::string& out = options.out;
  if (options.dry_run && options.resume)
    check_configuration(out, stored_configuration(out), parse_ordered_json(recorded(run, host)));
  if (!run.store) return write_student(run, options, host);
  const int64_t parameters = nn::parameter_count(*run.model), trained = trained_count(run);
  RunResult result;
  if (!options.dry_run)  // which prints it with what it measured
    host.messages.info(run.subject, ", ", human_count(double(parameters)), " parameters",
                       trained < parameters ? ", trained " + human_count(double(trained)) : "");
  if (host.is_first() && !options.dry_run) {
    for (const std::string& line : plan_lines(run)) host.messages.info(line);
  }
  std::optional<double> step;
  if (!options.force && host.is_first() && default_device().is_cpu())
    step = check_memory(run, host.seed, available_memory());
  if (host.is_first() && !options.dry_run)
    host.messages.info(row("memory", memory_text(run, step)));
  if (options.dry_run) {
    if (run.tokenizer) warn_if_all_kept(run.config, 0, run.train->window(), host.messages);
    if (host.is_first()) result.dry_run = measure_step(run, host.seed);
    return result;
  }
  compare_ranks(run, host);
  if (host.ranks && host.ranks->size() > 1)
    host.messages.info(host.ranks->size(), " ranks by ", host.ranks->name());
  Trainer trainer(run, {.run_dir = out,
                        .configuration = recorded(run, host),
                        .seed = host.seed,
                        .stop = host.stop,
                        .ranks = host.ranks});  // refuses too many ranks
  if (host.is_first()) make_directory(out);
  claim_directory(run, options, host);
  set_anomaly_detection(options.anomaly);
  LogConfig log_config{.progress = host.progress};
  log_config.progress.every_steps = options.log_steps;
  if (options.resume) {
    const bool goes_on = resume(trainer, run, out, host.messages);
    // All ranks have read the directory when the first one begins to write there.
    if (host.ranks)
      compare_texts(*host.ranks, "checkpoint",
                    join("step ", trainer.step(), goes_on ? "" : ", finished"));
    result.out_of_time = !goes_on && is_out_of_time(trainer, run.trainer);
    if (!goes_on) return result;
    log_config.resume_step = trainer.step();
  } else if (host.is_first()) {
    if (host.save_configuration) host.save_configuration(out);
    if (run.tokenizer) run.tokenizer->save(out);
  }
  if (!options.resume && run.trainer.first_step > 0)
    log_config.resume_step = run.trainer.first_step;
  if (run.tokenizer) warn_if_all_kept(run.config, 0, run.train->window(), host.messages);
  std::ostream nowhere(nullptr);
  std::optional<RunLog> log;
  if (host.is_first()) log.emplace(out, host.terminal ? *host.terminal : nowhere, log_config);
  const int64_t first = trainer.step();
  result.outcome = trainer.run(log ? &*log : nullptr);
  result.interrupted = result.outcome.interrupted;
  if (run.after) run.after();
  report_end(result.outcome, out, host.messages);
  result.out_of_time = !result.interrupted && is_out_of_time(trainer, run.trainer);
  if (result.out_of_time) host.messages.info(time_limit_note(trainer, run.trainer));
  if (host.ranks) report_traffic(*host.ranks, trainer.step() - first, host.messages);
  return result;
}

}  // namespace brine::distill
