// The reader of Long Range Arena's ListOps, and its tokenizer: whole words by WordPiece.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tasks/lra/listops.h"
#include "data/tasks/task_readers.h"
#include "data/tasks/tsv.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/wordpiece.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

// The expression's tokens with single spaces between them, without round brackets.
std::string plain(std::string_view source) {
  std::string out;
  while (!source.empty()) {
    const std::string_view word = take_part(source, ' ');
    if (word.empty() || word == "(" || word == ")") continue;
    if (!out.empty()) out += ' ';
    out += word;
  }
  return out;
}

void check_value(const TsvReader& row, const std::string& expression, double target) {
  int64_t value = 0;
  try {
    value = listops_value(expression);
  } catch (const Error& e) {
    row.check_row(false, e.what());
  }
  row.check_row(double(value) == target, "Target is ", target, ", but the expression's value is ",
                value);
}

}  // namespace

TaskExamples read_listops(const Task& task, const Path& dir, const TaskSplit& split) {
  TsvReader row(dir / split.file);
  TaskExamples out{.labels = task.labels, .rows = {}};
  const size_t source = row.column(task.first), target = row.column(task.label);
  while (row.next()) {
    const auto label = std::ranges::find(task.labels, row[target]);
    row.check_row(label != task.labels.end(), "Target '", row[target], "' is not a digit");
    TaskExample e{.first = plain(row[source]), .target = double(label - task.labels.begin())};
    check_value(row, e.first, e.target);
    out.rows.push_back(std::move(e));
  }
  return out;
}

namespace {

// BERT's pre-tokenizer cuts a word at every punctuation mark, so a word with one is an added token.
bool has_bracket(const std::string& word) { return word.find_first_of("[]") != std::string::npos; }

std::unique_ptr<Tokenizer> word_tokenizer(const std::vector<std::string>& words,
                                          const std::string& name) {
  WordPieceModel model;
  model.tokens = special_tokens(SpecialTokens::encoder);
  const size_t special = model.tokens.size();
  model.tokens.insert(model.tokens.end(), words.begin(), words.end());
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    if (id >= special && !has_bracket(model.tokens[id])) continue;
    model.added.push_back(
        {.id = int32_t(id), .content = model.tokens[id], .special = id < special});
  }
  model.special = {.pad = 0, .unk = 1, .cls = 2, .sep = 3, .mask = 4};
  model.unk = 1;
  model.clean_up = false;
  Json frame = wordpiece_frame();
  frame["normalizer"] = nullptr;  // texts are not normalized
  frame["decoder"]["cleanup"] = false;
  add_bert_template(model, frame, name);
  model.frame = json_text(frame);
  return std::make_unique<WordPieceTokenizer>(std::move(model), name);
}

}  // namespace

std::unique_ptr<Tokenizer> listops_tokenizer() {
  return word_tokenizer(listops_tokens(), "the tokenizer of listops");
}

}  // namespace brine::data
