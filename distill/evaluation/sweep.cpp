// One model under a grid of kept keys and query skipping: perplexity, time, memory, mask recall.
#include "distill/evaluation/sweep.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "distill/evaluation/keys_read.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/evaluation/tasks/task_report.h"
#include "tensor/device/allocator.h"

namespace brine::distill {
namespace {

// The teacher, from the first recall on, and the bytes that are alive without it.
struct SweepTeacher {
  std::string path;  // empty: none
  std::unique_ptr<RecallObserver> recall = {};
  int64_t live_without = 0;
};

// In a separate pass: the teacher's time and memory do not count for the model.
double recall_of(const nn::LoadedModel& m, const WindowSource& windows, EvaluateCall call,
                 SweepTeacher& teacher) {
  if (!teacher.recall) {
    teacher.live_without = allocator_stats().live;
    teacher.recall = RecallObserver::make(teacher.path, m, {});
  }
  teacher.recall->restart(call.options.k);
  call.observer = teacher.recall.get();
  call.before_batch = [&](const Batch& batch) { teacher.recall->begin(batch); };
  call.measures = {teacher.recall.get()};
  evaluate(*m.model, windows, call);
  return teacher.recall->rows().back().mean[recall::kMask];
}

SweepCell measure(const nn::LoadedModel& m, const WindowSource& windows, const EvaluateCall& call,
                  SweepTeacher& teacher) {
  const int64_t of_teacher = teacher.recall ? allocator_stats().live - teacher.live_without : 0;
  EvaluateCall warm = call;  // fills caches before timing starts
  warm.max_windows = std::min(call.batch_size, windows.size());
  warm.ranks = nullptr;
  evaluate(*m.model, windows, warm);
  SweepCell cell{.k = call.options.k, .query_skip = call.options.query_skip};
  cell.keys_read = keys_read(*m.model, windows.in_order(0, 1).ids, call.options);
  reset_peak();
  const auto start = std::chrono::steady_clock::now();
  cell.perplexity = evaluate(*m.model, windows, call).value();
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  const int64_t count =
      call.max_windows ? std::min(call.max_windows, windows.size()) : windows.size();
  cell.ms = time.count() / double(count);
  cell.bytes = double(allocator_stats().peak_live - of_teacher);
  if (!teacher.path.empty()) cell.recall = recall_of(m, windows, call, teacher);
  return cell;
}

}  // namespace

void sweep(const nn::LoadedModel& model, const WindowSource& windows, const SweepRequest& request,
           const std::function<void(const SweepCell&)>& measured) {
  check(model.model->attention_traits().sparse, "sweep: attention '", model.config.attention,
        "' keeps every key");
  std::vector<int64_t> k = request.k;
  if (k.empty()) k = {kept_keys_of(model.config, 0).value()};
  SweepTeacher teacher{.path = request.teacher};
  for (int64_t keys : k) {
    for (int64_t skip : request.query_skip) {
      measured(measure(model, windows,
                       {.batch_size = request.batch_size,
                        .max_windows = request.max_windows,
                        .options = {.k = keys, .query_skip = skip},
                        .ranks = request.ranks},
                       teacher));
    }
  }
}

}  // namespace brine::distill
