// tar: blocks of 512 bytes, a header and then the content of every member. What does not fit into a
// header stands in members of its own in front: pax records (data/io/pax.h), or GNU's long names.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "data/io/byte_source.h"
#include "data/io/pax.h"
#include "data/safetensors/safetensors_header.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kSumAt = 148, kSumWidth = 8;
constexpr uint64_t kMostNameBytes = 64 << 10;
constexpr uint64_t kMostRecordBytes = 1 << 20;

struct Header {
  std::string name;
  uint64_t size = 0;
  char type = '0';
};

// Text up to the first NUL.
std::string text(const char* field, size_t width) {
  return {field, size_t(std::find(field, field + width, '\0') - field)};
}

// Octal digits between spaces, then a space or NUL; or big-endian with the top bit of the first
// byte set.
uint64_t number(const std::string& where, const char* field, size_t width) {
  uint64_t value = 0;
  if (uint8_t(field[0]) & 0x80) {
    for (size_t i = 0; i < width; ++i) {
      check(value >> 54 == 0, where, ": a number in its tar header is too large");
      value = value << 8 | (uint8_t(field[i]) & (i == 0 ? 0x7f : 0xff));
    }
    return value;
  }
  size_t i = 0;
  while (i < width && field[i] == ' ') ++i;
  for (; i < width && field[i] != ' ' && field[i] != '\0'; ++i) {
    check(field[i] >= '0' && field[i] <= '7' && value >> 60 == 0, where,
          ": a number in its tar header is malformed");
    value = value << 3 | uint64_t(field[i] - '0');
  }
  return value;
}

// Of a header's bytes, those of the sum itself taken as spaces.
uint64_t checksum(const char* block) {
  uint64_t sum = kSumWidth * ' ';
  for (size_t i = 0; i < kBlock; ++i)
    sum += i >= kSumAt && i < kSumAt + kSumWidth ? 0 : uint8_t(block[i]);
  return sum;
}

class Tar {
 public:
  explicit Tar(ByteSource& archive) : archive_(archive) {}

  const std::string& where() const { return archive_.name(); }
  std::string where(const std::string& member) const { return where() + ": " + shown(member); }

  // False at the end: a block of zeros, or of the file where a member would begin.
  bool next(Header& header) {
    char block[kBlock];
    const size_t got = read_up_to(block, kBlock);
    if (got == 0) return false;
    check(got == kBlock, where(), ": the tar archive ends inside a header");
    if (std::all_of(block, block + kBlock, [](char c) { return c == '\0'; })) return false;
    check(checksum(block) == number(where(), block + kSumAt, kSumWidth), where(),
          ": a tar header is damaged: its checksum differs");
    header.type = block[156];
    header.name = text(block, 100);
    const std::string prefix =
        std::memcmp(block + 257, "ustar\0", 6) == 0 ? text(block + 345, 155) : std::string();
    if (!prefix.empty()) header.name = prefix + "/" + header.name;
    header.size = number(where(header.name), block + 124, 12);
    set_size(header.size);
    return true;
  }

  // Of the content that follows the header.
  void set_size(uint64_t size) {
    left_ = size;
    padding_ = (kBlock - size % kBlock) % kBlock;
  }

  size_t read(char* out, size_t most) {
    if (left_ == 0) return 0;
    const size_t n = archive_.read(out, size_t(std::min<uint64_t>(most, left_)));
    check(n > 0, where(), ": the tar archive ends inside a member");
    left_ -= n;
    return n;
  }

  // All of the content of a header's own member.
  std::string read_all(const Header& header, uint64_t most) {
    check(header.size <= most, where(header.name), ": an extended header has ", header.size,
          " bytes, more than ", most);
    std::string content(size_t(header.size), '\0');
    for (size_t at = 0; at < content.size();) at += read(content.data() + at, content.size() - at);
    return content;
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
  MemberSource(Tar& tar, const std::string& member) : tar_(tar), name_(tar.where(member)) {}
  size_t read(char* out, size_t most) override { return tar_.read(out, most); }
  const std::string& name() const override { return name_; }

 private:
  Tar& tar_;
  std::string name_;
};

// What stood in front of a member, and what all members have.
struct Extended {
  PaxRecords own = {}, global = {};
  std::string long_name = {};  // GNU's
  bool waiting = false;        // for the member

  const std::string* find(std::string_view key) const {
    // An empty record of the member's own hides that of the archive.
    return own.values.contains(key) ? own.find(key) : global.find(key);
  }

  // Takes a header's content; false when it is of another kind.
  bool take(Tar& tar, const Header& header) {
    switch (header.type) {
      case 'x':
        own.add(tar.read_all(header, kMostRecordBytes), tar.where(header.name));
        break;
      case 'g':
        global.add(tar.read_all(header, kMostRecordBytes), tar.where(header.name));
        return true;
      case 'L': {
        const std::string content = tar.read_all(header, kMostNameBytes);
        long_name = text(content.data(), content.size());
        break;
      }
      case 'K':
        break;  // where a link leads
      default:
        return false;
    }
    return waiting = true;
  }

  // Puts it into the header of the member that it is for.
  void apply(const Tar& tar, Header& header) const {
    if (!long_name.empty()) header.name = long_name;
    if (const std::string* path = find("path")) header.name = *path;
    check(header.name.find('\0') == std::string::npos, tar.where(header.name),
          ": its name has a NUL");
    const PaxRecords& holder = own.values.contains("size") ? own : global;
    if (const auto size = pax_size(holder, tar.where(header.name))) header.size = *size;
  }

  bool sparse() const {
    auto has = [](const PaxRecords& r) {
      const auto at = r.values.lower_bound("GNU.sparse.");
      return at != r.values.end() && at->first.starts_with("GNU.sparse.");
    };
    return has(own) || has(global);
  }
};

// Whether the member is a file that is read. Throws at one whose content is not to be had so.
bool is_regular(const Header& header, bool sparse, const std::string& where) {
  switch (header.type) {
    case '\0':
      if (header.name.ends_with('/')) return false;  // how the oldest archives mark a directory
      [[fallthrough]];
    case '0':
    case '7':  // contiguous: a hint to the disk
      check(!sparse, where, ": a sparse file, which is not read; pack it without --sparse");
      return true;
    case '1':  // links, devices, directories and pipes have no content
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case 'D':  // GNU's list of a directory's files, and the name of a volume
    case 'V':
      return false;
    case 'S':
      throw Error(where + ": a sparse file, which is not read; pack it without --sparse");
    case 'M':
      throw Error(where +
                  ": goes on from another volume; archives of several volumes are not read");
    default:
      throw Error(join(where, ": a member of unknown type ", int(uint8_t(header.type)), " ('",
                       shown(std::string(1, header.type)), "')"));
  }
}

}  // namespace

bool is_tar(std::string_view head) {
  if (head.size() < kBlock) return false;
  if (head.substr(257, 5) == "ustar") return true;
  // The oldest archives have no magic.
  size_t digits = 0;
  while (digits < kSumWidth && head[kSumAt + digits] != '\0') ++digits;
  const std::string_view field = head.substr(kSumAt, digits);
  if (digits == 0 || field.find_first_not_of("01234567 ") != field.npos) return false;
  return head[0] != '\0' && checksum(head.data()) == number("", field.data(), digits);
}

void for_each_tar_member(ByteSource& archive,
                         const std::function<void(std::unique_ptr<ByteSource>)>& visit) {
  Tar tar(archive);
  Header header;
  Extended extended;
  while (tar.next(header)) {
    if (!extended.take(tar, header)) {
      extended.apply(tar, header);
      const bool regular = is_regular(header, extended.sparse(), tar.where(header.name));
      const bool empty = header.type >= '1' && header.type <= '6';
      tar.set_size(empty ? 0 : header.size);
      if (regular) visit(std::make_unique<MemberSource>(tar, header.name));
      extended = {.global = std::move(extended.global)};
    }
    tar.skip();
  }
  check(!extended.waiting, tar.where(),
        ": the tar archive ends after an extended header, without the member that it is for");
}

}  // namespace brine::data
