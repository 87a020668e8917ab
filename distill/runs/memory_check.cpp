// Whether a training run fits into the machine's memory, before it starts.
#include "distill/runs/memory_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/io/human.h"
#include "tensor/device/allocator.h"

namespace brine::distill {
namespace {

// A rough number of bytes for the activations of a micro-batch.
double rough_memory(const TrainingRun& run) {
  const nn::ModelShape shape = run.config.shape();
  const double T = double(run.train->window()), rows = double(run.trainer.batch_size) * T;
  const double layer = 16.0 * double(shape.hidden_size) + double(shape.heads) * T;
  return 4 * rows * (double(shape.layers) * layer + 3.0 * double(shape.vocab_size));
}

constexpr int64_t kMostSamples = 4096;  // of larger batches these tell the lengths

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
  const int64_t B = std::min(run.trainer.batch_size, kMostSamples);
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
  const RunBatches all = batches_of(run);
  const int64_t drawn = std::min(samples, all.differ ? kMostSamples : 2);
  const Batch longest = run.train->clone()->batch(all.longest, drawn);
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
