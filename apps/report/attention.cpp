// A text through a model.
#include "apps/report/attention.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/printable.h"
#include "data/io/utf8.h"
#include "distill/evaluation/keys_read.h"
#include "distill/evaluation/tasks/task_report.h"

namespace brine::report {
namespace {

std::string settings_of(const nn::ModelConfig& config) {
  data::Schema keys;
  config.method().describe(keys);
  return json_text(keys.to_json());
}

// A text without a query that sees more than k keys has no recall: 0 would say that all is lost.
void drop_without_rows(std::vector<distill::Recall>& layers) {
  const bool none = std::all_of(layers.begin(), layers.end(),
                                [](const distill::Recall& layer) { return layer.rows == 0; });
  if (none) layers.clear();
}

// The text of each token; "12" for an id without one. Never invalid UTF-8: what is not a part of a
// character is shown as "\xe2".
std::vector<std::string> token_texts(const data::Tokenizer* tokenizer,
                                     const std::vector<int32_t>& ids) {
  std::vector<std::string> out;
  out.reserve(ids.size());
  for (const int32_t id : ids) {
    if (!tokenizer || id < 0 || id >= tokenizer->vocab_size()) {
      out.push_back(std::to_string(id));
      continue;
    }
    const std::string text = tokenizer->decode_next(id);
    out.push_back(data::is_utf8(text) ? text : data::shown(text));
  }
  return out;
}

}  // namespace

Attention attention_of(nn::LoadedModel& m, const std::string& name, const distill::TextPass& pass) {
  const bool self = pass.teacher.empty() || pass.teacher == distill::kSelf;
  const std::string place = nn::tokenizer_place(m.directory);
  const auto tokenizer = place.empty() ? nullptr : data::load_tokenizer(place);
  Attention out{.name = name,
                .method = m.config.attention,
                .teacher = self ? "the model's own dense attention" : pass.teacher,
                .source = m.directory,
                .k = distill::kept_keys_of(m.config, pass.k).value_or(0),
                .settings = settings_of(m.config),
                .tokens = token_texts(tokenizer.get(), pass.ids),
                .text = distill::attend_to_text(m, pass)};
  out.keys_read = out.text.recall.empty()
                      ? distill::keys_of_all(m.config.shape(), int64_t(pass.ids.size()))
                      : distill::mask_rows(out.text.recall).back().keys_read;
  drop_without_rows(out.text.recall);
  return out;
}

}  // namespace brine::report
