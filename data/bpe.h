// Byte-level BPE as of GPT-2 and OPT: training, encoding, decoding and its files.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/bpe_merge.h"
#include "data/tokenizer.h"

namespace brine::data {

// A token that is found in the text before anything else is done to it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = true;
  bool normalized = false;              // looked for after those that are not
  bool lstrip = false, rstrip = false;  // takes the white space on that side with it
};

// What the files of a tokenizer say.
struct BpeModel {
  std::vector<std::string> tokens;  // by id, in the byte alphabet; empty where no token has the id
  std::vector<std::pair<int32_t, int32_t>> merges;  // by rank
  std::vector<AddedToken> added;                    // by id; may or may not be among `tokens`
  bool add_prefix_space = false;                    // a text is read as if it began with a space
  SpecialIds special;
  // Kept to be written again; empty for the usual content.
  std::string frame;               // tokenizer.json without vocabulary, merges and added tokens
  std::string tokenizer_config;    // tokenizer_config.json
  std::string special_tokens_map;  // special_tokens_map.json
};

class BpeTokenizer : public Tokenizer {
 public:
  // Checks the model: all 256 bytes present, tokens unique, merges of tokens into tokens. Errors
  // begin with `where`, the file it came from.
  BpeTokenizer(BpeModel model, const std::string& where);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return int64_t(spelled_.size()); }
  SpecialIds special() const override { return model_.special; }
  std::optional<int32_t> id_of(std::string_view token) const override;
  const std::string& token_of(int32_t id) const override;
  std::string to_json() const override;
  std::string hash() const override;
  void save(const std::string& dir) const override;

  const BpeModel& model() const { return model_; }

 private:
  struct Found {
    size_t at, end;
    int32_t id;
  };
  // Added tokens of one kind, by first byte and longest first.
  struct Finder {
    std::vector<const AddedToken*> by_byte[256];
    bool any = false;
    void add(const AddedToken& token);
    // The first token at or after `from`; at = text.size() if there is none.
    Found next(std::string_view text, size_t from) const;
  };
  void check_bytes(const std::string& where);
  void check_merges(const std::string& where);
  void encode_pass(std::string_view text, int pass, WordCache& cache,
                   std::vector<int32_t>& out) const;
  void encode_plain(std::string_view text, WordCache& cache, std::vector<int32_t>& out) const;

  BpeModel model_;
  std::vector<std::string> spelled_;                   // by id, model and added tokens
  std::vector<std::string> bytes_;                     // by id, decoded
  std::unordered_map<std::string_view, int32_t> ids_;  // of spelled_
  int32_t byte_ids_[256];
  MergeTable merges_;
  Finder finders_[2];
  mutable std::mutex cache_mutex_;
  mutable WordCache cache_;
};

// ---- training ----

struct BpeTrainOptions {
  int64_t vocab_size = 4096;  // special tokens and the 256 bytes included
  int64_t min_count = 2;      // pairs seen less often are not merged
  // The ids from 0 on. The default is OPT's order.
  std::vector<std::string> special = {"<s>", "<pad>", "</s>", "<unk>"};
};

// Learns merges from text fed in pieces, each of which is cut into words by itself.
class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainOptions options);
  void add(std::string_view text);  // well-formed UTF-8
  // Repeatedly merges the most frequent pair (of the smallest ids among equals). The vocabulary is
  // smaller than asked for when the text has no more pairs of min_count.
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

// From a tokenizer.json (both spellings of merges), with the two configuration files beside it.
std::unique_ptr<BpeTokenizer> load_bpe_json(const std::string& path);
// From a directory with vocab.json and merges.txt.
std::unique_ptr<BpeTokenizer> load_bpe_vocab(const std::string& dir);

}  // namespace brine::data
