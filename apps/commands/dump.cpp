// brine dump: runs a teacher over text and keeps what distillation needs in HDF5.
#include <algorithm>
#include <functional>
#include <numeric>

#include "apps/cli/program.h"
#include "apps/cli/stop_signals.h"
#include "apps/cli/terminal.h"
#include "apps/shared/device_memory.h"
#include "apps/shared/task_run.h"
#include "apps/shared/training.h"
#include "data/corpus/corpus.h"
#include "data/corpus/permutation.h"
#include "data/dump/dump_reader.h"
#include "data/dump/dump_writer.h"
#include "distill/teachers/dump_batch.h"
#include "nn/io/model_io.h"
#include "tensor/device/transfer.h"

namespace brine {
namespace {

struct Dump {
  std::string model, out, content = "qk", dtype = "f16", logits = "top", task, split = "train";
  std::vector<std::string> data, adopt, tensors;
  int64_t columns = 64, windows = 0, sequence_length = 0, top_logits = 64, batch_size = 4,
          shard_mib = 1024;
  int64_t deflate = 0;
  bool shuffle = false, context = true, output = true, dry_run = false;

  void describe(data::Schema& s) {
    s.field("model", model, "Teacher: model directory or run");
    s.field("data", data, "Text files or token shards, or the directory of the task");
    s.field(
        "task", task,
        "Dump a fine-tuned encoder on the texts of this task, without padding: " + known_tasks());
    s.field("split", split, "Split of the task, or a TSV file with its columns");
    s.field("out", out, "Directory of the dump");
    s.choice("content", content, {"qk", "maps", "pooled", "none"},
             "Attention as the teacher's q and k, as maps, or as what the loss approx needs of it "
             "at one number of columns (prob is then 0)");
    s.field("columns", columns, "With content = pooled: attention.columns of the students",
            {.min = 1});
    s.choice("dtype", dtype, {"f32", "f16", "bf16"}, "Type of the stored values");
    s.field("context", context, "Store attention outputs (loss context)");
    s.field("output", output, "Store layer outputs (loss kd)");
    s.choice("logits", logits, {"top", "full", "none"}, "Logits to store (loss kd_task)");
    s.field("top_logits", top_logits, "With logits = top: how many of each row", {.min = 1});
    s.field("tensors", tensors,
            "Further tensors of the layers to store: names that the program has registered");
    s.field("windows", windows, "Windows to dump, drawn by --seed; 0 = all", {.min = 0});
    s.field("sequence_length", sequence_length, "Tokens of a window; 0 = the model's positions",
            {.min = 0});
    s.field("batch_size", batch_size, "Windows at once", {.min = 1});
    s.field("shard_mib", shard_mib, "Largest shard in MiB", {.min = 1});
    s.field("deflate", deflate, "Compression 1 to 9; 0 = none", {.min = 0, .max = 9});
    s.field("shuffle", shuffle, "Byte shuffle before compression");
    s.field("adopt", adopt, "Verify files that others wrote by the schema and make their manifest",
            {.transient = true});
    s.field("dry_run", dry_run, "Print the size only", {.transient = true});
  }

  int run(const RunContext& context);
  // Without the samples.
  data::DumpSpec spec(const nn::LoadedModel& m, const data::Tokenizer& tokenizer) const;
  int dump_windows(const nn::LoadedModel& m, const data::Tokenizer& tokenizer, uint64_t seed) const;
  int dump_task(const nn::LoadedModel& m, const data::Tokenizer& tokenizer, uint64_t seed) const;
  // Batches of the samples from the first on, at most so many.
  using Batches = std::function<distill::Batch(int64_t first, int64_t count)>;
  int write(const nn::LoadedModel& m, const data::DumpSpec& spec, const Batches& batches) const;
};

std::vector<int64_t> draw_windows(int64_t all, int64_t wanted, uint64_t seed) {
  check(wanted <= all, "dump: ", wanted, " windows were asked for, the text has ", all);
  std::vector<int64_t> order = data::permutation(all, seed, 0);
  if (wanted) order.resize(size_t(wanted));
  std::sort(order.begin(), order.end());
  return order;
}

data::DumpSpec Dump::spec(const nn::LoadedModel& m, const data::Tokenizer& tokenizer) const {
  const nn::ModelShape o = m.config.shape();
  data::DumpSpec s;
  s.content = content == "qk"       ? data::DumpContent::qk
              : content == "maps"   ? data::DumpContent::maps
              : content == "pooled" ? data::DumpContent::pooled
                                    : data::DumpContent::none;
  if (s.content == data::DumpContent::pooled) s.columns = columns;
  s.dtype = dtype == "f32" ? Dtype::f32 : dtype == "f16" ? Dtype::f16 : Dtype::bf16;
  s.layers = o.layers;
  s.heads = o.heads;
  s.head_size = o.head_size();
  s.hidden = o.hidden_size;
  s.causal = o.causal;
  s.vocab = o.vocab_size;
  s.context = context;
  s.output = output;
  s.logits = logits == "top"    ? data::DumpLogits::top
             : logits == "full" ? data::DumpLogits::full
                                : data::DumpLogits::none;
  s.top_n = s.logits == data::DumpLogits::top ? std::min(top_logits, o.vocab_size) : 0;
  s.tensors = tensors;
  s.teacher_hash = m.hash();
  s.tokenizer_hash = tokenizer.hash();
  return s;
}

int Dump::write(const nn::LoadedModel& m, const data::DumpSpec& spec,
                const Batches& batches) const {
  data::DumpWriterOptions options{.shard_bytes = uint64_t(shard_mib) << 20,
                                  .shuffle = shuffle,
                                  .deflate = int(deflate),
                                  .queue = 1};  // one batch is written, one waits, one is computed
  data::DumpSize size = data::dump_size(spec, options.shard_bytes);
  log_info(out, ": ", content, " in ", dtype, ", ", human_bytes(double(size.per_sample)),
           spec.ragged ? " for the longest, " : " each, ", human_bytes(double(size.total)), " in ",
           size.shards, " shards before compression");
  if (dry_run) return 0;
  data::DumpWriter writer(out, spec, options);
  for (const std::string& note : writer.notes()) log_info(note);
  int64_t top = spec.logits == data::DumpLogits::top ? spec.top_n : 0;
  distill::OnlineTeacher teacher(m.model, top);
  StopSignals signals;
  const int64_t before = cuda::waits();
  while (true) {
    data::DumpWriter::Run next = writer.missing();
    if (next.samples == 0) break;
    if (std::string signal = signals.name(); !signal.empty()) {
      log_warning(signal, ": stopped at sample ", next.first, " of ", spec.samples,
                  "; the same command continues");
      return 130;
    }
    Downloads arriving;
    data::DumpBatch batch = distill::dump_batch(
        teacher, batches(next.first, std::min(next.samples, batch_size)), spec, arriving);
    writer.put(std::move(batch), std::move(arriving));
  }
  const int64_t waits = cuda::waits() - before;
  writer.finish();
  log_info(out, ": done, ", peak_memory());
  if (default_device().is_cuda()) log_detail("waited for the device ", waits, " times");
  return 0;
}

int Dump::dump_windows(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                       uint64_t seed) const {
  int64_t positions = m.config.shape().max_positions;
  int64_t window = sequence_length ? sequence_length : positions;
  check(window <= positions, "dump: sequence_length ", window, " is longer than the model's ",
        positions, " positions");
  data::TokenCorpus corpus = data::load_corpus(data, tokenizer, window);
  data::DumpSpec spec = this->spec(m, tokenizer);
  spec.tokens = corpus.window_tokens;
  spec.corpus_hash = corpus.hash();
  spec.windows = draw_windows(corpus.windows(), windows, seed);
  spec.samples = int64_t(spec.windows.size());
  log_info(out, ": ", spec.samples, " of ", corpus.windows(), " windows of ", window, " tokens");
  distill::WindowSource source(std::move(corpus.tokens), window, seed, spec.windows);
  return write(m, spec,
               [&](int64_t first, int64_t count) { return source.in_order(first, count); });
}

// Texts by length: a batch of the teacher's has little padding, and none of it is stored.
int Dump::dump_task(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                    uint64_t seed) const {
  check(data.size() <= 1, "dump: a task has one directory of data, not ", data.size());
  const data::Task& chosen = data::task_named(task);
  check(m.model->labels() > 0, "dump: ", m.directory,
        " has no classification head; brine finetune makes one");
  TaskSet set = read_split({.task = chosen,
                            .data = data.empty() ? "" : data[0],
                            .tokenizer = tokenizer,
                            .config = m.config,
                            .max_tokens = sequence_length,
                            .seed = seed},
                           data::split_named(chosen, split));
  const data::TaskTokens& tokens = set.source->tokens();
  data::DumpSpec spec = this->spec(m, tokenizer);
  spec.ragged = true;
  spec.logits = data::DumpLogits::none;
  spec.top_n = 0;
  spec.classes = m.model->labels();
  spec.tokens = tokens.longest;
  spec.corpus_hash = hash_of(tokens);
  spec.samples = int64_t(tokens.texts.size());
  spec.windows.resize(tokens.texts.size());
  std::iota(spec.windows.begin(), spec.windows.end(), 0);
  auto length = [&](int64_t text) { return int64_t(tokens.texts[size_t(text)].ids.size()); };
  std::stable_sort(spec.windows.begin(), spec.windows.end(),
                   [&](int64_t a, int64_t b) { return length(a) < length(b); });
  for (int64_t text : spec.windows) spec.lengths.push_back(length(text));
  return write(m, spec, [&](int64_t first, int64_t count) {
    auto from = spec.windows.begin() + first;
    return set.source->gather({from, from + count});
  });
}

int Dump::run(const RunContext& context) {
  if (!adopt.empty()) {
    refuse_idle_but(context, {"adopt"}, "with --adopt");
    data::DumpManifest m = data::adopt_dump(std::vector<data::Path>(adopt.begin(), adopt.end()));
    log_info(m.shards.size(), " files verified, ", m.spec.samples, " samples; manifest written");
    return 0;
  }
  check(!model.empty() && (!data.empty() || !task.empty()) && !out.empty(),
        "dump: --model, --data (or --task) and --out are needed (or --adopt)");
  if (task.empty()) {
    refuse_idle(context, {"split"}, "without --task");
  } else {
    refuse_idle(context, {"windows", "logits", "top_logits"}, "on a task");
  }
  if (logits != "top") refuse_idle(context, {"top_logits"}, "with --logits " + logits);
  if (content != "pooled") refuse_idle(context, {"columns"}, "with --content " + content);
  NoGrad off;
  nn::LoadedModel m = nn::load_model(model);
  warn_of(m);
  check(nn::is_full_attention(m.config.attention), "dump: the teacher ", model, " has attention '",
        m.config.attention, "'; a dump is of a dense one");
  std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_of(m);
  return task.empty() ? dump_windows(m, *tokenizer, context.seed)
                      : dump_task(m, *tokenizer, context.seed);
}

const RegisterSubcommand<Dump> registration("dump", "Keep a teacher's attention in HDF5");

}  // namespace
}  // namespace brine
