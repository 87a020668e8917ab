// Joined lines, cut from blocks and returned on request.
#include "data/corpus/joined_lines.h"

#include <algorithm>
#include <cstring>

#include "data/io/utf8.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr size_t kBlock = 256 << 10;

bool is_blank(std::string_view line) {
  for (size_t at = 0; at < line.size();)
    if (char_class(next_char(line, at)) != CharClass::kSpace) return false;
  return true;
}

}  // namespace

JoinedLines::JoinedLines(std::vector<std::string> files, size_t max_line)
    : files_(std::move(files)), max_line_(max_line) {
  check(!files_.empty(), "corpus: no text files");
}

// The next line of the file with its newline; false at the end of the file.
bool JoinedLines::next_line(std::string& line) {
  size_t end;
  while ((end = held_.find('\n', searched_)) == held_.npos) {
    held_.erase(0, begin_);
    begin_ = 0;
    searched_ = held_.size();
    check_format(held_.size() <= max_line_, name(), ": the line at byte offset ", offset_,
                 " is longer than ", max_line_, " bytes");
    held_.resize(searched_ + kBlock);
    const size_t n = source_->read(held_.data() + searched_, kBlock);
    held_.resize(searched_ + n);
    if (n == 0) break;
  }
  if (begin_ == held_.size()) return false;
  end = std::min(end, held_.size() - 1) + 1;
  line = held_.substr(begin_, end - begin_);
  refuse_malformed(name(), line, offset_);
  if (offset_ == 0) line.erase(0, line.size() - without_mark(line).size());
  if (line.empty()) return false;  // at most the mark
  offset_ += end - begin_;
  begin_ = searched_ = end;
  return true;
}

void JoinedLines::add(std::string_view line) {
  if (!first_) ready_ += "\n\n";
  first_ = false;
  if (!is_blank(line)) ready_ += line;
}

size_t JoinedLines::read(char* out, size_t max_bytes) {
  std::string line;
  while (given_ == ready_.size()) {
    ready_.clear();
    given_ = 0;
    if (!source_) source_ = open_unpacked(files_[at_]);
    while (ready_.size() < kBlock && next_line(line)) add(line);
    if (!ready_.empty()) break;
    if (offset_ == 0) throw Error(files_[at_] + ": the file contains no text", ErrorKind::format);
    if (at_ + 1 == files_.size()) return 0;
    ++at_;
    source_.reset();
    held_.clear();
    begin_ = searched_ = 0;
    offset_ = 0;
  }
  const size_t n = std::min(max_bytes, ready_.size() - given_);
  std::memcpy(out, ready_.data() + given_, n);
  given_ += n;
  return n;
}

}  // namespace brine::data
