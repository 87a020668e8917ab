// Dumping a teacher: runs it over a text or a task once and stores what distillation needs in HDF5.
#include "distill/runs/dump_run.h"

#include <algorithm>
#include <optional>

#include "data/checkpoint/checkpoint.h"
#include "data/corpus/permutation.h"
#include "data/dump/dump_writer.h"
#include "data/io/human.h"
#include "distill/log/device_memory.h"
#include "distill/ranks/exchange.h"
#include "distill/teachers/dump_batch.h"
#include "tensor/comm/bytes.h"
#include "tensor/comm/shared_work.h"
#include "tensor/functions/transfer.h"

namespace brine::distill {
namespace {

std::vector<int64_t> draw_windows(int64_t all, int64_t wanted, uint64_t seed) {
  check(wanted <= all, "dump: ", wanted, " windows requested, the text has ", all);
  std::vector<int64_t> order = data::permutation(all, seed, 0);
  if (wanted) order.resize(size_t(wanted));
  std::sort(order.begin(), order.end());
  return order;
}

// Without the samples.
data::DumpSpec spec_of(const DumpRequest& r, const nn::LoadedModel& m,
                       const data::Tokenizer& tokenizer) {
  const nn::ModelShape o = m.config.shape();
  data::DumpSpec s;
  s.content = r.content;
  if (s.content == data::DumpContent::pooled) s.columns = r.columns;
  s.dtype = r.dtype;
  s.layers = o.layers;
  s.heads = o.heads;
  s.key_heads = o.attention().groups();
  s.head_size = o.head_size();
  s.hidden = o.hidden_size;
  s.causal = o.causal;
  s.vocab = o.vocab_size;
  s.value = r.value;
  s.context = r.context;
  s.output = r.output;
  s.logits = r.logits;
  s.top_n = s.logits == data::DumpLogits::top ? std::min(r.top_logits, o.vocab_size) : 0;
  s.stores_tokens = true;
  s.teacher_hash = m.hash();
  s.tokenizer_hash = tokenizer.hash();
  return s;
}

// Batches of at most so many samples, from the first on.
using Batches = std::function<Batch(int64_t first, int64_t count)>;

// What is known after one batch of every rank.
struct WriteStatus {
  std::string why;   // the reason to stop, of the first rank that has one
  bool done = true;  // nothing is missing
};

// `put` gives the samples that are missing next to the writer, if any are, and returns how many.
WriteStatus write_next(Communicator& ranks, data::DumpWriter& writer, const RunHost& host,
                       const std::function<int64_t(const data::DumpWriter::Run&)>& put) {
  const std::vector<std::string> all = gather_work(ranks, "dump", [&] {
    ByteWriter out;
    const std::string why = host.stop ? host.stop() : "";
    out.text(why);
    const data::DumpWriter::Run next = writer.missing();
    const bool goes_on = why.empty() && next.samples > 0;
    const bool ends = goes_on && put(next) == next.in_shard;
    out.number(writer.missing().samples == 0);
    // A process that is alone lists its shards itself, and does not wait for them.
    if (!ends || ranks.size() == 1) return out.bytes();
    for (const data::DumpShard& shard : writer.take_finished()) {
      out.text(shard.name);
      out.text(shard.sha256);
      out.number(shard.bytes);
      out.number(shard.first);
      out.number(shard.samples);
    }
    return out.bytes();
  });
  WriteStatus status;
  std::vector<data::DumpShard> others;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    ByteReader in(all[rank]);
    const std::string why = in.text();
    if (status.why.empty() && !why.empty())
      status.why = all.size() > 1 ? join(why, " to rank ", rank) : why;
    status.done = in.number<bool>() && status.done;
    while (!in.done()) {
      data::DumpShard shard{.name = in.text(), .sha256 = in.text()};
      shard.bytes = in.number<uint64_t>();
      shard.first = in.number<int64_t>();
      shard.samples = in.number<int64_t>();
      if (rank > 0) others.push_back(std::move(shard));
    }
  }
  if (!others.empty()) do_work_of_first(ranks, "dump", [&] { writer.add_finished(others); });
  return status;
}

bool write(const DumpRequest& r, const nn::LoadedModel& m, const data::DumpSpec& spec,
           const Batches& batches, const RunHost& host) {
  data::DumpWriterOptions options{.shard_bytes = uint64_t(r.shard_mib) << 20,
                                  .shuffle = r.shuffle,
                                  .deflate = int(r.deflate),
                                  .queue = 1};  // one batch is written, one waits, one is computed
  data::DumpSize size = data::dump_size(spec, options.shard_bytes);
  host.messages.info(
      r.out, ": ", data::name_of(r.content), " in ", r.dtype, ", ",
      human_bytes(double(size.per_sample)), spec.ragged ? " for the longest, " : " each, ",
      human_bytes(double(size.total)), " in ", size.shards, " shards before compression");
  if (r.dry_run) return true;
  SelfCommunicator alone;
  Communicator& ranks = host.ranks ? *host.ranks : alone;
  options.part = ranks.rank();
  options.parts = ranks.size();
  std::optional<data::DumpWriter> writer;
  do_work_of_first(ranks, "dump", [&] {
    data::refuse_occupied(r.out, {data::Holding::shards});
    writer.emplace(r.out, spec, options);
  });
  do_work(ranks, "dump", [&] {
    if (!writer) writer.emplace(r.out, spec, options);
  });
  for (const std::string& note : writer->notes()) host.messages.info(note);
  int64_t top = spec.logits == data::DumpLogits::top ? spec.top_n : 0;
  OnlineTeacher teacher(m.model, top);
  // Not more than a shard is in memory, or a sample: a batch is computed, one waits, one is
  // written.
  const uint64_t three = 3 * std::max<uint64_t>(size.per_sample, 1);
  const bool overlaps = three <= options.shard_bytes;
  const auto at_once = int64_t(std::max<uint64_t>(options.shard_bytes / three, 1));
  const int64_t before = cuda::waits();
  for (bool done = false; !done;) {
    const WriteStatus status =
        write_next(ranks, *writer, host, [&](const data::DumpWriter::Run& next) {
          // Not beyond the shard: its bits do not depend on what was written before it, or by whom.
          const int64_t count = std::min({next.in_shard, r.batch_size, at_once});
          if (!overlaps) writer->wait();
          Downloads arriving;
          data::DumpBatch batch =
              dump_batch(teacher, batches(next.first, count), spec, arriving, true);
          writer->put(std::move(batch), std::move(arriving));
          return count;
        });
    if (!status.why.empty()) {
      host.messages.warning(status.why, ": stopped at sample ", writer->missing().first, " of ",
                            spec.samples, "; the same command continues");
      return false;
    }
    done = status.done;
  }
  const int64_t waits = cuda::waits() - before;
  do_work(ranks, "dump", [&] { writer->finish(); });
  host.messages.info(r.out, ": done, ", peak_memory());
  if (default_device().is_cuda()) {
    host.messages.detail("waited for the device ", waits, " times");
  }
  return true;
}

bool dump_windows(const DumpRequest& r, const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                  const RunHost& host) {
  const int64_t window = window_of(r.sequence_length, m.config, "dump");
  data::TokenCorpus corpus = data::load_corpus(r.data, tokenizer, window);
  data::DumpSpec spec = spec_of(r, m, tokenizer);
  spec.tokens = corpus.window_tokens;
  spec.corpus_hash = corpus.hash();
  spec.windows = draw_windows(corpus.windows(), r.windows, host.seed);
  spec.samples = int64_t(spec.windows.size());
  host.messages.info(r.out, ": ", spec.samples, " of ", corpus.windows(), " windows of ", window,
                     " tokens");
  WindowSource source(std::move(corpus.tokens), window, host.seed, spec.windows);
  return write(
      r, m, spec, [&](int64_t first, int64_t count) { return source.in_order(first, count); },
      host);
}

// Sorted by length: the teacher's batches have little padding, and padding is not stored.
bool dump_task(const DumpRequest& r, const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
               const RunHost& host) {
  check(r.data.size() <= 1, "dump: a task has one directory of data, not ", r.data.size());
  check(m.model->labels() > 0, "dump: ", m.directory,
        " has no classification head; brine finetune makes one");
  const nn::ClassHead head = m.config.family().class_head();
  const data::Task chosen = task_of({.task = r.task, .fields = r.fields, .labels = r.labels}, head);
  TaskSet set = read_split({.task = chosen,
                            .data = r.data.empty() ? "" : r.data[0],
                            .tokenizer = tokenizer,
                            .config = m.config,
                            .max_tokens = r.sequence_length,
                            .seed = host.seed,
                            .messages = host.messages},
                           data::split_named(chosen, r.split));
  const data::TaskTokens& tokens = set.source->tokens();
  class_map(head, {chosen, tokens.labels, r.labels}, host.messages);  // throws for other labels
  const auto all = int64_t(tokens.texts.size());
  check(r.samples <= all, "dump: ", r.samples, " texts requested, the split has ", all);
  data::DumpSpec spec = spec_of(r, m, tokenizer);
  spec.ragged = true;
  spec.logits = data::DumpLogits::none;
  spec.top_n = 0;
  spec.classes = m.model->labels();
  spec.corpus_hash = hash_of(tokens);
  spec.samples = r.samples ? r.samples : all;
  for (int64_t i = 0; i < spec.samples; ++i) spec.windows.push_back(i * all / spec.samples);
  auto length = [&](int64_t text) { return int64_t(tokens.texts[size_t(text)].ids.size()); };
  std::ranges::stable_sort(spec.windows, {}, length);
  for (int64_t text : spec.windows) spec.lengths.push_back(length(text));
  spec.tokens = spec.lengths.back();
  return write(
      r, m, spec,
      [&](int64_t first, int64_t count) {
        auto from = spec.windows.begin() + first;
        return set.source->gather({from, from + count});
      },
      host);
}

}  // namespace

void DumpRequest::describe(data::Schema& s) {
  s.field("data", data, "Text files or token shards, or the directory of the task");
  s.field("task", task,
          "Task on whose texts to dump a fine-tuned encoder (finetune --help: names)");
  s.field("split", split, "Split of the task, or a TSV file with its columns");
  s.field("fields", fields, kFieldsHelp);
  s.field("labels", labels, kLabelsHelp);
  s.field("samples", samples, "Texts of the task to dump, evenly spaced in the split; 0 = all",
          {.min = 0});
  s.field("out", out, "Directory of the dump");
  s.choice("content", content, data::kDumpContents,
           "Attention as q and k, as maps, or pooled for the loss approx");
  s.field("columns", columns, "With content = pooled: attention.columns of the students",
          {.min = 1});
  s.choice("dtype", dtype, data::kDumpTypes, "Type of the stored values");
  s.field("value", value, "Store values (stage attention reads them)");
  s.field("context", context, "Store attention outputs (loss context)");
  s.field("output", output, "Store layer outputs (loss kd)");
  s.choice("logits", logits, data::kDumpLogits, "Logits to store (loss kd_task)");
  s.field("top_logits", top_logits, "With logits = top: how many of each row", {.min = 1});
  s.field("windows", windows, "Windows to dump, drawn by --seed; 0 = all", {.min = 0});
  s.field("sequence_length", sequence_length, "Tokens of a window; 0 = the model's positions",
          {.min = 0});
  s.field("batch_size", batch_size,
          "Maximum windows at once; fewer if three times as many do not fit a shard", {.min = 1});
  s.field("shard_mib", shard_mib, "Largest shard in MiB", {.min = 1});
  s.field("deflate", deflate, "Compression 1 to 9; 0 = none", {.min = 0, .max = 9});
  s.field("shuffle", shuffle, "Byte shuffle before compression");
  s.field("dry_run", dry_run, "Print the size only", {.transient = true});
}

bool dump_teacher(const nn::LoadedModel& teacher, const data::Tokenizer& tokenizer,
                  const DumpRequest& request, const RunHost& host) {
  check(nn::is_full_attention(teacher.config.attention), "dump: the teacher ", teacher.directory,
        " has attention '", teacher.config.attention, "'; a dump is of a dense one");
  if (host.ranks) compare_models(*host.ranks, teacher);
  if (request.task.empty()) refuse_classifier(teacher, "dump");
  NoGrad off;
  return request.task.empty() ? dump_windows(request, teacher, tokenizer, host)
                              : dump_task(request, teacher, tokenizer, host);
}

}  // namespace brine::distill
