// What libarchive does not check in the headers of a tar archive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace brine::data {

inline constexpr size_t kTarBlock = 512;

// Whether a file that begins with these bytes is a tar archive, by its magic or, in the oldest
// archives, which have none, by the checksum of the first header.
bool is_tar(std::string_view head);

// Checks the headers in front of the content of a member: their checksums, their numbers and the
// records of pax headers. libarchive 3.6 ignores the records of global headers, reads a size up to
// the first character that is not a digit, cuts a name at a NUL and reads members of unknown type
// as files.
class TarHeaders {
 public:
  // `archive` begins every message.
  explicit TarHeaders(std::string archive) : archive_(std::move(archive)) {}

  // Before the first header of a member.
  void begin() { *this = TarHeaders(std::move(archive_)); }
  // The next block; ignored once the member's main header was seen. Throws Error at the first
  // defect.
  void take(std::string_view block);
  // Whether the member, `where` in messages, is a file. Throws at a sparse one and at one that
  // continues from another volume.
  bool is_regular(const std::string& where) const;

 private:
  void take_header(std::string_view block);
  void take_records();
  bool has(char type) const { return extended_.find(type) != extended_.npos; }
  std::string where() const;  // the header that was seen last

  std::string archive_, name_;           // the name of the header that was seen last
  char type_ = '\0';                     // and its type
  bool complete_ = false;                // the main header, or the end of the archive
  std::string extended_;                 // types of the member's extended headers
  std::string content_;                  // of the last pax header, as far as it was seen
  uint64_t left_ = 0;                    // bytes of an extended header that were not seen yet
  bool named_ = false, sparse_ = false;  // what the records say about the member
};

}  // namespace brine::data
