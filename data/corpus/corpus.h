// Plain text as windows of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus/token_shards.h"
#include "data/corpus/token_source.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// The whole text of JoinedLines (joined_lines.h): the lines of the files with two newlines between
// them.
std::string read_joined_lines(const std::vector<std::string>& files);

// A corpus cut into windows of T tokens that do not overlap; tokens at the end that do not fill a
// window are dropped. A window predicts its tokens from the second one on.
struct TokenCorpus {
  std::shared_ptr<const TokenSource> tokens;
  int64_t window_tokens = 0;  // T
  // SHA-256 of each file as read_text() returns it, or of the manifest of token shards.
  std::vector<std::string> text_hashes = {};
  // If all of it is token shards: each directory's, which remembers hash().
  std::vector<std::shared_ptr<TokenShards>> shards = {};

  int64_t windows() const { return tokens->size() / window_tokens; }
  // Tokens [i T, (i + 1) T); i outside [0, windows()) is an error.
  std::vector<int32_t> window(int64_t i) const;
  // Tokens at the end that are in no window.
  int64_t dropped() const { return tokens->size() % window_tokens; }
  // SHA-256, in hex, of all tokens as little-endian 32-bit numbers. T is not part of it. Reads all
  // tokens, but those of `shards` once: VerifiedFiles remembers the hash until a file changes.
  std::string hash() const;
};

// Concatenates the tokens of all paths in order: a file is read and tokenised as a whole; a
// directory contains token shards, which are mapped and must have been made with this tokenizer. T
// must be at least 2, and the text must fill at least one window.
TokenCorpus load_corpus(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                        int64_t window_tokens);

}  // namespace brine::data
