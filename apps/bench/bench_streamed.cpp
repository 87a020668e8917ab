// A distillation step whose attention losses are streamed by tiles of rows: time and memory over
// the length, compared with the same step with T x T maps.
#include <cmath>

#include "apps/bench/bench.h"
#include "apps/bench/parts/map_losses.h"
#include "apps/bench/parts/step.h"
#include "apps/cli/terminal.h"
#include "nn/optim/optimizer.h"
#include "tensor/device/allocator.h"

namespace brine::bench {
namespace {

// The models with an optimizer, and one window of T tokens.
struct Setting {
  explicit Setting(int64_t T)
      : student(T),
        batch(random_batch(1, T, student.config.shape().vocab_size)),
        adamw(*student.store, {}) {}

  Student student;
  distill::Batch batch;
  nn::Adamw adamw;
};

std::string shape_of(int64_t T) { return join("[1, ", T, ", 256] x 4"); }

// Time, peak memory and its ratio by token to that at the shortest length, if that was measured.
BenchRow bench_length(int64_t T, int64_t shortest, double& bytes_at_shortest) {
  trim();  // memory of other lengths does not count
  Setting s(T);
  distill::OnlineTeacher teacher(s.student.teacher);
  distill::Objective objective(*s.student.model, &teacher, {});
  BenchRow row = step_row("streamed losses", shape_of(T), T, [&] {
    training_step(objective, s.batch, {}, *s.student.store, s.adamw);
  });
  const double bytes = double(row.peak) / double(T);
  if (T == shortest) bytes_at_shortest = bytes;
  std::vector<std::pair<std::string, double>> notes = {{"bytes_per_token", bytes}};
  if (bytes_at_shortest > 0) notes.emplace_back("over_shortest", bytes / bytes_at_shortest);
  notes.emplace_back("held_over_peak", double(allocator_stats().peak_reserved) / double(row.peak));
  row.notes.insert(row.notes.begin(), notes.begin(), notes.end());
  return row;
}

double largest_difference(const Tensor& a, const Tensor& b, double& scale) {
  double most = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data<float>()[i], y = b.data<float>()[i];
    most = std::max(most, std::fabs(x - y));
    scale = std::max(scale, std::fabs(y));
  }
  return most;
}

// The most live bytes while f runs, including those that were live before.
int64_t peak_of(const std::function<void()>& f) {
  reset_peak();
  f();
  return allocator_stats().peak_live;
}

// Both steps alternately, after a check that they compute the same.
void bench_maps(RowSink& rows, int64_t T) {
  Setting s(T);
  distill::OnlineTeacher teacher(s.student.teacher);
  distill::Objective objective(*s.student.model, &teacher, {});
  nn::ModelConfig dense = s.student.config;
  dense.attention = "dense";
  auto with_maps = nn::make_model(dense, 1);  // the teacher's weights: the same seed
  MapObjective maps(*s.student.model, *with_maps);
  distill::LossTerms of_tiles, of_maps;
  s.student.store->zero_gradients();
  objective.run(s.batch, {}, of_tiles);
  const Tensor gradients = s.student.store->gradients().clone();
  s.student.store->zero_gradients();
  maps.run(s.batch, of_maps);
  for (const auto& [name, value] : of_maps) {
    const double other = of_tiles.at(name);
    check(std::fabs(value - other) <= 1e-5 * std::max(1e-2, std::fabs(value)),
          "bench streamed: the loss ", name, " is ", other, " by tiles and ", value, " by maps");
  }
  double scale = 0;
  const double off = largest_difference(gradients, s.student.store->gradients(), scale);
  check(off <= 1e-5 * scale, "bench streamed: gradients by tiles and maps differ by ", off, " of ",
        scale);

  auto tiles_step = [&] { training_step(objective, s.batch, {}, *s.student.store, s.adamw); };
  auto maps_step = [&] {
    s.student.store->zero_gradients();
    distill::LossTerms terms;
    maps.run(s.batch, terms);
    s.adamw.step(1, s.adamw.gradient_norm());
  };
  const int64_t tiles_peak = peak_of(tiles_step), maps_peak = peak_of(maps_step);
  const auto medians = median_times(tiles_step, maps_step, 6);
  const double tiles_ms = medians.first, maps_ms = medians.second;
  auto row = [&](const char* name, double ms, int64_t peak) {
    return BenchRow{.name = name,
                    .shape = shape_of(T),
                    .ms = ms,
                    .rate = double(T) / ms * 1e3,
                    .unit = "tokens/s",
                    .ratio = ms / maps_ms,
                    .peak = peak,
                    .notes = {{"memory_over_maps", double(peak) / double(maps_peak)},
                              {"largest_gradient_difference", off / scale}}};
  };
  rows.add(row("streamed losses, in turns", tiles_ms, tiles_peak));
  rows.add(row("T x T losses", maps_ms, maps_peak));
}

}  // namespace

void bench_streamed(RowSink& rows) {
  if (default_device().is_cuda()) {
    log_info("bench streamed: the losses on T x T maps run on the CPU only, left out");
  } else {
    const int64_t T = sized(2048, 80);
    rows.attempt("T x T losses", shape_of(T), [&] { bench_maps(rows, T); });
  }
  const int64_t shortest = sized(1024, 32);
  double bytes_at_shortest = 0;
  for (int64_t full : {1024, 2048, 4096, 8192}) {
    const int64_t T = sized(full, full / 32);
    rows.attempt("streamed losses", shape_of(T),
                 [&] { rows.add(bench_length(T, shortest, bytes_at_shortest)); });
  }
}

}  // namespace brine::bench
