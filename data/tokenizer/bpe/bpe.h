// BPE: of bytes, as in GPT-2, OPT, Llama 3 and Qwen, or of characters with bytes for unknown ones,
// as in Llama 2 and Mistral. Training, encoding, decoding and its files.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/config/named.h"
#include "data/tokenizer/bpe/bpe_merge.h"
#include "data/tokenizer/bpe/pretokenizer.h"
#include "data/tokenizer/pipeline.h"

namespace brine::data {

// From the tokens of BPE back to bytes: the "decoder" of tokenizer.json.
// A text is the bytes of its tokens, one after the other, and at most its start depends on the
// token being the first one: so a text can be shown token by token.
class Decoder {
 public:
  Decoder() = default;  // ByteLevel
  // From null (tokens as they are spelled, with spaces between), ByteLevel, Metaspace, or a
  // Sequence of Replace (of a String), Metaspace, ByteFallback, Fuse and Strip. Others, and an
  // order that `tokenizers` reads differently, are an error that starts with `where`.
  Decoder(const nlohmann::json& description, const std::string& where);

  bool byte_level() const { return byte_level_; }
  // Whether there is none: null.
  bool none() const { return none_; }
  // The bytes of a token that follows others.
  std::string bytes_of(std::string_view token) const;
  // Whether the bytes of a text's first token may be others than bytes_of().
  bool first_differs() const { return none_ || drops_first_ || strip_ > 0; }
  // The bytes of the text's first token.
  std::string first_bytes_of(std::string_view token) const;

 private:
  struct Step {
    enum class Kind : uint8_t { replace, metaspace, byte_fallback, strip };
    Kind kind;
    std::string from = {}, to = {};  // strip: `from`
    size_t start = 0, stop = 0;      // strip: how often, at most
  };
  void add(const nlohmann::json& description, const std::string& where, bool inside);
  void add_strip(const nlohmann::json& description, const std::string& where);

  std::vector<Step> steps_;
  bool byte_level_ = true, none_ = false, fused_ = false, drops_first_ = false;
  std::string strip_text_;  // removed at the start of the whole text, up to strip_ times
  size_t strip_ = 0;
};

struct BpeModel : TokenizerModel {
  std::vector<std::pair<int32_t, int32_t>> merges;  // by rank
  PreTokenizer pre_tokenizer;  // if it is byte-level, tokens are spelled in the byte alphabet
  Decoder decoder;
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges give
  bool byte_fallback = false;  // a character without a token becomes tokens like <0x0A>
  std::optional<int32_t> unk = {};  // else such characters become this token, or are dropped
  bool fuse_unk = false;            // several in a row become one
  // GPT-2's, which the older files vocab.json and merges.txt describe, too.
  bool is_gpt2() const;
};

class BpeTokenizer : public PipelineTokenizer {
 public:
  // Checks the model: tokens unique, merges of existing tokens, and the tokens of bytes: all 256 of
  // byte_fallback, and at least one of byte-level BPE, which drops the bytes that have none, as
  // `tokenizers` does. Errors start with `where`, the source file.
  BpeTokenizer(BpeModel model, const std::string& where);

  std::string to_json() const override;
  std::string hash() const override;
  std::string transformers_class() const override;
  void save(const std::string& dir) const override;

  const BpeModel& model() const { return model_; }

 private:
  std::string decoded(int32_t id, bool first) const override;
  void find_bytes(const std::string& where);
  void check_merges(const std::string& where);
  bool spaces_lead() const;
  void encode_piece(const Piece& piece, WordCache& cache, std::vector<int32_t>& out) const override;
  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const;
  // The tokens of a word before any merge.
  void spell(std::string_view word, std::vector<int32_t>& out) const;
  // The end of the characters from `at` on that become one unknown token.
  size_t unknown_end(std::string_view word, size_t at) const;
  void cut_at_spaces(std::string_view text, const PreTokenizer::UseWord& use) const;

  BpeModel model_;
  std::vector<std::string> bytes_;  // by id: Decoder::bytes_of()
  int32_t byte_ids_[256];           // -1: no token
  // Whether no token has a U+2581 after another character: then words may be cut before each one.
  bool spaces_lead_ = false;
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

// The canonical tokenizer.json of GPT-2's kind without vocabulary, merges and added tokens.
std::string bpe_frame();
// The "pre_tokenizer" of Qwen 2 and 3.
nlohmann::json qwen2_pre_tokenizer();
// Adds merges "left right", in the order of their ranks; errors start with `where`.
void add_merges(std::span<const std::string> lines, const std::string& where, BpeModel& model);
// The "post_processor" that puts bos in front of every text, and eos after it.
nlohmann::json template_around(const TokenizerModel& model, std::optional<int32_t> bos,
                               std::optional<int32_t> eos);
// From a tokenizer.json (both spellings of merges), with the two configuration files next to it.
std::unique_ptr<BpeTokenizer> load_bpe_json(const struct TokenizerFile& file);
// From a directory with vocab.json and merges.txt.
std::unique_ptr<BpeTokenizer> load_bpe_vocab(const std::string& dir);

}  // namespace brine::data
