// What `brine logits` computes: a model's logits of a prompt or of windows of text, and their file.
#include "apps/logits/logits.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "autograd/compute_type.h"
#include "data/corpus/corpus.h"
#include "data/io/file_io.h"
#include "data/io/human.h"
#include "data/safetensors/safetensors_header.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/inputs/task_split.h"
#include "distill/runs/training_run.h"
#include "tensor/tensor.h"

namespace brine {

namespace {

// The file that `brine logits` writes: a head and then the numbers, so that rows can be written
// before the later ones are computed.

uint64_t bytes_of(const Shape& shape, Dtype dtype) {
  return uint64_t(shape.numel()) * item_size(dtype);
}

// The logits stand before their tokens: files of the format are ordered by type.
std::string head_of(const std::string& path, const Shape& shape, const Tensor& tokens) {
  data::SafetensorsHeader header{{{"format", "pt"}}, {}};
  uint64_t end = 0;
  auto add = [&](const std::string& name, Dtype dtype, const Shape& of) {
    const uint64_t begin = end;
    end += bytes_of(of, dtype);
    const char* type = data::safetensors_type(dtype).name;
    header.records.push_back({name, type, {of.begin(), of.end()}, begin, end});
  };
  add("logits", Dtype::f32, shape);
  add("tokens", tokens.dtype(), tokens.shape());
  const std::string text = data::format_safetensors_header(path, header);
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + text;
}

std::string_view bytes_in(const Tensor& x) {
  return {reinterpret_cast<const char*>(x.raw()), size_t(x.numel()) * item_size(x.dtype())};
}

// Throws when no file of logits can have this path: it does not end in .safetensors, or is a
// directory, or its directory does not exist.
void check_logit_path(const std::string& path) {
  check(path.ends_with(".safetensors"), path, ": logits are a file that ends in .safetensors");
  check(!std::filesystem::is_directory(path), path, ": is a directory, wanted a file");
  const data::Path parent = data::Path(path).parent_path();
  check_found(parent.empty() || std::filesystem::is_directory(parent), path, ": no directory ",
              parent.string());
}

// A new file, which replaces an earlier one at commit() and leaves no remains without it.
class LogitFile {
 public:
  // `shape` is that of the logits, whose last axis is a row; `tokens` are ids, i32. Throws the
  // errors of check_logit_path(), and when the disk has less room than the file needs.
  LogitFile(const std::string& path, const Shape& shape, const Tensor& tokens)
      : shape_(shape), tokens_(tokens), missing_(shape.numel()) {
    check_logit_path(path);
    const std::string head = head_of(path, shape, tokens);
    const uint64_t bytes = head.size() + bytes_of(shape, Dtype::f32) + bytes_in(tokens).size();
    const uint64_t free = data::free_disk_bytes(path);
    check(bytes <= free, path, ": logits ", shape, " need ", human_bytes(double(bytes)),
          ", the disk has ", human_bytes(double(free)));
    file_ = std::make_unique<data::AtomicFile>(path);
    file_->write(head);
  }

  // The next rows, f32 [R, V] of any device and strides.
  void write(const Tensor& rows) {
    check(rows.dim(-1) == shape_[shape_.axis(-1)] && rows.numel() <= missing_, "logits: rows ",
          rows.shape(), " are not the next ones of ", shape_);
    const Tensor host = rows.detach().to(Device{}).to(Dtype::f32).contiguous();
    missing_ -= host.numel();
    file_->write(bytes_in(host));
  }
  // Throws when rows are missing, and as AtomicFile::commit().
  void commit() {
    check(missing_ == 0, "logits: ", missing_, " numbers are missing");
    file_->write(bytes_in(tokens_));
    file_->commit();
  }

 private:
  Shape shape_;
  Tensor tokens_;
  int64_t missing_;  // numbers
  std::unique_ptr<data::AtomicFile> file_;
};

// Ids [T] of the prompt or [n, T] of windows of the text, before any of them is computed: the head
// of the file has their number.
Tensor tokens_of(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                 const LogitRequest& what, const distill::Messages& messages) {
  if (!what.prompt.empty()) {
    const std::vector<int32_t> ids = data::prompt_tokens(
        tokenizer, what.prompt,
        [&](const std::string& warning) { messages.warning("logits: the prompt: ", warning); });
    const int64_t positions = m.config.shape().max_positions;
    check(int64_t(ids.size()) <= positions, "logits: the prompt has ", ids.size(),
          " tokens, the model ", positions, " positions");
    return Tensor::from(ids, {int64_t(ids.size())});
  }
  const int64_t window = distill::window_of(what.sequence_length, m.config, "logits");
  const data::TokenCorpus corpus = distill::load_texts(what.data, tokenizer, window, messages);
  const int64_t all = corpus.windows(),
                n = what.max_windows ? std::min(what.max_windows, all) : all;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<int32_t> of_window = corpus.window(i);
    ids.insert(ids.end(), of_window.begin(), of_window.end());
  }
  return Tensor::from(ids, {n, corpus.window_tokens});
}

// Adds the logits of a text, as many rows at a time as fit in 64 MB.
void add_logits(LogitFile& file, nn::Model& model, const Tensor& ids,
                const nn::RuntimeOptions& options) {
  Tensor x = model.hidden({.ids = ids, .options = options}).detach();
  x = x.view({-1, x.dim(-1)});
  const int64_t rows = x.dim(0);
  const int64_t step = std::max<int64_t>(1, (int64_t(1) << 24) / model.shape().vocab_size);
  for (int64_t first = 0; first < rows; first += step) {
    file.write(model.logits(x.slice(0, first, std::min(step, rows - first))).detach());
  }
}

}  // namespace

void LogitRequest::describe(data::Schema& s) {
  s.field("prompt", prompt, "One text, with the tokens that the tokenizer adds to a text",
          {.then = [this] { check(!prompt.empty(), "--prompt is empty, wanted a text"); }});
  s.field("data", data, "Text files or token shards");
  s.field("out", out, "File of safetensors to write: logits, tokens", {.required = true});
  attention.describe(s);
  s.field("k", k, "Kept keys per query and head; 0 = as trained", {.min = 0});
  s.field("query_skip", query_skip, "The estimator runs on every f-th token", {.min = 1});
  s.choice("path", path, distill::kAttentionPaths, "dense: the T x T reference of a sparse method");
  s.field("sequence_length", sequence_length, "Tokens of a window; 0 = the model's positions",
          {.min = 0, .alias = "window"});
  s.field("max_windows", max_windows, "Only the first windows; 0 = all", {.min = 0});
}

void LogitRequest::validate() const {
  check(prompt.empty() != data.empty(), "logits: one of --prompt and --data is needed");
  check_logit_path(out);
}

data::Json write_logits(nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                        const LogitRequest& what, const distill::Messages& messages) {
  NoGrad off;
  what.validate();
  check(m.model->has_logits(), "logits: ", m.directory, " has no head for tokens",
        m.model->labels() > 0 ? "; brine predict prints what a classifier finds" : "");
  const Tensor tokens = tokens_of(m, tokenizer, what, messages);
  const bool many = tokens.rank() == 2;
  const Tensor texts = many ? tokens : tokens.view({1, tokens.numel()});
  Shape shape = tokens.shape();
  shape.push_back(m.model->shape().vocab_size);
  const nn::RuntimeOptions options{.k = what.k,
                                   .query_skip = what.query_skip,
                                   .dense_path = what.path == distill::AttentionPath::dense};
  LogitFile file(what.out, shape, tokens);
  distill::calibrate_on(m, texts.slice(0, 0, 1), messages);
  data::Json ids = data::Json::array();
  for (int64_t i = 0; i < texts.dim(0); ++i) {
    const Tensor text = texts.slice(0, i, 1);
    add_logits(file, *m.model, text, options);
    ids.push_back(std::vector(text.data<int32_t>(), text.data<int32_t>() + text.numel()));
  }
  file.commit();
  const nn::AttentionTraits traits = m.model->attention_traits();
  const char* path = data::name_of(what.path, distill::kAttentionPaths);
  return {{"attention", m.config.attention},
          {"k", what.k ? data::Json(what.k) : or_null(distill::kept_keys_of(m.config, 0))},
          {"query_skip", traits.query_skip ? data::Json(what.query_skip) : data::Json()},
          {"compute", name_of(compute_type())},
          {"path", traits.sparse ? data::Json(path) : data::Json()},
          {"out", what.out},
          {"shape", std::vector<int64_t>(shape.begin(), shape.end())},
          {"tokens", many ? ids : ids[0]}};
}

}  // namespace brine
