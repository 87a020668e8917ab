// What a prediction is: labels for lines of text, which are read strictly.
#include "distill/evaluation/tasks/prediction.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

#include "data/io/json.h"
#include "data/io/utf8.h"
#include "distill/inputs/task_split.h"

namespace brine::distill {

namespace {

TextLine line_of(const std::string& where, std::string_view line, std::optional<bool> pairs) {
  const size_t tab = line.find('\t');
  const bool one = tab != std::string_view::npos;
  const bool more = one && line.find('\t', tab + 1) != std::string_view::npos;
  check_format(!one || pairs.value_or(true), where,
               ": has a tab, as a pair of texts, but the model was made for single texts");
  check_format(!more && (one || !pairs.value_or(false)), where,
               pairs ? ": the model needs a pair of texts separated by one tab"
                     : ": has more than one tab; a pair of texts is separated by one");
  TextLine out{.first = std::string(line.substr(0, tab))};
  if (one) out.second = std::string(line.substr(tab + 1));
  check_format(!data::is_blank(out.first), where, ": the text is empty");
  check_format(!one || !data::is_blank(*out.second), where, ": the second text is empty");
  return out;
}

}  // namespace

std::vector<TextLine> text_lines(const std::string& name, std::string_view text,
                                 std::optional<bool> pairs) {
  std::vector<TextLine> lines;
  while (!text.empty()) {
    std::string_view line = data::take_part(text, '\n');
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
  }
  tokens->targets.resize(lines.size());
  const TaskSource source(tokens, 0);
  const TaskAnswers answers = answer(*model.model, source, of_head);
  std::vector<LineLabel> out;
  for (size_t i = 0; i < lines.size(); ++i) {
    LineLabel label{
        .name = "", .value = answers.predictions[i], .cut = source.tokens().texts[i].cut > 0};
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

namespace {

std::string read_all(std::istream& input) {
  std::string text{std::istreambuf_iterator<char>(input), {}};
  const size_t bad = data::find_invalid_utf8(text);
  check(bad == data::kValidUtf8, "stdin: not UTF-8 at byte offset ", bad);
  return std::string(data::without_mark(text));
}

// The texts of a .jsonl file, or of a TSV file by the names of its columns.
std::vector<TextLine> rows_of(const std::string& file, const std::string& fields,
                              std::optional<bool> pairs) {
  const size_t comma = fields.find(',');
  const bool two = comma != std::string::npos;
  check(!pairs || *pairs == two, "predict: --fields has ", two ? "two texts" : "one text",
        ", the model was made for ", two ? "single texts" : "pairs");
  std::vector<std::string> names = {fields.substr(0, comma)};
  if (two) names.push_back(fields.substr(comma + 1));
  std::vector<TextLine> lines;
  for (data::TaskRow& row : data::read_texts(file, names)) {
    lines.push_back({.first = std::move(row.first)});
    if (two) lines.back().second = std::move(row.second);
  }
  return lines;
}

std::vector<TextLine> lines_of(const Prediction& what, const nn::ClassHead& head,
                               std::istream& input) {
  const std::optional<bool> pairs = takes_pairs(head);
  std::vector<TextLine> lines;
  for (const std::string& file : what.texts.empty() ? std::vector<std::string>{"-"} : what.texts) {
    check(file != "-" || what.fields.empty(),
          "predict: --fields is of files, stdin has lines; name a file");
    const bool rows = file != "-" && (!what.fields.empty() || file.ends_with(".jsonl"));
    std::vector<TextLine> more =
        file == "-" ? text_lines("stdin", read_all(input), pairs)
        : rows      ? rows_of(file, what.fields.empty() ? text_fields(head) : what.fields, pairs)
                    : text_lines(file, data::read_text(file), pairs);
    std::move(more.begin(), more.end(), std::back_inserter(lines));
  }
  return lines;
}

// "name<TAB>0.9821<TAB>other<TAB>0.0179", or a score.
std::string line_of(const LineLabel& label) {
  std::string out;
  char number[32];
  for (const auto& [name, value] : label.all) {
    std::snprintf(number, sizeof number, "%.4f", value);
    out += join(out.empty() ? "" : "\t", name, "\t", number);
  }
  if (!label.all.empty()) return out;
  std::snprintf(number, sizeof number, "%.4f", label.value);
  return number;
}

std::string json_of(const TextLine& line, const LineLabel& label) {
  data::Json out = {{"text", line.first}};
  if (line.second) out["second"] = *line.second;
  out["label"] = label.all.empty() ? data::Json(label.value) : data::Json(label.name);
  for (const auto& [name, value] : label.all) out["probabilities"][name] = value;
  return json_text(out);
}

}  // namespace

void Prediction::describe(data::Schema& s) {
  s.field("texts", texts,
          "Files whose lines are labelled, pairs separated by a tab; none or -: stdin",
          {.positional = true});
  s.field("fields", fields,
          "Files are TSV: TEXT or TEXT,SECOND, by column; of .jsonl by key; none: lines");
  s.field("json", json, "Print a JSON object for each text");
  s.field("sequence_length", max_tokens, "Tokens of the longest text; 0 = the model's", {.min = 0});
  s.field("batch_size", answer.batch_size, "Texts at once", {.min = 1});
  s.field("k", answer.options.k, "Kept keys of a sparse attention; 0 = as trained", {.min = 0});
}

void predict(nn::LoadedModel& model, const data::Tokenizer& tokenizer, const Prediction& what,
             std::istream& input, std::ostream& labels, const Messages& messages) {
  check(model.model->labels() > 0, "predict: ", model.directory, " has no classification head");
  const std::vector<TextLine> lines = lines_of(what, model.config.family().class_head(), input);
  const std::vector<LineLabel> all =
      label_lines(model, tokenizer, lines, what.max_tokens, what.answer);
  const int64_t cut = std::ranges::count_if(all, &LineLabel::cut);
  if (cut > 0)
    messages.warning("predict: ", cut, " texts are longer than the model reads, and cut");
  for (size_t i = 0; i < all.size(); ++i)
    labels << (what.json ? json_of(lines[i], all[i]) : line_of(all[i])) << '\n';
}

}  // namespace brine::distill
