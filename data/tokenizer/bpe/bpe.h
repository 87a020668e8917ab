// Byte-level BPE as in GPT-2 and OPT: training, encoding, decoding and its files.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/config/named.h"
#include "data/tokenizer/bpe/bpe_merge.h"
#include "data/tokenizer/pipeline.h"

namespace brine::data {

struct BpeModel : TokenizerModel {                  // tokens spelled in the byte alphabet
  std::vector<std::pair<int32_t, int32_t>> merges;  // by rank
  bool add_prefix_space = false;                    // a text is read as if it started with a space
};

class BpeTokenizer : public PipelineTokenizer {
 public:
  // Checks the model: all 256 bytes present, tokens unique, merges of existing tokens. Errors start
  // with `where`, the source file.
  BpeTokenizer(BpeModel model, const std::string& where);

  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const override;
  std::string to_json() const override;
  std::string hash() const override;
  void save(const std::string& dir) const override;

  const BpeModel& model() const { return model_; }

 private:
  void check_bytes(const std::string& where);
  void check_merges(const std::string& where);
  void encode_piece(std::string_view text, WordCache& cache, std::vector<int32_t>& out,
                    std::vector<TextSpan>* offsets) const override;
  void encode_words(std::string_view text, WordCache& cache, std::vector<int32_t>& out) const;
  void trim_offsets(TokenRun& run, std::string_view text) const override;

  BpeModel model_;
  std::vector<std::string> bytes_;  // by id, decoded
  int32_t byte_ids_[256];
  MergeTable merges_;
};

// ---- training ----

// Which special tokens a new tokenizer has: those of OPT or those of BERT.
enum class SpecialTokens : uint8_t { decoder, encoder };
inline constexpr Named<SpecialTokens> kSpecialTokens[] = {{SpecialTokens::decoder, "decoder"},
                                                          {SpecialTokens::encoder, "encoder"}};
// In the order of their ids, from 0 on.
std::vector<std::string> special_tokens(SpecialTokens kind);

struct BpeTrainOptions {
  int64_t vocab_size = 4096;  // including special tokens and the 256 bytes
  int64_t min_count = 2;      // pairs seen less often are not merged
  std::vector<std::string> special = special_tokens(SpecialTokens::decoder);
};

// Learns merges from text given in pieces, each of which is cut into words separately.
class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainOptions options);
  void add(std::string_view text);  // well-formed UTF-8
  // Repeatedly merges the most frequent pair (with the smallest ids on a tie). The vocabulary is
  // smaller than requested when the text has no more pairs with min_count.
  std::unique_ptr<BpeTokenizer> train() const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return WordCache::hash(word); }
  };
  BpeTrainOptions options_;
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> words_;
};

// Trains on text files, read by read_text().
std::unique_ptr<BpeTokenizer> train_bpe(const std::vector<std::string>& files,
                                        const BpeTrainOptions& options);

// ---- files ----

// The canonical tokenizer.json without vocabulary, merges and added tokens.
std::string bpe_frame();
// From a tokenizer.json (both spellings of merges), with the two configuration files next to it.
std::unique_ptr<BpeTokenizer> load_bpe_json(const std::string& path);
// From a directory with vocab.json and merges.txt.
std::unique_ptr<BpeTokenizer> load_bpe_vocab(const std::string& dir);

}  // namespace brine::data
