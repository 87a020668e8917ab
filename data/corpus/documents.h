// A corpus as documents in pieces of bounded size, for files of any size.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "data/io/byte_source.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// A document is a text file or a line of a file named .jsonl. Its pieces
// are consecutive; tokenised separately they give the tokens of the whole.
struct DocumentPiece {
  std::string_view text;            // valid during the call
  bool begins = true, ends = true;  // a document
};

struct DocumentOptions {
  std::string key = "text";             // of a line of .jsonl
  size_t piece_bytes = 1 << 20;         // approximate length of pieces
  size_t max_uncut = 16 << 20;          // longer text without a position to cut is an error
  size_t max_line = size_t(256) << 20;  // a longer line of .jsonl is an error
};

// Reads `path` (plain or in gzip) and calls `put` for every piece. Documents without text are
// skipped. Throws an Error that names the file and the byte or line.
void read_documents(const Path& path, const Tokenizer& tokenizer, const DocumentOptions& options,
                    const std::function<void(const DocumentPiece&)>& put);

// The same for a single document, the lines of all files joined by two newlines (joined_lines.h).
// Lines of JSON are text here.
void read_joined_document(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                          const DocumentOptions& options,
                          const std::function<void(const DocumentPiece&)>& put);

// The last position in text[0, limit] at which the text may be cut: before a space or newline that
// follows another character, where the tokens of the surrounding bytes are those of their two
// halves. 0: none.
size_t last_cut(std::string_view text, size_t limit, const Tokenizer& tokenizer);

}  // namespace brine::data
