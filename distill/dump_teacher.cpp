// The teacher from a dump.
#include "distill/dump_teacher.h"

#include "distill/task_source.h"

namespace brine::distill {
namespace {

// What was read from a file, where the student computes.
Tensor near(const Tensor& t) { return t.defined() ? t.to(default_device()) : t; }

}  // namespace

DumpTeacher::DumpTeacher(const std::string& dir, const Expected& expected)
    : reader_(dir), columns_(expected.columns) {
  const data::DumpSpec& spec = reader_.spec();
  data::check_dump_source(spec, dir, expected.source);
  bool of_task = expected.window == 0;
  check(spec.ragged == of_task, dir, ": is of ", spec.ragged ? "the texts of a task" : "windows",
        ", this run is of ", of_task ? "the texts of a task" : "windows");
  check(of_task || spec.tokens == expected.window, dir, ": its samples have ", spec.tokens,
        " tokens, this run's windows have ", expected.window, " (sequence_length)");
  check(reader_.has(data::DumpPart::windows), dir,
        ": stores no numbers of windows or texts, so its samples cannot be found");
  auto kind = [](bool causal) { return causal ? "causal" : "bidirectional"; };
  check(spec.causal == expected.causal, dir, ": is of a ", kind(spec.causal),
        " teacher, the student is ", kind(expected.causal));
  for (size_t i = 0; i < spec.windows.size(); ++i) sample_of_[spec.windows[i]] = int64_t(i);
}

void DumpTeacher::require(const TeacherNeeds& needs) {
  auto want = [this](bool needed, data::DumpPart part, const char* losses) {
    check(!needed || reader_.has(part), reader_.dir().string(), ": holds no ", data::name_of(part),
          ", which ", losses, " with a weight need");
  };
  const bool pooled = is_pooled();
  int64_t K = reader_.spec().columns;
  check(!pooled || !needs.attention, reader_.dir().string(), ": its attention is pooled into ", K,
        " columns, of which the loss prob cannot be made; set losses.prob to 0");
  check(!pooled || !needs.columns || !columns_ || columns_ == K, reader_.dir().string(),
        ": its attention is pooled into ", K, " columns, the student has ", columns_,
        " (attention.columns)");
  want((needs.columns || needs.attention) && !pooled, data::DumpPart::attention,
       "the losses approx and prob");
  want(needs.context, data::DumpPart::context, "the loss context");
  want(needs.output, data::DumpPart::output, "the loss kd");
  bool classes = reader_.has(data::DumpPart::classes);
  if (!classes) want(needs.logits, data::DumpPart::logits, "the loss kd_task");
  wants_ = {.attention = (needs.columns || needs.attention) && !pooled,
            .pooled = needs.columns && pooled,
            .context = needs.context,
            .output = needs.output,
            .logits = needs.logits && !classes,
            .classes = needs.logits && classes,
            .tokens_step = TaskSource::kLengthStep};
}

std::vector<int64_t> DumpTeacher::samples_of(const std::vector<int64_t>& windows) const {
  std::vector<int64_t> out;
  for (int64_t w : windows) {
    auto it = sample_of_.find(w);
    check(it != sample_of_.end(), reader_.dir().string(), ": holds no window ", w);
    out.push_back(it->second);
  }
  return out;
}

void DumpTeacher::plan(BatchOrder order, int64_t first) {
  prefetch_ = std::make_unique<data::DumpPrefetch>(
      reader_, [this, order](int64_t n) { return samples_of(order(n)); }, wants_, first);
}

void DumpTeacher::begin(const Batch& batch) {
  std::vector<int64_t> samples = samples_of(batch.windows);
  if (prefetch_) {
    std::optional<data::DumpBatch> next = prefetch_->next();
    check(next && next->samples == samples, reader_.dir().string(),
          ": was read ahead in another order than the run asks for");
    batch_ = std::move(*next);
  } else {
    batch_ = reader_.read(samples, wants_);
  }
}

TeacherLayer DumpTeacher::layer(int64_t i) {
  const data::DumpLayer& l = batch_.layers.at(size_t(i));
  return {.attention = {.map = near(l.attention), .q = near(l.query), .k = near(l.key)},
          .pooled = {.tau = near(l.pooled.tau),
                     .t_log_t = near(l.pooled.t_log_t),
                     .t_square = near(l.pooled.t_square)},
          .context = near(l.context),
          .output = near(l.output)};
}

Tensor DumpTeacher::class_logits() {
  check(batch_.classes.defined(), reader_.dir().string(), ": holds no logits of classes");
  return near(batch_.classes);
}

TopLogits DumpTeacher::logits() {
  auto rows = [](const Tensor& t) { return t.defined() ? near(t.view({-1, t.dim(-1)})) : t; };
  return {.values = rows(batch_.logits),
          .ids = rows(batch_.logit_ids),
          .lse = near(batch_.lse.view({-1}))};
}

}  // namespace brine::distill
