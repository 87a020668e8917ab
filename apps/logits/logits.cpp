// What `brine logits` computes: a model's logits of a prompt or of windows of text.
#include "apps/logits/logits.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/logits/logit_file.h"
#include "autograd/compute_type.h"
#include "data/corpus/corpus.h"
#include "data/io/json.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/inputs/task_split.h"
#include "distill/runs/training_run.h"

namespace brine {
namespace {

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
