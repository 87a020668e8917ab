// How an operation fails: check(condition, parts...) throws Error with the parts joined.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace brine {

// What a caller can do about an error: bindings map it to the exceptions of their language.
enum class ErrorKind {
  invalid_argument,  // a value, shape or state that the operation does not accept
  format,            // a file whose content is damaged or not what its format promises
  io,                // the system refused to open, read, write or map
  not_found,         // a file or directory that does not exist
  out_of_memory,     // the system or the cap of the allocator
};
const char* name_of(ErrorKind kind);  // "invalid argument", "format", "io", ...

struct Error : std::runtime_error {
  explicit Error(const std::string& message, ErrorKind kind = ErrorKind::invalid_argument)
      : std::runtime_error(message), kind(kind) {}
  ErrorKind kind;
};

// The parts, written one after another.
template <class... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws Error("part part ...") when ok is false. A message starts with the op or the file it is
// about and says what was got and what was wanted.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw Error(join(parts...));
}

// The same for the content of a file.
template <class... Parts>
void check_format(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw Error(join(parts...), ErrorKind::format);
}

// The same for memory that was asked for.
template <class... Parts>
void check_memory(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw Error(join(parts...), ErrorKind::out_of_memory);
}

// The same for a file or directory that must exist.
template <class... Parts>
void check_found(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw Error(join(parts...), ErrorKind::not_found);
}

}  // namespace brine
