// Tokenizers without a file: whole words by WordPiece.
#include "data/tasks/lra/lra_tokenizers.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/tasks/lra/listops.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/wordpiece.h"

namespace brine::data {
namespace {

// tokenizer.json without vocabulary and added tokens: texts are not normalized.
constexpr const char* kWordFrame = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
  "normalizer": null,
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": null,
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
  "model": {
    "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100, "vocab": {}}})";

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
  Json frame = parse_ordered_json(kWordFrame);
  add_bert_template(model, frame, name);
  model.frame = json_text(frame);
  return std::make_unique<WordPieceTokenizer>(std::move(model), name);
}

}  // namespace

std::unique_ptr<Tokenizer> listops_tokenizer() {
  return word_tokenizer(listops_tokens(), "the tokenizer of listops");
}

}  // namespace brine::data
