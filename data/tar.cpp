// tar: blocks of 512 bytes, a header and then the content of every member.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "data/byte_source.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

constexpr size_t kBlock = 512;
constexpr uint64_t kMostNameBytes = 64 << 10;

struct Header {
  std::string name;
  uint64_t size = 0;
  char type = '0';
};

// Text up to the first NUL.
std::string text(const char* field, size_t width) {
  return {field, size_t(std::find(field, field + width, '\0') - field)};
}

// Octal digits, or big-endian with the top bit of the first byte set.
uint64_t number(const std::string& where, const char* field, size_t width) {
  uint64_t value = 0;
  if (uint8_t(field[0]) & 0x80) {
    for (size_t i = 0; i < width; ++i) {
      check(value >> 54 == 0, where, ": a number in a tar header is too large");
      value = value << 8 | (uint8_t(field[i]) & (i == 0 ? 0x7f : 0xff));
    }
    return value;
  }
  for (size_t i = 0; i < width; ++i) {
    if (field[i] == ' ' || field[i] == '\0') continue;
    check(field[i] >= '0' && field[i] <= '7' && value >> 60 == 0, where,
          ": a number in a tar header is malformed");
    value = value << 3 | uint64_t(field[i] - '0');
  }
  return value;
}

class Tar {
 public:
  explicit Tar(ByteSource& archive) : archive_(archive) {}

  const std::string& where() const { return archive_.name(); }

  // False at the end: a block of zeros, or of the file where a member would begin.
  bool next(Header& header) {
    char block[kBlock];
    const size_t got = read_up_to(block, kBlock);
    if (got == 0) return false;
    check(got == kBlock, where(), ": the tar archive ends inside a header");
    if (std::all_of(block, block + kBlock, [](char c) { return c == '\0'; })) return false;
    uint64_t sum = 8 * ' ';
    for (size_t i = 0; i < kBlock; ++i) sum += i >= 148 && i < 156 ? 0 : uint8_t(block[i]);
    check(sum == number(where(), block + 148, 8), where(),
          ": a tar header is damaged: its checksum differs");
    header.size = number(where(), block + 124, 12);
    header.type = block[156];
    header.name = text(block, 100);
    const std::string prefix =
        std::memcmp(block + 257, "ustar\0", 6) == 0 ? text(block + 345, 155) : std::string();
    if (!prefix.empty()) header.name = prefix + "/" + header.name;
    left_ = header.size;
    padding_ = (kBlock - header.size % kBlock) % kBlock;
    return true;
  }

  // Of the member's content.
  size_t read(char* out, size_t most) {
    if (left_ == 0) return 0;
    const size_t n = archive_.read(out, size_t(std::min<uint64_t>(most, left_)));
    check(n > 0, where(), ": the tar archive ends inside a member");
    left_ -= n;
    return n;
  }

  void skip() {
    char rest[16 << 10];
    while (read(rest, sizeof rest) > 0) continue;
    check(read_up_to(rest, padding_) == padding_, where(),
          ": the tar archive ends inside a member");
    padding_ = 0;
  }

 private:
  size_t read_up_to(char* out, size_t count) {
    size_t have = 0;
    while (have < count) {
      const size_t n = archive_.read(out + have, count - have);
      if (n == 0) break;
      have += n;
    }
    return have;
  }

  ByteSource& archive_;
  uint64_t left_ = 0;
  size_t padding_ = 0;
};

class MemberSource : public ByteSource {
 public:
  MemberSource(Tar& tar, const std::string& member)
      : tar_(tar), name_(tar.where() + ": " + member) {}
  size_t read(char* out, size_t most) override { return tar_.read(out, most); }
  const std::string& name() const override { return name_; }

 private:
  Tar& tar_;
  std::string name_;
};

}  // namespace

void for_each_tar_member(ByteSource& archive,
                         const std::function<void(std::unique_ptr<ByteSource>)>& visit) {
  Tar tar(archive);
  Header header;
  std::string long_name;
  while (tar.next(header)) {
    if (header.type == 'L') {  // GNU: the name of the next member
      check(header.size <= kMostNameBytes, tar.where(), ": a member's name has ", header.size,
            " bytes");
      long_name.assign(size_t(header.size), '\0');
      for (size_t at = 0; at < long_name.size();)
        at += tar.read(long_name.data() + at, long_name.size() - at);
      long_name = text(long_name.data(), long_name.size());
    } else if (header.type == '0' || header.type == '\0') {
      visit(std::make_unique<MemberSource>(tar, long_name.empty() ? header.name : long_name));
      long_name.clear();
    } else if (header.type != 'x' && header.type != 'g' && header.type != 'K') {
      long_name.clear();  // it was of a directory or a link
    }
    tar.skip();
  }
}

}  // namespace brine::data
