// Training of byte-level BPE. The counts of pairs are updated incrementally: a merge visits only
// the words that contain its pair.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>

#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/bpe/byte_alphabet.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct PairInfo {
  Pair pair;
  int64_t count = 0;                // neighbours in all words, each word counted as often as it
                                    // occurs
  std::vector<int32_t> words = {};  // those that contain the pair, and perhaps some that no longer
                                    // do
  bool touched = false;             // its count has grown during this merge
};

class Learner {
 public:
  void add_word(std::vector<int32_t> word, int64_t count) {
    const auto index = int32_t(words_.size());
    for (size_t i = 0; i + 1 < word.size(); ++i) grow(word[i], word[i + 1], count, index);
    words_.push_back({std::move(word), count});
  }

  void forget(Pair pair) { pairs_[index_.at(pair_key(pair))].count = 0; }

  // The most frequent pair, with the smallest ids on a tie; nothing below min_count.
  std::optional<Pair> best(int64_t min_count) {
    requeue();
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      if (top.count < min_count) return std::nullopt;
      queue_.pop();
      const int64_t now = pairs_[index_.at(pair_key(top.pair))].count;
      if (now == top.count) return top.pair;
      // Counts in the queue are never too low, so an entry whose count decreased is inserted again.
      if (now > 0) queue_.push({now, top.pair});
    }
    return std::nullopt;
  }

  void merge(Pair pair, int32_t id) {
    PairInfo& info = pairs_[index_.at(pair_key(pair))];
    const std::vector<int32_t> words = std::move(info.words);
    info.words.clear();
    for (int32_t word : words) merge_in(words_[size_t(word)], word, pair, id);
    pairs_[index_.at(pair_key(pair))].count = 0;
  }

 private:
  struct Word {
    std::vector<int32_t> ids;
    int64_t count;
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void grow(int32_t left, int32_t right, int64_t count, int32_t word) {
    auto [found, is_new] = index_.emplace(pair_key({left, right}), int32_t(pairs_.size()));
    if (is_new) pairs_.push_back({.pair = {left, right}});
    PairInfo& info = pairs_[size_t(found->second)];
    info.count += count;
    if (info.words.empty() || info.words.back() != word) info.words.push_back(word);
    if (!info.touched) touched_.push_back(found->second);
    info.touched = true;
  }

  void shrink(int32_t left, int32_t right, int64_t count) {
    pairs_[size_t(index_.at(pair_key({left, right})))].count -= count;
  }

  void merge_in(Word& word, int32_t index, Pair pair, int32_t id) {
    std::vector<int32_t>& ids = word.ids;
    size_t out = 0;
    for (size_t i = 0; i < ids.size(); ++out) {
      if (i + 1 == ids.size() || ids[i] != pair.first || ids[i + 1] != pair.second) {
        ids[out] = ids[i++];
        continue;
      }
      if (out > 0) {
        shrink(ids[out - 1], pair.first, word.count);
        grow(ids[out - 1], id, word.count, index);
      }
      if (i + 2 < ids.size()) {
        shrink(pair.second, ids[i + 2], word.count);
        grow(id, ids[i + 2], word.count, index);
      }
      ids[out] = id;
      i += 2;
    }
    ids.resize(out);
  }

  void requeue() {
    for (int32_t index : touched_) {
      PairInfo& info = pairs_[size_t(index)];
      info.touched = false;
      if (info.count > 0) queue_.push({info.count, info.pair});
    }
    touched_.clear();
  }

  std::vector<Word> words_;
  std::vector<PairInfo> pairs_;
  std::unordered_map<uint64_t, int32_t> index_;  // into pairs_
  std::vector<int32_t> touched_;
  std::priority_queue<Candidate> queue_;
};

// The special tokens and the 256 bytes.
BpeModel start_of(const BpeTrainOptions& options) {
  const auto least = int64_t(options.special.size()) + 256;
  check(options.vocab_size >= least, "tokenizer: a vocabulary of ", options.vocab_size,
        " is too small for 256 bytes and ", options.special.size(), " special tokens; at least ",
        least, " are needed");
  check(options.vocab_size <= INT32_MAX, "tokenizer: a vocabulary of ", options.vocab_size,
        " is larger than ids of 32 bits allow");
  BpeModel model;
  for (const std::string& name : options.special) {
    check(is_utf8(name), "tokenizer: a special token is not UTF-8");
    model.added.push_back({.id = int32_t(model.tokens.size()), .content = name});
    model.tokens.push_back(name);
  }
  for (uint8_t byte : bytes_by_character())
    model.tokens.push_back(spell_bytes(std::string(1, char(byte))));
  auto role = [&](const char* name) { return find_token(model, name); };
  auto either = [](std::optional<int32_t> a, std::optional<int32_t> b) { return a ? a : b; };
  // As in OPT, one token both ends a text and precedes one.
  model.special = {.bos = role("</s>"),
                   .eos = role("</s>"),
                   .pad = either(role("<pad>"), role("[PAD]")),
                   .unk = either(role("<unk>"), role("[UNK]")),
                   .cls = role("[CLS]"),
                   .sep = role("[SEP]"),
                   .mask = role("[MASK]")};
  if (model.special.cls && model.special.sep) {
    Json frame = parse_ordered_json(bpe_frame());
    add_bert_template(model, frame, "tokenizer");
    model.frame = json_text(frame);
  }
  return model;
}

}  // namespace

std::vector<std::string> special_tokens(SpecialTokens kind) {
  if (kind == SpecialTokens::encoder) return {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  return {"<s>", "<pad>", "</s>", "<unk>"};
}

BpeTrainer::BpeTrainer(BpeTrainOptions options) : options_(std::move(options)) {
  start_of(options_);
}

void BpeTrainer::add(std::string_view text) {
  const size_t bad = find_invalid_utf8(text);
  check(bad == kValidUtf8, "tokenizer: the training text is not UTF-8 at byte offset ", bad);
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = gpt2_word_end(text, at);
    const std::string_view word = text.substr(at, end - at);
    auto known = words_.find(word);
    if (known == words_.end()) known = words_.emplace(word, 0).first;
    ++known->second;
  }
}

std::unique_ptr<BpeTokenizer> BpeTrainer::train() const {
  BpeModel model = start_of(options_);
  int32_t byte_ids[256];
  for (size_t i = 0; i < 256; ++i)
    byte_ids[bytes_by_character()[i]] = int32_t(options_.special.size() + i);
  Learner learner;
  for (const auto& [word, count] : words_) {
    std::vector<int32_t> ids;
    for (char c : word) ids.push_back(byte_ids[uint8_t(c)]);
    learner.add_word(std::move(ids), count);
  }
  std::unordered_map<std::string, int32_t> known;
  for (size_t id = 0; id < model.tokens.size(); ++id) known.emplace(model.tokens[id], int32_t(id));
  const auto specials = int32_t(options_.special.size());
  while (int64_t(model.tokens.size()) < options_.vocab_size) {
    auto pair = learner.best(std::max<int64_t>(options_.min_count, 1));
    if (!pair) break;
    auto [left, right] = *pair;
    const std::string whole = model.tokens[size_t(left)] + model.tokens[size_t(right)];
    // If two pairs give the same token, both merges have the same id. Special tokens are never the
    // result of a merge.
    auto [found, is_new] = known.emplace(whole, int32_t(model.tokens.size()));
    if (found->second < specials) {
      learner.forget(*pair);
      continue;
    }
    if (is_new) model.tokens.push_back(whole);
    learner.merge(*pair, found->second);
    model.merges.push_back(*pair);
  }
  return std::make_unique<BpeTokenizer>(std::move(model), "tokenizer");
}

std::unique_ptr<BpeTokenizer> train_bpe(const std::vector<std::string>& files,
                                        const BpeTrainOptions& options) {
  check(!files.empty(), "tokenizer: no text to train on");
  BpeTrainer trainer(options);
  for (const std::string& file : files) trainer.add(read_text(file));
  return trainer.train();
}

}  // namespace brine::data
