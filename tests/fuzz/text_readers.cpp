// Tokenizers and the files of tasks.
#include "data/tasks/task.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/fuzz/readers.h"
#include "tests/fuzz/targets.h"

namespace brine::fuzz {
namespace {

void use(const data::Tokenizer& tokenizer) {
  const std::string text = "The caf\u00e9's 3rd <mask> [MASK] </s> \u4e2d\u6587 e\u0301 \t\n ##a";
  std::vector<int32_t> ids = tokenizer.encode(text);
  for (int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) throw Find("an id outside of the vocabulary");
    tokenizer.token_of(id);
  }
  std::string pieces = ids.empty() ? "" : tokenizer.decode(std::span(ids).first(1));
  for (size_t i = 1; i < ids.size(); ++i) pieces += tokenizer.decode_next(ids[i]);
  if (tokenizer.decode(ids) != pieces) throw Find("a text that differs token by token");
  tokenizer.decode(ids, true);
  for (const auto* ids : {&tokenizer.around().front, &tokenizer.around().back})
    for (int32_t id : *ids)
      if (id < 0 || id >= tokenizer.vocab_size()) throw Find("a special token without an id");
  tokenizer.to_json();
  tokenizer.hash();
}

void load_parts(Dir dir, std::string_view bytes, std::vector<const char*> names) {
  names.insert(names.end(), {"tokenizer_config.json", "special_tokens_map.json", "config.json"});
  std::vector<std::string_view> parts = parts_of(bytes, names.size());
  for (size_t i = 0; i < parts.size(); ++i) write_input(dir / names[i], parts[i]);
  std::unique_ptr<data::Tokenizer> tokenizer = data::load_tokenizer(dir.string());
  use(*tokenizer);
}

}  // namespace

void read_tokenizer(Dir dir, std::string_view bytes) { load_parts(dir, bytes, {"tokenizer.json"}); }

void read_bpe(Dir dir, std::string_view bytes) {
  load_parts(dir, bytes, {"vocab.json", "merges.txt"});
}

void read_wordpiece(Dir dir, std::string_view bytes) { load_parts(dir, bytes, {"vocab.txt"}); }

void read_tsv(Dir dir, std::string_view bytes) {
  size_t end = std::min(bytes.find('\n'), bytes.size());
  std::string_view head = bytes.substr(0, end);
  size_t space = std::min(head.find(' '), head.size());
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  for (const data::Task& task : data::tasks()) {
    if ((task.folder.empty() && !task.user_files) || task.name != head.substr(0, space)) continue;
    for (data::TaskSplit split : task.splits) {
      if (task.user_files) split.file = split.name == "train" ? "train.tsv" : "user.jsonl";
      if (" " + split.name != head.substr(space)) continue;
      write_input(dir / split.file, bytes);
      data::TaskExamples examples = data::read_task(task, dir, split);
      for (const data::TaskExample& e : examples.rows) {
        bool known = task.regression() ? e.target >= task.lowest && e.target <= task.highest
                                       : e.target >= 0 && e.target < double(examples.labels.size());
        if (split.labelled && !known) throw Find("a target that the task has not");
      }
    }
  }
}

}  // namespace brine::fuzz
