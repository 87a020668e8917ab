// Whether a training run fits into the machine's memory, before it starts.
#include "distill/runs/memory_check.h"

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

// A batch of `count` samples, the longest of the first ones.
Batch longest_batch(BatchSource& source, int64_t count) {
  constexpr int64_t kLooked = 64;
  Batch longest = source.batch(0, count);
  for (int64_t n = 1; n < kLooked && longest.ids.dim(1) < source.window(); ++n) {
    Batch other = source.batch(n, count);
    if (other.ids.dim(1) > longest.ids.dim(1)) longest = std::move(other);
  }
  return longest;
}

}  // namespace

double step_memory(TrainingRun& run, uint64_t seed) {
  std::unique_ptr<Objective> losses;
  if (!run.objective)
    losses = std::make_unique<Objective>(*run.model, run.teacher.get(), run.losses);
  StepObjective& objective = run.objective ? *run.objective : *losses;
  const std::unique_ptr<BatchSource> source = run.train->clone();
  const int64_t before = allocator_stats().live;
  double peak[2];
  for (int64_t count : {1, 2}) {
    RandomStream random{.seed = seed, .stream = 2};
    const Batch batch = longest_batch(*source, count);
    reset_peak();
    LossTerms terms;
    read_terms(
        {objective.accumulate(batch, {.random = &random, .recompute = run.trainer.recompute})}, {},
        terms);
    peak[count - 1] = double(allocator_stats().peak_live - before);
  }
  run.store->zero_gradients();
  const double one = std::max(peak[1] - peak[0], 0.0);
  return peak[0] + one * double(run.trainer.batch_size - 1) + 8.0 * double(run.store->size());
}

void check_memory(TrainingRun& run, uint64_t seed, double available) {
  if (run.trainer.batch_size <= 2 || rough_memory(run) < available / 4) return;
  const double wanted = step_memory(run, seed);
  check(wanted <= available, "a step of batch_size ", run.trainer.batch_size, " needs about ",
        human_bytes(wanted), " of memory, the machine has ", human_bytes(available),
        "; give a smaller --batch-size (with --accumulate), --recompute, or --force to start "
        "nevertheless");
}

}  // namespace brine::distill
