// A header is a block of 512 bytes. Extended headers are separate members in front of the one
// that they describe: pax records ("LENGTH KEY=VALUE\n", types x and g) or GNU's names (L and K).
#include "data/io/archive/tar_headers.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "data/io/printable.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr size_t kSumAt = 148, kSumWidth = 8;
constexpr uint64_t kMostRecordBytes = 1 << 20;
constexpr uint64_t kMostLongNameBytes = 64 << 10;

// Octal digits between spaces, then a space or NUL; or big-endian with the top bit of the first
// byte set. Nothing where it is malformed or does not fit in 62 bits.
std::optional<uint64_t> number(std::string_view field) {
  uint64_t value = 0;
  if (uint8_t(field[0]) & 0x80) {
    for (size_t i = 0; i < field.size(); ++i) {
      if (value >> 54) return std::nullopt;
      value = value << 8 | (uint8_t(field[i]) & (i == 0 ? 0x7f : 0xff));
    }
    return value;
  }
  const size_t begin = std::min(field.find_first_not_of(' '), field.size());
  for (char c : field.substr(begin)) {
    if (c == ' ' || c == '\0') break;
    if (c < '0' || c > '7' || value >> 59) return std::nullopt;
    value = value << 3 | uint64_t(c - '0');
  }
  return value;
}

// The sum of a header's bytes, those of the sum itself taken as spaces. Old programs of BSD and
// Solaris added signed bytes.
bool sum_matches(std::string_view block) {
  int64_t sum = kSumWidth * ' ', sum_of_signed = sum;
  for (size_t i = 0; i < kTarBlock; ++i) {
    if (i >= kSumAt && i < kSumAt + kSumWidth) continue;
    sum += uint8_t(block[i]);
    sum_of_signed += int8_t(block[i]);
  }
  const std::optional<uint64_t> stored = number(block.substr(kSumAt, kSumWidth));
  return stored && (*stored == uint64_t(sum) || *stored == uint64_t(sum_of_signed));
}

std::string_view until_nul(std::string_view field) { return field.substr(0, field.find('\0')); }

// Digits alone; the whole of the text.
bool parse_digits(std::string_view text, uint64_t& value) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end;
}

// Takes the first record off `text`: its key and its value. A record's length counts itself, the
// space, the key, the value and the newline at the end.
std::pair<std::string_view, std::string_view> take_record(std::string_view& text,
                                                          const std::string& where) {
  const size_t space = text.substr(0, 21).find(' ');  // no longer number fits
  uint64_t length = 0;
  const bool numbered = space != text.npos && parse_digits(text.substr(0, space), length);
  check_format(numbered, where, " does not begin with its length");
  check_format(length <= text.size(), where, " has ", length, " bytes, there are ", text.size());
  check_format(length > space + 1 && text[size_t(length) - 1] == '\n', where,
               " does not end with a newline");
  const std::string_view record = text.substr(space + 1, size_t(length) - space - 2);
  const size_t equals = record.find('=');
  check_format(equals != record.npos && equals > 0, where, " is not KEY=VALUE");
  text.remove_prefix(size_t(length));
  return {record.substr(0, equals), record.substr(equals + 1)};
}

}  // namespace

bool is_tar(std::string_view head) {
  if (head.size() < kTarBlock) return false;
  return head.substr(257, 5) == "ustar" || (head[0] != '\0' && sum_matches(head));
}

std::string TarHeaders::where() const { return archive_ + ": " + shown(name_); }

void TarHeaders::take(std::string_view block) {
  if (complete_ || block.size() < kTarBlock) return;  // libarchive itself refuses a cut block
  if (left_ == 0) return take_header(block);
  const size_t n = size_t(std::min<uint64_t>(left_, kTarBlock));
  if (type_ == 'x' || type_ == 'g') content_.append(block.substr(0, n));
  left_ -= n;
  if (left_ == 0) take_records();
}

void TarHeaders::take_header(std::string_view block) {
  if (block.find_first_not_of('\0') == block.npos) {
    check_format(extended_.empty(), archive_,
                 ": the tar archive ends after an extended header, without its member");
    complete_ = true;
    return;
  }
  check_format(sum_matches(block), archive_, ": a tar header is damaged: its checksum differs");
  name_ = until_nul(block.substr(0, 100));
  type_ = block[156];
  const auto size = number(block.substr(124, 12));
  check_format(size.has_value(), where(), ": the size in its tar header is malformed or too large");
  if (type_ == 'x' || type_ == 'g' || type_ == 'L' || type_ == 'K') {
    const uint64_t limit = type_ == 'x' || type_ == 'g' ? kMostRecordBytes : kMostLongNameBytes;
    check_format(*size <= limit, where(), ": an extended header has ", *size, " bytes, more than ",
                 limit);
    check_format(type_ != 'x' || !has('x'), where(), ": a second pax header of one member");
    if (type_ != 'g') extended_ += type_;
    content_.clear();
    left_ = *size;
  } else {
    constexpr std::string_view kKnown(
        "\0"
        "01234567DSMV",
        13);
    check_format(kKnown.find(type_) != kKnown.npos, where(), ": a member of unknown type ",
                 int(uint8_t(type_)), " ('", shown({&type_, 1}), "')");
    // libarchive chooses by their order, tar takes that of the pax header.
    check_format(!named_ || !has('L'), where(), ": has two long names, of GNU and of pax");
    complete_ = type_ != 'V';  // libarchive reads on after the name of a volume
  }
}

void TarHeaders::take_records() {
  std::string_view text = content_;
  while (!text.empty()) {
    const size_t at = content_.size() - text.size();
    const auto [key, value] = take_record(text, join(where(), ": the record at byte ", at));
    const bool path = key == "path", size = key == "size", sparse = key.starts_with("GNU.sparse.");
    check_format(type_ == 'x' || !(path || size || sparse), where(), ": the record ", key,
                 " for all members is not read");
    uint64_t bytes = 0;
    check_format(!size || (parse_digits(value, bytes) && bytes <= INT64_MAX), where(),
                 ": the record size is not a number of bytes");
    check_format(!path || value.find('\0') == value.npos, where(), ": the record path has a NUL");
    named_ |= path && !value.empty();
    sparse_ |= sparse;
  }
}

bool TarHeaders::is_regular(const std::string& where) const {
  if (type_ != '\0' && type_ != '0' && type_ != '7' && type_ != 'S' && type_ != 'M') return false;
  check_format(type_ != 'M', where,
               ": goes on from another volume; archives of several volumes are not read");
  check_format(type_ != 'S' && !sparse_, where,
               ": a sparse file, which is not read; pack it without --sparse");
  return true;
}

}  // namespace brine::data
