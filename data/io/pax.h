// The extended headers of tar archives (POSIX.1-2001, "pax"): lines of "LENGTH KEY=VALUE".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace brine::data {

// What they may say of a member, as far as a reader of its content wants to know.
struct PaxRecords {
  std::map<std::string, std::string, std::less<>> values = {};

  // Adds the records of an extended header's content. A later value takes the place of an earlier
  // one. Throws Error that begins with `where` when a record is malformed or goes beyond the text.
  void add(std::string_view text, const std::string& where);
  // Null where there is none, or an empty one, which takes one of a global header back.
  const std::string* find(std::string_view key) const;
};

// The member's size in bytes, if a record has it. Throws when that is no number.
std::optional<uint64_t> pax_size(const PaxRecords& records, const std::string& where);

}  // namespace brine::data
