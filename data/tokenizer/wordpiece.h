// WordPiece as in BERT: words cut at white space and punctuation, each spelled by the longest
// pieces of the vocabulary from its start.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/pipeline.h"

namespace brine::data {

struct WordPieceModel : TokenizerModel {
  int32_t unk = -1;                   // for words that the vocabulary cannot spell
  std::string prefix = "##";          // of pieces that continue a word
  int64_t longest_word = 100;         // characters; longer words are unknown
  std::string decoder_prefix = "##";  // removed again by decode()
  bool has_decoder = true;            // otherwise decode() puts single spaces between all tokens
  bool clean_up = true;               // decode() removes spaces before punctuation
};

class WordPieceTokenizer : public PipelineTokenizer {
 public:
  // Errors start with `where`, the source file.
  WordPieceTokenizer(WordPieceModel model, const std::string& where);

  std::string to_json() const override;
  std::string hash() const override;
  std::string transformers_class() const override { return "BertTokenizer"; }
  void save(const std::string& dir) const override;

  const WordPieceModel& model() const { return model_; }

 private:
  using Pieces = std::unordered_map<std::string_view, int32_t>;
  void encode_piece(const Piece& piece, WordCache& cache, std::vector<int32_t>& out) const override;
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;
  std::string decoded(int32_t id, bool first) const override;

  WordPieceModel model_;
  Pieces first_, next_;  // pieces that start a word; that continue one, without the prefix
  size_t longest_first_ = 0, longest_next_ = 0;  // bytes
};

// tokenizer.json of BERT without its contents.
nlohmann::ordered_json wordpiece_frame();
// From a tokenizer.json with the files next to it, or a directory with vocab.txt.
std::unique_ptr<WordPieceTokenizer> load_wordpiece_json(struct TokenizerFile file);
std::unique_ptr<WordPieceTokenizer> load_wordpiece_vocab(const std::string& dir);

}  // namespace brine::data
