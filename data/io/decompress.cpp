// gzip by zlib, xz by liblzma, in pieces of bounded size.
#include <lzma.h>
#include <zlib.h>

#include <cstdint>
#include <vector>

#include "data/io/byte_source.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

constexpr size_t kPiece = 64 << 10;
constexpr uint64_t kMostXzMemory = uint64_t(1) << 30;  // xz -9 needs 65 MiB

// What both have: the compressed bytes that were read and not used yet.
class Decompressor : public ByteSource {
 public:
  explicit Decompressor(std::unique_ptr<ByteSource> inner)
      : inner_(std::move(inner)), piece_(kPiece) {}
  const std::string& name() const override { return inner_->name(); }

 protected:
  // The next piece into piece_; 0 at the end.
  size_t fill() { return inner_->read(piece_.data(), piece_.size()); }

  std::unique_ptr<ByteSource> inner_;
  std::vector<char> piece_;
  bool ended_ = false;
};

class GzipSource : public Decompressor {
 public:
  explicit GzipSource(std::unique_ptr<ByteSource> inner) : Decompressor(std::move(inner)) {
    check(inflateInit2(&stream_, 15 + 16) == Z_OK, name(), ": zlib cannot be started");
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  size_t read(char* out, size_t most) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = uInt(std::min<size_t>(most, 1 << 30));
    const uInt wanted = stream_.avail_out;
    while (!ended_ && stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) {
        stream_.avail_in = uInt(fill());
        stream_.next_in = reinterpret_cast<Bytef*>(piece_.data());
        if (stream_.avail_in == 0) {
          check(between_, name(), ": the gzip data end too early");
          ended_ = true;
          break;
        }
      }
      if (between_) {  // another member may follow
        check(inflateReset(&stream_) == Z_OK, name(), ": zlib cannot go on");
        between_ = false;
      }
      const int status = inflate(&stream_, Z_NO_FLUSH);
      check(status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR, name(),
            ": damaged gzip data", stream_.msg ? join(" (", stream_.msg, ")") : "");
      between_ = status == Z_STREAM_END;
    }
    return wanted - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool between_ = false;  // the last member is complete
};

std::string reason_of(lzma_ret status) {
  switch (status) {
    case LZMA_MEMLIMIT_ERROR:
      return "needs more than 1 GiB of memory to decompress";
    case LZMA_FORMAT_ERROR:
      return "is followed by something that is no xz data";
    case LZMA_OPTIONS_ERROR:
      return "uses options of xz that this liblzma does not know";
    case LZMA_BUF_ERROR:
      return "the xz data end too early";
    default:
      return "damaged xz data";
  }
}

class XzSource : public Decompressor {
 public:
  explicit XzSource(std::unique_ptr<ByteSource> inner) : Decompressor(std::move(inner)) {
    check(lzma_stream_decoder(&stream_, kMostXzMemory, LZMA_CONCATENATED) == LZMA_OK, name(),
          ": liblzma cannot be started");
  }
  ~XzSource() override { lzma_end(&stream_); }
  XzSource(const XzSource&) = delete;
  XzSource& operator=(const XzSource&) = delete;

  size_t read(char* out, size_t most) override {
    stream_.next_out = reinterpret_cast<uint8_t*>(out);
    stream_.avail_out = most;
    while (!ended_ && stream_.avail_out == most) {
      if (stream_.avail_in == 0 && action_ == LZMA_RUN) {
        stream_.avail_in = fill();
        stream_.next_in = reinterpret_cast<const uint8_t*>(piece_.data());
        if (stream_.avail_in == 0) action_ = LZMA_FINISH;
      }
      const lzma_ret status = lzma_code(&stream_, action_);
      ended_ = status == LZMA_STREAM_END;
      check(ended_ || status == LZMA_OK, name(), ": ", reason_of(status));
    }
    return most - stream_.avail_out;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  lzma_action action_ = LZMA_RUN;
};

}  // namespace

std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> inner) {
  return std::make_unique<GzipSource>(std::move(inner));
}

std::unique_ptr<ByteSource> unxz(std::unique_ptr<ByteSource> inner) {
  return std::make_unique<XzSource>(std::move(inner));
}

}  // namespace brine::data
