// A classifier's labels for lines of text, or of pairs of texts separated by a tab.
#include "distill/evaluation/tasks/label_lines.h"

#include <algorithm>
#include <tuple>

#include "distill/inputs/task_split.h"

namespace brine::distill {
namespace {

TextLine line_of(const std::string& place, std::string_view line, std::optional<bool> pairs) {
  const size_t tab = line.find('\t');
  const bool one = tab != std::string_view::npos;
  const bool more = one && line.find('\t', tab + 1) != std::string_view::npos;
  check_format(!one || pairs.value_or(true), place,
               ": has a tab, as a pair of texts, but the model was made for single texts");
  check_format(!more && (one || !pairs.value_or(false)), place,
               pairs ? ": the model needs a pair of texts separated by one tab"
                     : ": has more than one tab; a pair of texts is separated by one");
  TextLine out{.first = std::string(line.substr(0, tab))};
  if (one) out.second = std::string(line.substr(tab + 1));
  check_format(!data::is_blank(out.first), place, ": the text is empty");
  check_format(!one || !data::is_blank(*out.second), place, ": the second text is empty");
  return out;
}

}  // namespace

std::vector<TextLine> text_lines(const std::string& name, std::string_view text,
                                 std::optional<bool> pairs) {
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
  const std::vector<std::string> names = names_of(model.config.family().class_head());
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
    LineLabel label{.name = "", .value = answers.predictions[i]};
    if (!regression) {
      for (size_t c = 0; c < names.size(); ++c)
        label.all.emplace_back(names[c], answers.probabilities[i * names.size() + c]);
      std::stable_sort(label.all.begin(), label.all.end(),
                       [](const auto& a, const auto& b) { return a.second > b.second; });
      std::tie(label.name, label.value) = label.all.front();
    }
    out.push_back(std::move(label));
  }
  return out;
}

}  // namespace brine::distill
