// A corpus as documents in pieces of bounded size, whatever the size of its files.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "data/io/byte_source.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// A document is a file of text (also each one inside an archive) or a line of a file named .jsonl.
// Its pieces follow each other; each tokenised by itself gives the tokens of the whole.
struct DocumentPiece {
  std::string_view text;            // valid during the call
  bool begins = true, ends = true;  // a document
};

struct DocumentOptions {
  std::string key = "text";              // of a line of .jsonl
  size_t piece_bytes = 1 << 20;          // pieces are about as long
  size_t most_uncut = 16 << 20;          // longer text without a place to cut is an error
  size_t most_line = size_t(256) << 20;  // as is a longer line of .jsonl
};

// Reads `path` (see for_each_file) and calls `put` for every piece. Documents without text are left
// out. Throws Error naming the file, the member and the byte or line.
void read_documents(const Path& path, const Tokenizer& tokenizer, const DocumentOptions& options,
                    const std::function<void(const DocumentPiece&)>& put);

// The same of one document, the lines of all files joined by two newlines (joined_lines.h). Files
// are text as it is: neither archives nor lines of JSON are unwrapped.
void read_joined_document(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                          const DocumentOptions& options,
                          const std::function<void(const DocumentPiece&)>& put);

// The last place in text[0, limit] at which it may be cut: before a space or newline that follows
// something else, where the tokens of some bytes around are those of their two halves. 0: none.
size_t last_cut(std::string_view text, size_t limit, const Tokenizer& tokenizer);

}  // namespace brine::data
