// libarchive, fed by a ByteSource. Each layer is one reader with one filter or format enabled, so
// that nothing is guessed and the caller counts the layers.
#include "data/io/layers.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "data/io/printable.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

constexpr size_t kBlock = 512;  // of a tar archive
constexpr size_t kPiece = 64 << 10;
constexpr size_t kMostNameBytes = 64 << 10;
constexpr const char* kSparse = ": a sparse file, which is not read; pack it without --sparse";

const char* name_of(Layer layer) {
  constexpr const char* kNames[] = {"", "gzip", "xz", "zstd", "tar", "zip", "7z"};
  return kNames[size_t(layer)];
}

// By the magic, or in the oldest archives, which have none, by the checksum.
bool is_tar(std::string_view head) {
  constexpr size_t kSumAt = 148, kSumWidth = 8;
  if (head.size() < kBlock) return false;
  if (head.substr(257, 5) == "ustar") return true;
  unsigned sum = kSumWidth * ' ', stored = 0;
  for (size_t i = 0; i < kBlock; ++i)
    sum += i >= kSumAt && i < kSumAt + kSumWidth ? 0 : uint8_t(head[i]);
  size_t i = kSumAt;
  while (head[i] == ' ' && i < kSumAt + kSumWidth - 1) ++i;
  for (; i < kSumAt + kSumWidth && head[i] >= '0' && head[i] <= '7'; ++i)
    stored = stored << 3 | unsigned(head[i] - '0');
  return head[0] != '\0' && sum == stored;
}

// Names in archives are UTF-8, in the program's locale "C" libarchive would refuse them.
class Utf8Names {
 public:
  Utf8Names() : names_(newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t(0))) {
    if (names_) before_ = uselocale(names_);
  }
  ~Utf8Names() {
    if (!names_) return;
    uselocale(before_);
    freelocale(names_);
  }
  Utf8Names(const Utf8Names&) = delete;
  Utf8Names& operator=(const Utf8Names&) = delete;

 private:
  locale_t names_, before_ = locale_t(0);
};

class Reader {
 public:
  Reader(ByteSource& source, Layer layer)
      : source_(source), layer_(layer), archive_(archive_read_new(), archive_read_free) {
    check_memory(archive_ != nullptr, name(), ": libarchive cannot be started");
    archive* a = archive_.get();
    bool ready = true;
    switch (layer) {
      case Layer::kTar:
        ready = archive_read_support_format_tar(a) == ARCHIVE_OK;
        break;
      case Layer::kZip:
        ready = archive_read_support_format_zip(a) == ARCHIVE_OK;
        break;
      case Layer::kSevenZip:
        ready = archive_read_support_format_7zip(a) == ARCHIVE_OK;
        break;
      default:
        ready =
            archive_read_append_filter(
                a, layer == Layer::kXz ? ARCHIVE_FILTER_XZ : ARCHIVE_FILTER_ZSTD) == ARCHIVE_OK &&
            archive_read_support_format_raw(a) == ARCHIVE_OK &&
            archive_read_support_format_empty(a) == ARCHIVE_OK;
    }
    check(ready, name(), ": this libarchive does not read ", name_of(layer));
    if (layer == Layer::kZip || layer == Layer::kSevenZip) archive_read_set_seek_callback(a, seek);
    archive_read_set_read_callback(a, feed);
    archive_read_set_callback_data(a, this);
    // The format "empty" takes what cannot be decompressed for the end of the data.
    if (archive_read_open1(a) != ARCHIVE_OK || archive_error_string(a)) fail(name());
  }

  const std::string& name() const { return source_.name(); }

  // False at the end.
  bool next() {
    const Utf8Names names;
    const int status = archive_read_next_header(archive_.get(), &entry_);
    if (status == ARCHIVE_EOF) return false;
    if (status != ARCHIVE_OK) fail(name());
    return true;
  }

  size_t read(const std::string& where, char* out, size_t most) {
    const la_ssize_t n = archive_read_data(archive_.get(), out, most);
    if (n < 0) fail(where);
    return size_t(n);
  }

  std::string member() const {
    const Utf8Names names;
    const char* path = archive_entry_pathname(entry_);
    const std::string member = path ? path : "";
    check_format(member.size() <= kMostNameBytes, name(), ": the name of a member has ",
                 member.size(), " bytes, more than ", kMostNameBytes);
    return member;
  }

  // Whether the member is a file that is read. Throws at one whose content cannot be read.
  bool is_regular(const std::string& where) const {
    if (archive_entry_hardlink(entry_)) return false;
    check_format(archive_entry_sparse_count(entry_) == 0, where, kSparse);
    if (layer_ == Layer::kTar && is_tar({last_, kBlock}) && !is_regular_tar(where, last_[156]))
      return false;
    if (archive_entry_filetype(entry_) != AE_IFREG) return false;
    check_format(!archive_entry_is_encrypted(entry_), where, ": is encrypted, which is not read");
    return true;
  }

 private:
  // libarchive reads members of unknown type as files, and does not tell what their type is.
  static bool is_regular_tar(const std::string& where, char type) {
    switch (type) {
      case '\0':
      case '0':
      case '7':  // contiguous: a hint to the disk
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
        throw Error(where + kSparse, ErrorKind::format);
      case 'M':
        throw Error(
            where + ": goes on from another volume; archives of several volumes are not read",
            ErrorKind::format);
      default:
        throw Error(join(where, ": a member of unknown type ", int(uint8_t(type)), " ('",
                         shown(std::string(1, type)), "')"),
                    ErrorKind::format);
    }
  }

  // Throws the source's own error if it had one, otherwise libarchive's reason.
  [[noreturn]] void fail(const std::string& where) {
    if (error_) std::rethrow_exception(error_);
    const char* text = archive_error_string(archive_.get());
    const std::string reason = shown(text ? text : "malformed");
    auto says = [&](const char* part) { return reason.find(part) != reason.npos; };
    const bool cut = says("runcated") || says("nexpected end") || says("No progress is possible");
    const char* layer = name_of(layer_);
    throw Error(cut ? join(where, ": the ", layer, " data end too early (", reason, ")")
                    : join(where, ": damaged ", layer, " data (", reason, ")"),
                ErrorKind::format);
  }

  // A tar archive is handed out in blocks: the last one, when libarchive has read a header, is it.
  static la_ssize_t feed(archive* a, void* self, const void** bytes) {
    auto& r = *static_cast<Reader*>(self);
    try {
      if (r.begin_ == r.end_) {
        r.begin_ = 0;
        r.end_ = r.source_.read(r.piece_.data(), r.piece_.size());
      }
      if (r.layer_ != Layer::kTar) {
        *bytes = r.piece_.data();
        return la_ssize_t(r.end_ - std::exchange(r.begin_, r.end_));
      }
      size_t have = 0;
      while (have < kBlock) {
        if (r.begin_ == r.end_) {
          r.begin_ = 0;
          r.end_ = r.source_.read(r.piece_.data(), r.piece_.size());
          if (r.end_ == 0) break;
        }
        const size_t n = std::min(kBlock - have, r.end_ - r.begin_);
        std::memcpy(r.last_ + have, r.piece_.data() + r.begin_, n);
        r.begin_ += n;
        have += n;
      }
      *bytes = r.last_;
      return la_ssize_t(have);
    } catch (...) {
      r.error_ = std::current_exception();
      archive_set_error(a, EIO, "the source failed");
      return -1;
    }
  }

  static la_int64_t seek(archive*, void* self, la_int64_t offset, int whence) {
    auto& r = *static_cast<Reader*>(self);
    const int64_t at = r.source_.seek(offset, whence);
    if (at < 0) return ARCHIVE_FATAL;
    r.begin_ = r.end_ = 0;
    return at;
  }

  ByteSource& source_;
  const Layer layer_;
  std::vector<char> piece_ = std::vector<char>(kPiece);
  size_t begin_ = 0, end_ = 0;  // of the bytes in piece_ that libarchive does not have yet
  char last_[kBlock] = {};      // of a tar archive: the block that libarchive took last
  std::exception_ptr error_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
  archive_entry* entry_ = nullptr;
};

class DecompressedSource : public ByteSource {
 public:
  DecompressedSource(std::unique_ptr<ByteSource> inner, Layer layer)
      : inner_(std::move(inner)), reader_(*inner_, layer), empty_(!reader_.next()) {}
  size_t read(char* out, size_t most) override {
    return empty_ ? 0 : reader_.read(name(), out, most);
  }
  const std::string& name() const override { return inner_->name(); }

 private:
  std::unique_ptr<ByteSource> inner_;
  Reader reader_;
  bool empty_;
};

class MemberSource : public ByteSource {
 public:
  MemberSource(Reader& reader, std::string name) : reader_(reader), name_(std::move(name)) {}
  size_t read(char* out, size_t most) override { return reader_.read(name_, out, most); }
  const std::string& name() const override { return name_; }

 private:
  Reader& reader_;
  std::string name_;
};

}  // namespace

Layer layer_of(std::string_view head) {
  constexpr std::pair<std::string_view, Layer> kMagic[] = {
      {"\x1f\x8b", Layer::kGzip},
      {"\xfd"
       "7zXZ",
       Layer::kXz},
      {"\x28\xb5\x2f\xfd", Layer::kZstd},
      {"PK\x03\x04", Layer::kZip},
      {"PK\x05\x06", Layer::kZip},
      {"7z\xbc\xaf\x27\x1c", Layer::kSevenZip}};
  for (const auto& [magic, layer] : kMagic)
    if (head.starts_with(magic)) return layer;
  return is_tar(head) ? Layer::kTar : Layer::kNone;
}

std::unique_ptr<ByteSource> decompress(std::unique_ptr<ByteSource> inner, Layer layer) {
  return std::make_unique<DecompressedSource>(std::move(inner), layer);
}

void for_each_member(ByteSource& archive, Layer layer,
                     const std::function<void(std::unique_ptr<ByteSource>)>& visit) {
  if (layer == Layer::kSevenZip)
    check_format(archive.seek(0, SEEK_END) >= 0 && archive.seek(0, SEEK_SET) == 0, archive.name(),
                 ": a 7z archive inside of another layer or a pipe is not read; unpack that first");
  Reader reader(archive, layer);
  while (reader.next()) {
    const std::string where = archive.name() + ": " + shown(reader.member());
    if (reader.is_regular(where)) visit(std::make_unique<MemberSource>(reader, where));
  }
}

}  // namespace brine::data
