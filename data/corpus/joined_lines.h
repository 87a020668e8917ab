// Text files as one text: their lines with two newlines between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/io/byte_source.h"

namespace brine::data {

// The lines of all files, joined as evaluations join WikiText: a line keeps its newline, a
// blank one (white space only) becomes the empty text. For lines "a", "", "b": "a\n" "\n\n" ""
// "\n\n" "b\n". Keeps one line in memory, and has the name of the file that it reads. A file
// without text, invalid UTF-8 and a line of more than `max_line` bytes are errors.
class JoinedLines : public ByteSource {
 public:
  explicit JoinedLines(std::vector<std::string> files, size_t max_line = size_t(256) << 20);
  size_t read(char* out, size_t max_bytes) override;
  const std::string& name() const override { return files_[at_]; }

 private:
  bool next_line(std::string& line);
  void add(std::string_view line);

  std::vector<std::string> files_;
  size_t max_line_;
  size_t at_ = 0;  // the file
  std::unique_ptr<ByteSource> source_;
  std::string held_;                 // a block, cut into lines up to begin_
  size_t begin_ = 0, searched_ = 0;  // no newline between the two
  uint64_t offset_ = 0;              // file offset of begin_
  bool first_ = true;
  std::string ready_;
  size_t given_ = 0;  // offset in ready_
};

}  // namespace brine::data
