// The teacher that reads from a dump.
#include "distill/teachers/dump_teacher.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "autograd/ops.h"
#include "distill/batches/task_source.h"
#include "distill/teachers/dump_batch.h"

namespace brine::distill {
namespace {

Tensor wide(const Tensor& t) { return t.defined() ? t.to(sum_type(t.dtype())) : t; }

// Throws unless the dump is of a model of these sizes.
void check_dump_sizes(const std::string& dir, const data::DumpSpec& spec,
                      const nn::ModelShape& shape) {
  auto kind = [](bool causal) { return causal ? "causal" : "bidirectional"; };
  check(spec.causal == shape.causal, dir, ": is of a ", kind(spec.causal),
        " teacher, the model is ", kind(shape.causal));
  auto same = [&](const char* what, int64_t in_dump, int64_t in_model) {
    check(in_dump == in_model, dir, ": has ", in_dump, " ", what, ", the model ", in_model);
  };
  same("layers", spec.layers, shape.layers);
  same("heads", spec.heads, shape.heads);
  same("heads of keys", spec.key_heads, shape.attention().groups());
  same("features of a head", spec.head_size, shape.head_size());
  if (shape.vocab_size) {  // attention blocks alone have no layers and no vocabulary
    if (spec.output) same("features of a layer's output", spec.hidden, shape.hidden_size);
    same("tokens of the vocabulary", spec.vocab, shape.vocab_size);
  }
  check(spec.tokens <= shape.max_positions, dir, ": its samples have ", spec.tokens,
        " tokens, the model has ", shape.max_positions, " positions");
}

}  // namespace

DumpTeacher::DumpTeacher(const std::string& dir, const Expected& expected)
    : reader_(dir), columns_(expected.columns) {
  const data::DumpSpec& spec = reader_.spec();
  data::check_dump_source(spec, dir, expected.source);
  bool of_task = expected.window == 0;
  check(of_task ? spec.ragged || spec.classes > 0 : !spec.ragged, dir, ": is of ",
        of_task ? "windows" : "the texts of a task", ", this run is of ",
        of_task ? "the texts of a task" : "windows");
  check(of_task || spec.tokens == expected.window, dir, ": its samples have ", spec.tokens,
        " tokens, this run's windows have ", expected.window, " (sequence_length)");
  check(spec.has_windows() || expected.uses_stored_tokens, dir,
        ": stores no numbers of windows or texts, so samples cannot be found in it");
  check(spec.stores_tokens || !expected.uses_stored_tokens, dir, ": stores no tokens");
  check_dump_sizes(dir, spec, expected.shape);
  for (int64_t i = 0; i < spec.samples; ++i)
    sample_of_[expected.uses_stored_tokens ? i : spec.windows[size_t(i)]] = i;
}

void DumpTeacher::each_sample(const See& see) const {
  constexpr int64_t kAtOnce = 64;
  const int64_t all = reader_.spec().samples;
  for (int64_t first = 0; first < all; first += kAtOnce) {
    std::vector<int64_t> samples(size_t(std::min(kAtOnce, all - first)));
    std::iota(samples.begin(), samples.end(), first);
    const data::DumpBatch batch = reader_.read(samples, data::DumpWants());
    const Tensor& tokens = batch.tensors["tokens"];
    for (size_t i = 0; i < samples.size(); ++i) {
      see(samples[i],
          tokens.defined() ? tokens.data<int32_t>() + int64_t(i) * tokens.dim(1) : nullptr,
          batch.lengths.data<int64_t>()[i]);
    }
  }
}

void DumpTeacher::compare_tokens(int64_t sample, const int32_t* stored,
                                 std::span<const int32_t> tokens, const std::string& source) const {
  if (!stored) return;
  for (size_t t = 0; t < tokens.size(); ++t) {
    check(stored[t] == tokens[t], reader_.dir().string(), ": sample ", sample, " is not ", source,
          ": its token ", t, " is ", stored[t], ", expected ", tokens[t]);
  }
}

std::unique_ptr<WindowSource> DumpTeacher::samples(std::shared_ptr<const data::TokenSource> corpus,
                                                   uint64_t seed) const {
  const data::DumpSpec& spec = reader_.spec();
  const int64_t T = spec.tokens, windows = corpus ? corpus->size() / T : spec.samples;
  std::vector<int32_t> stored_tokens, tokens;
  std::unordered_map<int64_t, int64_t> shorter;
  each_sample([&](int64_t sample, const int32_t* stored, int64_t length) {
    const int64_t window = corpus ? spec.windows[size_t(sample)] : sample;
    if (length < T) shorter[window] = length;
    if (!corpus) {
      stored_tokens.insert(stored_tokens.end(), stored, stored + T);
      return;
    }
    check(window >= 0 && window < windows, reader_.dir().string(), ": sample ", sample,
          " is window ", window, " of the text, which has ", windows);
    if (!stored) return;
    tokens.resize(size_t(length));
    corpus->read(window * T, tokens);
    compare_tokens(sample, stored, tokens, join("window ", window, " of the text"));
  });
  auto source = corpus ? std::make_unique<WindowSource>(std::move(corpus), T, seed, spec.windows)
                       : std::make_unique<WindowSource>(std::move(stored_tokens), T, seed);
  source->shorten(std::move(shorter));
  return source;
}

std::shared_ptr<const data::TaskTokens> DumpTeacher::texts(
    std::shared_ptr<const data::TaskTokens> split) {
  const data::DumpSpec& spec = reader_.spec();
  const std::string dir = reader_.dir().string();
  const int64_t count = int64_t(split->texts.size());
  each_sample([&](int64_t sample, const int32_t* stored, int64_t length) {
    const int64_t text = spec.windows[size_t(sample)];
    check(text >= 0 && text < count, dir, ": sample ", sample, " is text ", text,
          " of the split, which has ", count);
    const std::vector<int32_t>& ids = split->texts[size_t(text)].ids;
    check(int64_t(ids.size()) == length, dir, ": sample ", sample, " has ", length,
          " tokens, text ", text, " of the split ", ids.size());
    compare_tokens(sample, stored, ids, join("text ", text, " of the split"));
  });
  if (int64_t(sample_of_.size()) == count) return split;
  const std::map<int64_t, int64_t> ascending(sample_of_.begin(), sample_of_.end());
  auto part = std::make_shared<data::TaskTokens>(*split);
  part->texts.clear();
  part->targets.clear();
  part->longest = 0;
  sample_of_.clear();
  for (const auto& [text, sample] : ascending) {
    sample_of_[int64_t(part->texts.size())] = sample;
    part->texts.push_back(split->texts[size_t(text)]);
    part->longest = std::max(part->longest, int64_t(part->texts.back().ids.size()));
    if (split->labelled) part->targets.push_back(split->targets[size_t(text)]);
  }
  return part;
}

std::shared_ptr<data::TaskTokens> DumpTeacher::stored_texts(int32_t separator) const {
  auto out = std::make_shared<data::TaskTokens>(data::TaskTokens{.labelled = false});
  each_sample([&](int64_t, const int32_t* stored, int64_t length) {
    data::TextTokens text{.ids = {stored, stored + length}};
    const auto end = std::find(text.ids.begin(), text.ids.end(), separator);
    text.first = std::min(end - text.ids.begin() + 1, length);
    out->longest = std::max(out->longest, length);
    out->texts.push_back(std::move(text));
  });
  out->targets.resize(out->texts.size());
  return out;
}

void DumpTeacher::check_sample(std::shared_ptr<nn::Model> teacher, const Batch& batch) const {
  const int64_t sample = samples_of(batch.windows).front();
  try {
    // First the comparison, whose error gives more of the reason.
    if (teacher)
      compare_with_teacher(reader_, sample, std::move(teacher), batch.ids, batch.type_ids);
    data::check_dump_sample(reader_, sample, dir());
  } catch (const Error& error) {
    throw Error(join(error.what(), " (--trust-dump skips this check)"), error.kind);
  }
}

void DumpTeacher::require(const TeacherNeeds& needs) {
  const std::string dir = reader_.dir().string();
  const int64_t K = reader_.spec().columns;
  std::set<std::string, std::less<>> parts;
  for (const TeacherNeed& need : needs) {
    const bool by_text = need.part == data::part::logits && reader_.has(data::part::classes);
    const std::string part = by_text ? data::part::classes : need.part;
    const std::string source =
        source_of(part, [this](const std::string& p) { return reader_.has(p); });
    const std::string from = computed_from(part);
    for (const std::string& loss : need.losses)
      check(!source.empty() || !is_pooled() ||
                (part != data::part::attention && from != data::part::attention),
            dir, ": its attention is pooled into ", K, " columns, of which the loss ", loss,
            " cannot be computed; set losses.", loss, " to 0");
    check(!source.empty(), dir, ": has no ", part,
          from.empty() ? "" : " and no " + from + " to compute it from", ", which ", need.who());
    parts.insert(source);
  }
  check(!parts.contains(data::part::pooled) || !columns_ || columns_ == K, dir,
        ": its attention is pooled into ", K, " columns, the student has ", columns_,
        " (attention.columns)");
  wants_ = {.parts = std::move(parts),
            .tokens_steps = TaskSource::length_steps(),
            // A device gets the stored values, half as long in f16, and widens them there; on the
            // CPU the reading thread widens them while the student computes. q and k stay as they
            // are.
            .as_stored = default_device().is_cuda() ? data::DumpWants::AsStored::all
                                                    : data::DumpWants::AsStored::queries_and_keys};
}

std::vector<int64_t> DumpTeacher::samples_of(const std::vector<int64_t>& windows) const {
  std::vector<int64_t> out;
  for (int64_t w : windows) {
    auto it = sample_of_.find(w);
    check(it != sample_of_.end(), reader_.dir().string(), ": contains no window ", w);
    out.push_back(it->second);
  }
  return out;
}

DumpTeacher::Arrived DumpTeacher::send(data::DumpBatch read) const {
  Arrived out{std::move(read), {}};
  data::DumpBatch& b = out.batch;
  auto upload = [&out](data::TensorSet& set) {
    for (auto& [name, x] : set)
      if (name != "tokens") x = out.uploads.start(x, default_device());
  };
  upload(b.tensors);
  for (data::TensorSet& layer : b.layers) upload(layer);
  return out;
}

void DumpTeacher::plan(const BatchOrder& order, int64_t first) {
  coming_.reset();
  const size_t ahead = default_device().is_cuda() ? 1 : 2;  // on a device one more batch is being
                                                            // copied
  prefetch_ = std::make_unique<data::DumpPrefetch>(
      reader_, [this, order](int64_t n) { return samples_of(order(n)); }, wants_, first, ahead,
      default_device());
}

// The upload of the next batch starts as soon as it is read: at the start of a step, or between its
// layers.
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
        ": was read ahead in another order than the run requests");
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t length =
        batch.lengths.defined() ? batch.lengths.data<int64_t>()[i] : batch.ids.dim(1);
    const int64_t stored_length = now_.batch.lengths.data<int64_t>()[i];
    check(length == stored_length, reader_.dir().string(), ": sample ", samples[i], " has ",
          stored_length, " tokens, the run's ", length);
  }
  tokens_ = batch.ids.dim(1);
  now_.uploads.admit();
  look_ahead();
}

TeacherLayer DumpTeacher::layer(int64_t i) {
  TeacherLayer layer = grouped_layer(i);
  for (auto& [name, x] : layer) {
    if (data::find_teacher_tensor(name)->shape[0] == data::Axis::key_heads)
      x = repeat_heads(x, spec().heads / spec().key_heads);
  }
  return layer;
}

TeacherLayer DumpTeacher::grouped_layer(int64_t i) {
  look_ahead();
  TeacherLayer layer = now_.batch.layers.at(size_t(i));
  for (auto& [name, x] : layer) {
    const data::TeacherTensor& tensor = *data::find_teacher_tensor(name);
    x = tensor.first_tokens(tensor.narrow ? x : wide(x), tokens_);
  }
  return layer;
}

Tensor DumpTeacher::class_logits() {
  const Tensor& classes = now_.batch.tensors["classes"];
  check(classes.defined(), reader_.dir().string(), ": has no logits of classes");
  return classes;
}

TopLogits DumpTeacher::logits(int64_t first, int64_t rows) {
  const data::TensorSet& b = now_.batch.tensors;
  auto part = [&](const Tensor& t) {
    return t.defined() ? t.view({-1, t.dim(-1)}).slice(0, first, rows) : t;
  };
  return {.values = wide(part(b["logits"])),
          .ids = part(b["logit_ids"]),
          .lse = b["lse"].view({-1}).slice(0, first, rows)};
}

}  // namespace brine::distill
