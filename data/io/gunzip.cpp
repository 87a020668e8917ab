// gzip by zlib, which compares a stream's checksum and its length.
#include <zlib.h>

#include <vector>

#include "data/io/byte_source.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr size_t kInflated = 64 << 10;

class GzipSource : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<ByteSource> inner)
      : inner_(std::move(inner)), piece_(kInflated) {
    check(inflateInit2(&stream_, 15 + 16) == Z_OK, name(), ": zlib cannot be started");
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  const std::string& name() const override { return inner_->name(); }

  size_t read(char* out, size_t max_bytes) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = uInt(std::min<size_t>(max_bytes, 1 << 30));
    const uInt wanted = stream_.avail_out;
    while (!ended_ && stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) {
        stream_.avail_in = uInt(inner_->read(piece_.data(), piece_.size()));
        stream_.next_in = reinterpret_cast<Bytef*>(piece_.data());
        if (stream_.avail_in == 0) {
          check_format(between_, name(), ": the gzip data end too early");
          ended_ = true;
          break;
        }
      }
      if (between_) {  // another member may follow
        check(inflateReset(&stream_) == Z_OK, name(), ": zlib cannot continue");
        between_ = false;
      }
      const int status = inflate(&stream_, Z_NO_FLUSH);
      check_format(status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR, name(),
                   ": damaged gzip data", stream_.msg ? join(" (", stream_.msg, ")") : "");
      between_ = status == Z_STREAM_END;
    }
    return wanted - stream_.avail_out;
  }

 private:
  std::unique_ptr<ByteSource> inner_;
  std::vector<char> piece_;  // compressed bytes that were read but not used yet
  bool ended_ = false;
  z_stream stream_{};
  bool between_ = false;  // the last member is complete
};

}  // namespace

std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> inner) {
  return std::make_unique<GzipSource>(std::move(inner));
}

}  // namespace brine::data
