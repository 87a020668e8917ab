// What `brine logits` computes: a model's logits of a prompt, of windows of text or of lines.
#include "apps/logits/logits.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/logits/logit_file.h"
#include "autograd/compute_type.h"
#include "data/corpus/corpus.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tasks/task_tokens.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/evaluation/tasks/label_lines.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/inputs/task_split.h"
#include "distill/runs/training_run.h"

namespace brine {
namespace {

using Ids = std::vector<int32_t>;

// All texts, before any of them is computed: the head of the file has their number and length.
struct Texts {
  std::vector<Ids> ids, type_ids = {};  // type_ids only of a classifier
  bool many = false;                    // the file has an axis for them

  int64_t longest() const {
    size_t largest = 0;
    for (const Ids& text : ids) largest = std::max(largest, text.size());
    return int64_t(largest);
  }
};

void check_length(const std::string& place, size_t tokens, const nn::ModelShape& shape) {
  check(int64_t(tokens) <= shape.max_positions, "logits: ", place, " has ", tokens,
        " tokens, the model ", shape.max_positions, " positions");
}

Texts texts_of(const nn::LoadedModel& m, const data::Tokenizer& tokenizer, const LogitRequest& what,
               const distill::Messages& messages) {
  if (!what.prompt.empty()) {
    Ids ids = data::prompt_tokens(tokenizer, what.prompt, [&](const std::string& warning) {
      messages.warning("logits: the prompt: ", warning);
    });
    check_length("the prompt", ids.size(), m.config.shape());
    return {.ids = {std::move(ids)}};
  }
  const int64_t window = distill::window_of(what.sequence_length, m.config, "logits");
  const data::TokenCorpus corpus = distill::load_texts(what.data, tokenizer, window, 1, messages);
  const int64_t all = corpus.windows();
  Texts out{.ids = {}, .many = true};
  for (int64_t i = 0; i < (what.max_windows ? std::min(what.max_windows, all) : all); ++i) {
    out.ids.push_back(corpus.window(i));
  }
  return out;
}

// Lines as `brine predict` reads them, but none is cut.
Texts lines_of(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
               const LogitRequest& what) {
  const std::optional<bool> pairs = distill::takes_pairs(m.config.family().class_head());
  const bool prompt = !what.prompt.empty();
  const data::TextEncoder encoder(tokenizer, m.config.shape().max_positions);
  Texts out{.ids = {}, .many = !prompt};
  auto add = [&](const std::string& name, const std::string& text) {
    const std::vector<distill::TextLine> lines = distill::text_lines(name, text, pairs);
    check(!prompt || lines.size() == 1, "logits: a classifier takes one line for a prompt, not ",
          lines.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      if (what.max_windows && int64_t(out.ids.size()) == what.max_windows) return;
      const data::TextTokens tokens = lines[i].second
                                          ? encoder.encode_pair(lines[i].first, *lines[i].second)
                                          : encoder.encode(lines[i].first);
      check_length(prompt ? name : join(name, ":", i + 1), tokens.ids.size() + size_t(tokens.cut),
                   m.config.shape());
      Ids segments(tokens.ids.size(), 1);
      std::fill_n(segments.begin(), tokens.first, 0);
      out.ids.push_back(tokens.ids);
      out.type_ids.push_back(std::move(segments));
    }
  };
  if (prompt) add("the prompt", what.prompt);
  for (const std::string& file : what.data) add(file, data::read_text(file));
  return out;
}

// Texts as i32 [n, T], shorter ones filled with -1, or of one text [T].
Tensor table(const std::vector<Ids>& rows, const Texts& texts) {
  const int64_t T = texts.longest(), n = int64_t(rows.size());
  Ids flat(size_t(n * T), -1);
  for (int64_t i = 0; i < n; ++i) {
    std::copy(rows[size_t(i)].begin(), rows[size_t(i)].end(), flat.begin() + i * T);
  }
  return Tensor::from(flat, texts.many ? Shape{n, T} : Shape{T});
}

struct Computation {
  nn::Model& model;
  nn::RuntimeOptions options;
  LogitFile& file;

  Tensor hidden(const Ids& ids, const Ids* type_ids) const {
    const Shape shape{1, int64_t(ids.size())};
    return model
        .hidden({.ids = Tensor::from(ids, shape),
                 .type_ids = type_ids ? Tensor::from(*type_ids, shape) : Tensor(),
                 .options = options})
        .detach();
  }

  void classify(const Ids& ids, const Ids& type_ids) const {
    file.write(model.class_logits(hidden(ids, &type_ids)).detach());
  }

  void predict_tokens(const Ids& ids) const {
    Tensor x = hidden(ids, nullptr);
    x = x.view({-1, x.dim(-1)});
    const int64_t rows = x.dim(0);
    const int64_t step = std::max<int64_t>(1, (int64_t(1) << 24) / model.shape().vocab_size);
    for (int64_t first = 0; first < rows; first += step) {
      file.write(model.logits(x.slice(0, first, std::min(step, rows - first))).detach());
    }
  }
};

}  // namespace

void LogitRequest::describe(data::Schema& s) {
  s.field("prompt", prompt, "One text, with the tokens that the tokenizer adds to a text",
          {.then = [this] { check(!prompt.empty(), "--prompt is empty, wanted a text"); }});
  s.field("data", data,
          "Text files or token shards; of a classifier lines, pairs separated by a tab");
  s.field("out", out, "File to write, .npy or .safetensors (with token ids); none: print",
          {.required = true});
  attention.describe(s);
  s.field("k", k, "Kept keys per query and head; 0 = as trained", {.min = 0});
  s.field("query_skip", query_skip, "The estimator runs on every f-th token", {.min = 1});
  s.choice("path", path, distill::kAttentionPaths, "dense: the T x T reference of a sparse method");
  s.field("sequence_length", sequence_length, "Tokens of a window; 0 = the model's positions",
          {.min = 0, .alias = "window"});
  s.field("max_windows", max_windows, "Only the first windows or lines; 0 = all", {.min = 0});
}

void LogitRequest::validate() const {
  check(prompt.empty() != data.empty(), "logits: one of --prompt and --data is needed");
  check_logit_path(out);
}

data::Json write_logits(nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                        const LogitRequest& what, const distill::Messages& messages) {
  NoGrad off;
  what.validate();
  const bool classifier = m.model->labels() > 0;
  check(classifier || m.model->has_logits(), "logits: ", m.directory, " has no head");
  const Texts texts =
      classifier ? lines_of(m, tokenizer, what) : texts_of(m, tokenizer, what, messages);
  const int64_t n = int64_t(texts.ids.size());
  check(n > 0, "logits: ", what.data[0], ": has no line");
  Shape shape = texts.many ? Shape{n} : Shape{};
  if (!classifier) shape.push_back(texts.longest());
  shape.push_back(classifier ? m.model->labels() : m.model->shape().vocab_size);
  std::vector<NamedTensor> ids = {{"tokens", table(texts.ids, texts)}};
  if (classifier) ids.push_back({"type_ids", table(texts.type_ids, texts)});
  const nn::RuntimeOptions options{.k = what.k,
                                   .query_skip = what.query_skip,
                                   .dense_path = what.path == distill::AttentionPath::dense};
  LogitFile file(what.out, shape, std::move(ids));
  distill::calibrate_on(m, Tensor::from(texts.ids[0], {1, int64_t(texts.ids[0].size())}), messages);
  const Computation compute{*m.model, options, file};
  for (size_t i = 0; i < texts.ids.size(); ++i) {
    if (classifier) {
      compute.classify(texts.ids[i], texts.type_ids[i]);
    } else {
      compute.predict_tokens(texts.ids[i]);
    }
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
          {"tokens", texts.many ? data::Json(texts.ids) : data::Json(texts.ids[0])}};
}

std::string id_lines(const data::Json& tokens) {
  const bool many = tokens.front().is_array();
  std::string out;
  for (const data::Json& row : many ? tokens : data::Json::array({tokens})) {
    for (const data::Json& id : row) out += json_text(id) + ",";
    if (!row.empty()) out.pop_back();
    out += "\n";
  }
  return out;
}

}  // namespace brine
