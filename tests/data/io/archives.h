// Archives made in memory for the tests of corpora: gzip, xz, tar.
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <doctest/doctest.h>
#include <zlib.h>

#include <clocale>
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

using Files = std::vector<std::pair<std::string, std::string>>;

// Files packed by libarchive.
inline std::string packed_by_libarchive(int format, int filter, const Files& files) {
  const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t(0));  // of names
  const locale_t before = uselocale(utf8);
  archive* a = archive_write_new();
  std::string out(1 << 20, '\0');
  size_t used = 0;
  REQUIRE(archive_write_set_format(a, format) == ARCHIVE_OK);
  REQUIRE(archive_write_add_filter(a, filter) == ARCHIVE_OK);
  archive_write_set_bytes_in_last_block(a, 1);
  REQUIRE(archive_write_open_memory(a, out.data(), out.size(), &used) == ARCHIVE_OK);
  archive_entry* entry = archive_entry_new();
  for (const auto& [name, content] : files) {
    archive_entry_clear(entry);
    archive_entry_set_pathname_utf8(entry, name.c_str());
    archive_entry_set_filetype(entry, name.ends_with('/') ? AE_IFDIR : AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, int64_t(content.size()));
    REQUIRE(archive_write_header(a, entry) == ARCHIVE_OK);
    REQUIRE(archive_write_data(a, content.data(), content.size()) == la_ssize_t(content.size()));
  }
  archive_entry_free(entry);
  REQUIRE(archive_write_close(a) == ARCHIVE_OK);
  archive_write_free(a);
  uselocale(before);
  freelocale(utf8);
  out.resize(used);
  return out;
}

inline std::string xz_of(const std::string& text) {
  return packed_by_libarchive(ARCHIVE_FORMAT_RAW, ARCHIVE_FILTER_XZ, {{"", text}});
}
// A member; its header declares `size` bytes, -1: its actual size.
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

// One record of a pax header, with its length in front.
inline std::string pax_record(const std::string& key, const std::string& value) {
  const std::string rest = " " + key + "=" + value + "\n";
  size_t length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() != length) ++length;
  return std::to_string(length) + rest;
}

// Regular files; names over 100 characters in GNU's way.
inline std::string tar_of(const Files& files) {
  std::string out = tar_member("folder/", "", '5');
  for (const auto& [name, content] : files) {
    if (name.size() > 100) out += tar_member("././@LongLink", name + '\0', 'L');
    out += tar_member(name, content, '0');
  }
  return out + std::string(1024, '\0');
}

}  // namespace brine::test
