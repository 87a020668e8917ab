// libarchive, fed by a ByteSource. Each layer is one reader with one filter or format enabled, so
// that nothing is guessed and the caller counts the layers.
#include "data/io/archive/layers.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "data/io/archive/tar_headers.h"
#include "data/io/printable.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr size_t kArchivePiece = 64 << 10;
constexpr size_t kMostNameBytes = 64 << 10;

const char* name_of(Layer layer) {
  constexpr const char* kNames[] = {"", "gzip", "xz", "tar"};
  return kNames[size_t(layer)];
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

class LayerReader {
 public:
  LayerReader(ByteSource& source, Layer layer)
      : source_(source),
        layer_(layer),
        headers_(source.name()),
        archive_(archive_read_new(), archive_read_free) {
    check_memory(archive_ != nullptr, name(), ": libarchive cannot be started");
    archive* a = archive_.get();
    const bool ready = layer == Layer::kTar
                           ? archive_read_support_format_tar(a) == ARCHIVE_OK
                           : archive_read_append_filter(a, ARCHIVE_FILTER_XZ) == ARCHIVE_OK &&
                                 archive_read_support_format_raw(a) == ARCHIVE_OK &&
                                 archive_read_support_format_empty(a) == ARCHIVE_OK;
    check(ready, name(), ": this libarchive does not read ", name_of(layer));
    archive_read_set_read_callback(a, feed);
    archive_read_set_callback_data(a, this);
    // The format "empty" takes what cannot be decompressed for the end of the data.
    if (archive_read_open1(a) != ARCHIVE_OK || archive_error_string(a)) fail(name());
  }

  const std::string& name() const { return source_.name(); }

  // False at the end.
  bool next() {
    const Utf8Names names;
    if (layer_ == Layer::kTar) before_tar_header();
    const int status = archive_read_next_header(archive_.get(), &entry_);
    in_headers_ = false;
    if (status != ARCHIVE_OK && status != ARCHIVE_EOF) fail(name());
    return status == ARCHIVE_OK;
  }

  size_t read(const std::string& where, char* out, size_t max_bytes) {
    const la_ssize_t n = archive_read_data(archive_.get(), out, max_bytes);
    if (n < 0) fail(where);
    return size_t(n);
  }

  std::string member() const {
    const Utf8Names names;
    const char* path = archive_entry_pathname(entry_);
    std::string member = path ? path : "";
    check_format(member.size() <= kMostNameBytes, name(), ": the name of a member has ",
                 member.size(), " bytes, more than ", kMostNameBytes);
    return member;
  }

  // Whether the member is a file that is read. Throws at one whose content cannot be read.
  bool is_regular(const std::string& where) const {
    if (archive_entry_hardlink(entry_)) return false;
    if (!headers_.is_regular(where)) return false;
    check_format(archive_entry_sparse_count(entry_) == 0, where,
                 ": a sparse file, which is not read");
    return archive_entry_filetype(entry_) == AE_IFREG;
  }

 private:
  // Throws the source's error if it had one, otherwise libarchive's reason.
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

  // Skips what is left of a member. libarchive may have taken one block more, to look at it.
  void before_tar_header() {
    if (entry_ && archive_read_data_skip(archive_.get()) != ARCHIVE_OK) fail(name());
    const int64_t ahead = handed_out_ - archive_filter_bytes(archive_.get(), 0);
    check(ahead == 0 || ahead == int64_t(last_size_), name(), ": this libarchive reads ", ahead,
          " bytes ahead");
    headers_.begin();
    if (ahead > 0) headers_.take({last_, last_size_});
    in_headers_ = true;
  }

  // The next piece of the source; false at its end.
  bool fill() {
    begin_ = 0;
    end_ = source_.read(piece_.data(), piece_.size());
    return end_ > 0;
  }

  // A tar archive is handed out in blocks, so that those of a member's headers are known.
  static la_ssize_t feed(archive* a, void* self, const void** bytes) {
    auto& r = *static_cast<LayerReader*>(self);
    try {
      if (r.layer_ != Layer::kTar) {
        if (r.begin_ == r.end_) r.fill();
        *bytes = r.piece_.data();
        return la_ssize_t(r.end_ - std::exchange(r.begin_, r.end_));
      }
      r.last_size_ = 0;
      while (r.last_size_ < kTarBlock && (r.begin_ < r.end_ || r.fill())) {
        const size_t n = std::min(kTarBlock - r.last_size_, r.end_ - r.begin_);
        std::memcpy(r.last_ + r.last_size_, r.piece_.data() + r.begin_, n);
        r.begin_ += n;
        r.last_size_ += n;
      }
      r.handed_out_ += int64_t(r.last_size_);
      if (r.in_headers_) r.headers_.take({r.last_, r.last_size_});
      *bytes = r.last_;
      return la_ssize_t(r.last_size_);
    } catch (...) {
      r.error_ = std::current_exception();
      archive_set_error(a, EIO, "the source failed");
      return -1;
    }
  }

  ByteSource& source_;
  const Layer layer_;
  std::vector<char> piece_ = std::vector<char>(kArchivePiece);
  size_t begin_ = 0, end_ = 0;  // of the bytes in piece_ that libarchive does not have yet
  // Of a tar archive: the block that libarchive took last, all bytes that it took, and whether it
  // looks for a member.
  char last_[kTarBlock] = {};
  size_t last_size_ = 0;
  int64_t handed_out_ = 0;
  bool in_headers_ = true;
  TarHeaders headers_;
  std::exception_ptr error_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
  archive_entry* entry_ = nullptr;
};

class DecompressedSource : public ByteSource {
 public:
  explicit DecompressedSource(std::unique_ptr<ByteSource> inner)
      : inner_(std::move(inner)), reader_(*inner_, Layer::kXz), empty_(!reader_.next()) {}
  size_t read(char* out, size_t max_bytes) override {
    return empty_ ? 0 : reader_.read(name(), out, max_bytes);
  }
  const std::string& name() const override { return inner_->name(); }

 private:
  std::unique_ptr<ByteSource> inner_;
  LayerReader reader_;
  bool empty_;
};

class MemberSource : public ByteSource {
 public:
  MemberSource(LayerReader& reader, std::string name) : reader_(reader), name_(std::move(name)) {}
  size_t read(char* out, size_t max_bytes) override { return reader_.read(name_, out, max_bytes); }
  const std::string& name() const override { return name_; }

 private:
  LayerReader& reader_;
  std::string name_;
};

}  // namespace

Layer layer_of(std::string_view head) {
  if (head.starts_with("\x1f\x8b")) return Layer::kGzip;
  if (head.starts_with("\xfd"
                       "7zXZ"))
    return Layer::kXz;
  return is_tar(head) ? Layer::kTar : Layer::kNone;
}

bool is_other_archive(std::string_view head) {
  return head.starts_with("PK\x03\x04") || head.starts_with("PK\x05\x06") ||
         head.starts_with("7z\xbc\xaf\x27\x1c") || head.starts_with("\x28\xb5\x2f\xfd");
}

std::unique_ptr<ByteSource> unxz(std::unique_ptr<ByteSource> inner) {
  return std::make_unique<DecompressedSource>(std::move(inner));
}

void for_each_member(ByteSource& archive,
                     const std::function<void(std::unique_ptr<ByteSource>)>& visit) {
  LayerReader reader(archive, Layer::kTar);
  while (reader.next()) {
    const std::string where = archive.name() + ": " + shown(reader.member());
    if (reader.is_regular(where)) visit(std::make_unique<MemberSource>(reader, where));
  }
}

}  // namespace brine::data
