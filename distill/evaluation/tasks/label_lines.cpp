// A classifier's labels for lines of text, or of pairs of texts separated by a tab.
#include "distill/evaluation/tasks/label_lines.h"

#include <algorithm>

namespace brine::distill {
namespace {

TextLine line_of(const std::string& place, std::string_view line, bool pairs) {
  const size_t tab = line.find('\t');
  const bool one = tab != std::string_view::npos;
  const bool more = one && line.find('\t', tab + 1) != std::string_view::npos;
  check(!more && (one || !pairs), place,
        pairs ? ": the model needs a pair of texts separated by one tab"
              : ": has more than one tab; a pair of texts is separated by one");
  if (!one) return {.first = std::string(line)};
  return {.first = std::string(line.substr(0, tab)), .second = std::string(line.substr(tab + 1))};
}

std::vector<std::string> class_names(const nn::LoadedModel& model) {
  std::vector<std::string> names = model.config.family().class_head().names;
  for (int64_t i = int64_t(names.size()); i < model.model->labels(); ++i) {
    names.push_back(join("LABEL_", i));
  }
  return names;
}

}  // namespace

std::vector<TextLine> text_lines(const std::string& name, std::string_view text, bool pairs) {
  std::vector<TextLine> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line_of(join(name, ":", lines.size() + 1), line, pairs));
  }
  return lines;
}

bool wants_pairs(const nn::ModelConfig& config) {
  const std::vector<data::Task>& known = data::tasks();
  return std::any_of(known.begin(), known.end(), [&](const data::Task& task) {
    return task.name == config.family().class_head().task && task.pairs();
  });
}

std::vector<LineLabel> label_lines(const nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                                   const std::vector<TextLine>& lines, int64_t max_tokens,
                                   const TaskCall& call) {
  if (lines.empty()) return {};
  const int64_t positions = model.config.shape().max_positions;
  const int64_t max_length = max_tokens ? max_tokens : positions;
  check(max_length <= positions, "predict: texts of ", max_length,
        " tokens are longer than the model's ", positions, " positions");
  TaskCall of_head = call;
  of_head.problem = model.config.family().class_head().problem.value_or(nn::Problem::single_label);
  const bool regression = model.model->labels() == 1 && of_head.problem == nn::Problem::regression;
  const std::vector<std::string> names = class_names(model);
  auto tokens = std::make_shared<data::TaskTokens>(
      data::TaskTokens{.labels = regression ? std::vector<std::string>{} : names,
                       .labelled = false,
                       .regression = regression});
  const data::TextEncoder encoder(tokenizer, max_length);
  for (const TextLine& line : lines) {
    tokens->texts.push_back(line.second ? encoder.encode_pair(line.first, *line.second)
                                        : encoder.encode(line.first));
    tokens->longest = std::max(tokens->longest, int64_t(tokens->texts.back().ids.size()));
    tokens->cut_texts += tokens->texts.back().cut > 0;
  }
  tokens->targets.resize(lines.size());
  const TaskSource source(tokens, 0);
  const TaskAnswers answers = answer(*model.model, source, of_head);
  std::vector<LineLabel> out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const double predicted = answers.predictions[i];
    if (regression) {
      out.push_back({.name = "", .value = predicted});
    } else {
      out.push_back({.name = names[size_t(predicted)], .value = answers.probabilities[i]});
    }
  }
  return out;
}

}  // namespace brine::distill
