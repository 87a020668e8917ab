// The training loop, its checkpoints and its log.
#include "distill/trainer.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>

#include "autograd/compute_type.h"
#include "data/io/json.h"
#include "distill/changed_settings.h"
#include "distill/ranks/exchange.h"
#include "nn/io/model_io.h"
#include "tensor/comm/shared_work.h"
#include "tensor/functions/transfer.h"

namespace brine::distill {
namespace {

// Moments are named after their parameters, so that a checkpoint does not depend on the layout of
// the flat buffers.
std::vector<NamedTensor> moments_of(const nn::ParameterStore& store, const nn::Adamw& optimizer) {
  const Tensor &first = optimizer.first_moment(), &second = optimizer.second_moment();
  std::vector<NamedTensor> out;
  for (const auto& e : store.entries()) {
    Shape shape = e.parameter->value.shape();
    out.push_back({"m." + e.path, first.slice(0, e.offset, e.size).view(shape)});
    out.push_back({"v." + e.path, second.slice(0, e.offset, e.size).view(shape)});
  }
  return out;
}

// The loss first, then its terms.
Values in_order(const LossTerms& terms) {
  Values out;
  if (auto it = terms.find("loss"); it != terms.end()) out.push_back(*it);
  for (const auto& term : terms) {
    if (term.first != "loss") out.push_back(term);
  }
  return out;
}

data::CheckpointFile text_file(const std::string& name, std::string text) {
  return {name, [text = std::move(text)](const data::ByteSink& sink) { sink(text); }};
}

// Where the random streams of slots begin; those below are of initial weights and of data.
constexpr uint64_t kSlotStreams = uint64_t(1) << 62;

constexpr const char* kMomentsFile = "optimizer.safetensors";

data::CheckpointFile tensor_file(const std::string& name, std::vector<NamedTensor> tensors) {
  return {name, [tensors = std::move(tensors)](const data::ByteSink& sink) {
            data::write_safetensors(sink, tensors);
          }};
}

}  // namespace

void TrainerConfig::describe(data::Schema& s) {
  s.field("max_seconds", max_seconds,
          "Seconds of training after which it stops (not reproducible); 0 = no limit",
          {.min = 0, .unset = "0.0"});
  s.field("accumulate", accumulate, "Micro-batches of a step", {.min = 1});
  s.field("loss_from", loss_from, "The task loss counts targets from this position on", {.min = 0});
  s.field("eval_windows", eval_windows, "Windows, or texts, of an evaluation; 0 = all", {.min = 0});
  s.field("save_every", save_every, "Steps between checkpoints; 0 = only at the end", {.min = 0});
  s.field("keep", keep, "Checkpoints to keep; 0 = all", {.min = 0});
  s.field("keep_moments", keep_moments,
          "Keep the optimizer's moments in a finished run's checkpoint: twice the trained bytes");
  s.section("optimizer", optimizer);
  s.section("schedule", schedule);
}

void check_configuration(const std::string& run_dir, data::Json before, data::Json now) {
  std::string list;
  for (const std::string& line : changed_settings(std::move(before), std::move(now)))
    list += "; " + line;
  if (!list.empty())
    throw ChangedConfiguration(run_dir + ": the configuration changed since" + list);
}

std::vector<data::CheckpointFile> checkpoint_files(TrainerParts& parts, const data::Json& state) {
  std::vector<data::CheckpointFile> files = {
      text_file("config.json", nn::config_text(parts.config, parts.tokenizer.get())),
      tensor_file("model.safetensors", nn::tensors_of(*parts.model)),
      text_file("trainer.json", json_text(state, 2) + "\n")};
  const std::string& generation = parts.config.token_settings.generation_config;
  if (!generation.empty()) files.push_back(text_file(nn::kGenerationConfig, generation));
  return files;
}

Trainer::Trainer(TrainerParts& parts, TrainerHost host)
    : parts_(parts),
      config_(parts.trainer),
      host_(std::move(host)),
      losses_(parts.objective
                  ? nullptr
                  : std::make_unique<Objective>(*parts.model, parts.teacher.get(), parts.losses)),
      objective_(parts.objective ? *parts.objective : *losses_),
      ranks_(host_.ranks ? *host_.ranks : alone_),
      optimizer_(*parts.store, config_.optimizer, parts.plan),
      slots_(slots_of(config_.accumulate, ranks_.rank(), ranks_.size())),
      step_(config_.first_step) {
  if (losses_ && parts.teacher && learns_mask(*parts.model) && parts.config.method().mask().k)
    recall_ = std::make_unique<RecallObserver>(parts.config);
  if (!host_.seconds) host_.seconds = steady_seconds;
  check(compute_type() != Dtype::f16,
        "train: gradients do not fit the range of f16; --compute bf16 has that of f32");
  check(config_.loss_from < parts_.train->window(), "train: loss_from ", config_.loss_from,
        " is beyond the window of ", parts_.train->window(), " tokens");
  if (ranks_.size() > config_.accumulate) {
    throw SharedError(join("train: ", ranks_.size(), " ranks for steps of ", config_.accumulate,
                           " micro-batch", config_.accumulate > 1 ? "es" : "",
                           "; start fewer, or give --accumulate ", ranks_.size(), " or more"));
  }
}

bool Trainer::finished() const {
  return done_steps() >= config_.steps || (max_seconds() > 0 && seconds_ >= max_seconds());
}

double Trainer::progress() const {
  double p = double(done_steps()) / double(config_.steps);
  return max_seconds() > 0 ? std::max(p, seconds_ / max_seconds()) : p;
}

LossTerms Trainer::train_step(RecallObserver* recall) {
  parts_.model->visit([this](nn::Module& m) {
    if (auto* attention = dynamic_cast<nn::Attention*>(&m)) attention->on_step(optimizer_.steps());
  });
  LossTerms terms;
  int64_t rows = 0;
  std::vector<double> shares;
  const std::vector<Batch> batches = read_batches(rows, shares);
  SlotSum sum(config_.accumulate, slots_);
  std::vector<PendingTerms> pending;
  pending.reserve(batches.size());
  auto count = [recall](int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher) {
    const bool has_maps = teacher.has("query") || teacher.has("attention");
    if (has_maps && tap.has("row_pointers")) recall->count(layer, tap, teacher);
  };
  decltype(StepObjective::Call::watch) watch;
  if (recall) {
    recall->restart(0);
    recall->begin(batches.front());
    watch = count;
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    RandomStream random = random_of(slots_.begin + int64_t(i));
    parts_.store->zero_gradients();
    pending.push_back(
        objective_.accumulate(batches[i], {.share = shares[i],
                                           .text_share = 1 / double(config_.accumulate),
                                           .random = &random,
                                           .recompute = config_.recompute,
                                           .loss_from = config_.loss_from,
                                           .watch = std::exchange(watch, {})}));
    sum.add(parts_.store->gradients());
  }
  std::vector<double> norms = sum_slots(sum, pending, terms);
  objective_.summarize(terms);
  tokens_ += rows;
  const double squares = std::accumulate(norms.begin(), norms.end(), 0.0);
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm)) throw NonFiniteLoss("gradient norm", norm);
  for (double& n : norms) n = std::sqrt(n);
  double rate = config_.schedule.factor(done_steps(), progress());
  optimizer_.step(rate, norms);
  terms["gradient_norm"] = norm;
  // With the base frozen the rate of what is trained.
  const double base = config_.optimizer.learning_rate;
  terms["rate"] = rate * (base > 0 ? base : config_.optimizer.attention_learning_rate);
  return terms;
}

RandomStream Trainer::random_of(int64_t slot) const {
  return {.seed = host_.seed, .stream = kSlotStreams + uint64_t(step_ * config_.accumulate + slot)};
}

// The batches of this rank's slots, and their shares in the tokens of all slots.
std::vector<Batch> Trainer::read_batches(int64_t& tokens, std::vector<double>& shares) {
  std::vector<Batch> batches;
  std::vector<int64_t> counts;
  for (int64_t i = slots_.begin; i < slots_.end; ++i) {
    batches.push_back(
        parts_.train->batch(done_steps() * config_.accumulate + i, config_.batch_size));
    counts.push_back(batches.back().tokens);
  }
  const std::vector<int64_t> all =
      gather_counts(ranks_, join("tokens of step ", step_ + 1), counts);
  tokens = std::accumulate(all.begin(), all.end(), int64_t(0));
  for (const int64_t count : counts) shares.push_back(double(count) / double(tokens));
  return batches;
}

std::vector<double> Trainer::sum_slots(SlotSum& sum, const std::vector<PendingTerms>& pending,
                                       LossTerms& terms) {
  // The only part of a step that waits for the device.
  if (ranks_.size() == 1) return read_terms(pending, optimizer_.part_squares(), terms);
  sum.over_ranks(ranks_, join("gradients of step ", step_ + 1), parts_.store->gradients());
  const std::string what = join("loss terms of step ", step_ + 1);
  std::vector<SlotTerms> slots;
  read_slots(pending, {}, slots);
  slots = gather_terms(ranks_, what, slots);
  add_slots(slots, terms);
  return items(optimizer_.part_squares());
}

std::string Trainer::stop_reason() {
  const std::string reason = host_.stop ? host_.stop() : "";
  if (ranks_.size() == 1) return reason;
  const std::vector<std::string> all = ranks_.gather(join("start of step ", step_ + 1), reason);
  for (size_t r = 0; r < all.size(); ++r) {
    if (!all[r].empty()) return join(all[r], " to rank ", r);
  }
  return "";
}

// Schedule and end follow the clock of the first rank.
void Trainer::share_time() {
  if (ranks_.size() > 1 && max_seconds() > 0)
    ranks_.broadcast(join("time after step ", step_ + 1), &seconds_, sizeof(seconds_));
}

void Trainer::load_moments(const data::Path& path) {
  const data::Safetensors file(path);
  for (auto& [name, view] : moments_of(*parts_.store, optimizer_)) {
    Tensor saved = file.tensor(name);
    check(saved.shape() == view.shape() && saved.dtype() == view.dtype(), file.path().string(),
          ": ", name, " is ", saved.dtype(), " ", saved.shape(), ", wanted ", view.dtype(), " ",
          view.shape());
    assign(view, saved);
  }
}

void Trainer::wait_for_first(const std::string& what) {
  if (ranks_.size() > 1) ranks_.barrier(join(what, " at step ", step_), kWorkTimeoutFactor);
}

// A dump is read ahead in the order in which this rank asks for its batches.
void Trainer::plan_ahead(int64_t step) {
  if (!parts_.teacher) return;
  std::shared_ptr<BatchSource> order = parts_.train->clone();  // a separate copy for the reading
                                                               // thread
  parts_.teacher->plan(
      [order, B = config_.batch_size, G = config_.accumulate, slots = slots_](int64_t n) {
        return order->windows_of(n / slots.size() * G + slots.begin + n % slots.size(), B);
      },
      step * slots_.size());
}

TrainOutcome Trainer::run(RunLog* log) {
  std::string why;  // the run is asked to stop
  auto stopped = [&] { return !(why = stop_reason()).empty(); };
  plan_ahead(done_steps());
  TrainOutcome out;
  out.steps = step_;
  double next_recall = 0;  // a count takes at most a twentieth of the time
  while (!finished() && !stopped()) {
    double start = host_.seconds();
    const bool last = done_steps() + 1 == config_.steps;
    RecallObserver* const recall = log && (start >= next_recall || last) ? recall_.get() : nullptr;
    int64_t before = tokens_;
    try {
      out.last = train_step(recall);
    } catch (const NonFiniteLoss& e) {
      throw SharedError(join("step ", step_ + 1, ": ", e.what()));
    }
    const double seconds = host_.seconds() - start;
    seconds_ += seconds;
    if (recall) next_recall = start + std::max(10.0, 20 * seconds);
    share_time();
    ++step_;
    if (log)
      log->step({.step = step_,
                 .total = max_seconds() > 0 ? 0 : config_.first_step + config_.steps,
                 .tokens = tokens_ - before,
                 .done = max_seconds() > 0 ? progress() : 0,
                 .values = in_order(out.last),
                 .mask = recall ? mask_values() : Values()});
    if (config_.eval_every && step_ % config_.eval_every == 0 && !finished()) evaluate_now(log);
    if (config_.save_every && step_ % config_.save_every == 0) save(log);
  }
  out.interrupted = !why.empty() && !finished();
  if (log && out.interrupted) log->event(join(why, ": saving at step ", step_));
  if (saved_step_ != step_) save(log);
  if (!out.interrupted) evaluate_now(log);
  out.steps = step_;
  out.tokens = tokens_;
  out.seconds = seconds_;
  return out;
}

void Trainer::evaluate_now(RunLog* log) {
  if (parts_.evaluation && log) log->evaluation(step_, parts_.evaluation());
  if (parts_.valid && log) {
    Perplexity p = evaluate(*parts_.model, *parts_.valid,
                            {.batch_size = config_.batch_size,
                             .max_windows = config_.eval_windows,
                             .loss_from = config_.loss_from});
    Values values = {{"valid_perplexity", p.value()}, {"valid_nll", p.nll}};
    const MaskHealth health = mask_health_now();
    for (const auto& value : log_values(health)) values.push_back(value);
    log->evaluation(step_, values);
    if (finished() && !degenerate_warning(health).empty()) log->event(degenerate_warning(health));
  }
  wait_for_first("evaluation");
}

Values Trainer::mask_values() const {
  const nn::MaskSettings mask = parts_.config.method().mask();
  const double kept = recall_->kept_share();
  if (kept == 0) return {};  // a mask of blocks, or a dump without the teacher's maps
  const MaskHealth health = mask_health(recall_->layers());
  Values out = {{"k", double(*mask.k)}};
  if (mask.columns) out.emplace_back("columns", double(*mask.columns));
  if (health.rows > 0) out.emplace_back("recall", health.recall);
  out.emplace_back("kept_share", kept);
  return out;
}

MaskHealth Trainer::mask_health_now() {
  if (!learns_mask(*parts_.model)) return {};
  return health_of_start(parts_.config, {}, [&](const EvaluateCall& call) {
    evaluate(*parts_.model, *parts_.valid, call);
  });
}

void Trainer::save(RunLog* log) {
  saved_step_ = step_;
  if (log) write_checkpoint(*log);
  wait_for_first("checkpoint");
}

void Trainer::write_checkpoint(RunLog& log) {
  data::Json state = {
      {"step", step_},       {"tokens", tokens_},
      {"seconds", seconds_}, {"optimizer_steps", optimizer_.steps()},
      {"seed", host_.seed},  {"configuration", parse_ordered_json(host_.configuration)}};
  if (config_.max_seconds) state["configuration"]["max_seconds"] = *config_.max_seconds;
  if (!parts_.stage.empty()) {
    state["stage"] = parts_.stage;
    state["first_step"] = config_.first_step;
  }
  std::vector<data::CheckpointFile> files = checkpoint_files(parts_, state);
  if (config_.keep_moments || !finished()) {
    std::vector<NamedTensor> moments = moments_of(*parts_.store, optimizer_);
    for (auto& [name, tensor] : moments) tensor = tensor.to(Device{});
    files.push_back(tensor_file(kMomentsFile, std::move(moments)));
  }
  try {
    data::save_checkpoint(host_.run_dir, step_, std::move(files), int(config_.keep));
  } catch (const data::DurabilityUncertain& e) {
    log.event(e.what());  // the checkpoint is complete; only a power failure could undo it
  }
}

std::vector<std::string> Trainer::resume() {
  data::LatestCheckpoint latest = data::latest_good_checkpoint(host_.run_dir);
  check(latest.good.has_value(), host_.run_dir, ": no intact checkpoint to resume from",
        latest.why());
  data::Path dir = latest.good->path;
  std::string file = (dir / "trainer.json").string();
  data::Json state = parse_ordered_json(data::read_file(file), file);
  data::Json before = state.at("configuration"), now = parse_ordered_json(host_.configuration);
  const bool limited = before.contains("max_seconds") && before["max_seconds"].is_number();
  if (limited && !config_.max_seconds) config_.max_seconds = before["max_seconds"].get<double>();
  check_configuration(host_.run_dir, std::move(before), std::move(now));
  const data::Safetensors weights(dir / "model.safetensors");
  load_weights(weights, *parts_.model, *parts_.store);
  optimizer_.set_steps(state.at("optimizer_steps"));
  step_ = saved_step_ = state.at("step");
  tokens_ = state.at("tokens");
  seconds_ = state.at("seconds");
  const data::Path moments = dir / kMomentsFile;
  if (std::filesystem::exists(moments)) {
    load_moments(moments);
  } else {
    check(finished(), dir.string(), ": has no ", kMomentsFile,
          " (keep_moments was off), so the run cannot go on");
  }
  return latest.skipped;
}

void load_weights(const data::Safetensors& file, nn::Model& model, const nn::ParameterStore& store,
                  const std::function<bool(const std::string&)>& may_be_missing) {
  std::unordered_map<std::string, Tensor> constants;
  for (const auto& p : model.named_parameters()) constants[p.path] = p.parameter->value.detach();
  for (const auto& e : store.entries()) constants.erase(e.path);
  std::vector<NamedTensor> tensors;
  for (const auto& e : file.entries()) {
    Tensor saved = file.tensor(e.name);
    const auto constant = constants.find(e.name);
    if (constant == constants.end()) {
      tensors.push_back({e.name, saved});
      continue;
    }
    check(bits_equal(constant->second.to(Device{}).contiguous(), saved), file.path().string(), ": ",
          e.name, " differs from the teacher's, which this run does not train");
  }
  nn::load_state(model, tensors, file.path().string(), [&](const std::string& name) {
    return constants.count(name) > 0 || (may_be_missing && may_be_missing(name));
  });
}

}  // namespace brine::distill
