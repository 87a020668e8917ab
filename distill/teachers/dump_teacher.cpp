// The teacher from a dump.
#include "distill/teachers/dump_teacher.h"

#include "distill/batches/task_source.h"

namespace brine::distill {
namespace {

Tensor wide(const Tensor& t) { return t.defined() ? t.to(sum_type(t.dtype())) : t; }

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
  wants_ = {
      .attention = (needs.columns || needs.attention) && !pooled,
      .pooled = needs.columns && pooled,
      .context = needs.context,
      .output = needs.output,
      .logits = needs.logits && !classes,
      .classes = needs.logits && classes,
      .tokens_step = TaskSource::kLengthStep,
      // A device gets what lies in the files, half as long in f16, and widens it there; on the
      // CPU the reading thread does that beside the student's work. q and k stay as they are.
      .as_stored = default_device().is_cuda() ? data::DumpWants::AsStored::all
                                              : data::DumpWants::AsStored::queries_and_keys};
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

DumpTeacher::Arrived DumpTeacher::send(data::DumpBatch read) {
  Arrived out{std::move(read), {}};
  data::DumpBatch& b = out.batch;
  std::vector<Tensor*> tensors = {&b.logits, &b.logit_ids, &b.lse, &b.classes};
  for (data::DumpLayer& l : b.layers) {
    for (Tensor* t : {&l.attention, &l.query, &l.key, &l.pooled.tau, &l.pooled.t_log_t,
                      &l.pooled.t_square, &l.context, &l.output})
      tensors.push_back(t);
  }
  for (Tensor* t : tensors) *t = out.uploads.start(*t, default_device());
  return out;
}

void DumpTeacher::plan(BatchOrder order, int64_t first) {
  coming_.reset();
  const size_t ahead = default_device().is_cuda() ? 1 : 2;  // there one more is on its way
  prefetch_ = std::make_unique<data::DumpPrefetch>(
      reader_, [this, order](int64_t n) { return samples_of(order(n)); }, wants_, first, ahead,
      default_device());
}

// The next batch sets out as soon as it is read: at the start of a step, or between its layers.
void DumpTeacher::look_ahead() {
  if (!prefetch_ || coming_ || !default_device().is_cuda()) return;
  if (auto read = prefetch_->next_if_read()) coming_ = send(std::move(*read));
}

void DumpTeacher::begin(const Batch& batch) {
  std::vector<int64_t> samples = samples_of(batch.windows);
  if (!prefetch_) {
    const PinnedMemory pinned(default_device());
    now_ = send(reader_.read(samples, wants_));
  } else if (coming_) {
    now_ = std::move(*coming_);
    coming_.reset();
  } else {
    std::optional<data::DumpBatch> next = prefetch_->next();
    now_ = next ? send(std::move(*next)) : Arrived();
  }
  check(now_.batch.samples == samples, reader_.dir().string(),
        ": was read ahead in another order than the run asks for");
  now_.uploads.admit();
  look_ahead();
}

TeacherLayer DumpTeacher::layer(int64_t i) {
  look_ahead();
  const data::DumpLayer& l = now_.batch.layers.at(size_t(i));
  TeacherSummary pooled = l.pooled;
  pooled.tau = wide(pooled.tau);
  return {.attention = {.map = l.attention, .q = l.query, .k = l.key},
          .pooled = pooled,
          .context = wide(l.context),
          .output = wide(l.output)};
}

Tensor DumpTeacher::class_logits() {
  check(now_.batch.classes.defined(), reader_.dir().string(), ": holds no logits of classes");
  return now_.batch.classes;
}

TopLogits DumpTeacher::logits() {
  const data::DumpBatch& b = now_.batch;
  auto rows = [](const Tensor& t) { return t.defined() ? t.view({-1, t.dim(-1)}) : t; };
  return {.values = rows(wide(b.logits)), .ids = rows(b.logit_ids), .lse = b.lse.view({-1})};
}

}  // namespace brine::distill
