// Archives made in memory for the tests of corpora: gzip, xz, tar.
#pragma once

#include <lzma.h>
#include <zlib.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace brine::test {

inline std::string gzip_of(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, uLong(text.size())) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = uInt(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string xz_of(const std::string& text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr,
                          reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                          reinterpret_cast<uint8_t*>(out.data()), &size, out.size());
  out.resize(size);
  return out;
}

// A member; its header tells of `size` bytes, -1: of those that it has.
inline std::string tar_member(const std::string& name, const std::string& content, char type,
                              int64_t size = -1) {
  std::string block(512, '\0');
  block.replace(0, std::min<size_t>(name.size(), 100), name.substr(0, 100));
  char field[16];
  std::snprintf(field, sizeof field, "%011zo", size < 0 ? content.size() : size_t(size));
  block.replace(124, 11, field);
  block[156] = type;
  block.replace(257, 8,
                std::string("ustar\0"
                            "00",
                            8));
  block.replace(148, 8, "        ");
  unsigned sum = 0;
  for (char c : block) sum += uint8_t(c);
  std::snprintf(field, sizeof field, "%06o", sum);
  block.replace(148, 7, std::string(field, 7));
  return block + content + std::string((512 - content.size() % 512) % 512, '\0');
}

// One record of a pax header, with its own length in front.
inline std::string pax_record(const std::string& key, const std::string& value) {
  const std::string rest = " " + key + "=" + value + "\n";
  size_t length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() != length) ++length;
  return std::to_string(length) + rest;
}

// Regular files; names over 100 characters in GNU's way.
inline std::string tar_of(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out = tar_member("folder/", "", '5');
  for (const auto& [name, content] : files) {
    if (name.size() > 100) out += tar_member("././@LongLink", name + '\0', 'L');
    out += tar_member(name, content, '0');
  }
  return out + std::string(1024, '\0');
}

}  // namespace brine::test
