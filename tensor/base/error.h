// The error type of all operations: check(condition, parts...) throws an Error with the parts
// joined. Every header has it, and so the base of classes that are not copied.
#pragma once

#include <initializer_list>
#include <ostream>
#include <stdexcept>
#include <string>

namespace brine {

struct NonCopyable {
  NonCopyable() = default;
  NonCopyable(const NonCopyable&) = delete;
  NonCopyable& operator=(const NonCopyable&) = delete;
};

// What a caller can do about an error: bindings map it to the exceptions of their language.
enum class ErrorKind {
  invalid_argument,  // a value, shape or state that the operation does not accept
  format,            // a file whose content is damaged or not in its format
  io,                // a failure to open, read, write or map
  not_found,         // a file or directory that does not exist
  out_of_memory,     // refused by the system or the cap of the allocator
};

inline const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "invalid argument";
    case ErrorKind::format:
      return "format";
    case ErrorKind::io:
      return "io";
    case ErrorKind::not_found:
      return "not found";
    case ErrorKind::out_of_memory:
      return "out of memory";
  }
  return "";
}

struct Error : std::runtime_error {
  explicit Error(const std::string& message, ErrorKind kind = ErrorKind::invalid_argument)
      : std::runtime_error(message), kind(kind) {}
  ErrorKind kind;
};

// A part of a message: a reference, and how it is printed.
struct MessagePart {
  const void* value;
  void (*print)(std::ostream& out, const void* value);

  MessagePart(const char* x)
      : value(x),
        print([](std::ostream& out, const void* text) { out << static_cast<const char*>(text); }) {}
  template <class T>
  MessagePart(const T& x)
      : value(&x),
        print([](std::ostream& out, const void* part) { out << *static_cast<const T*>(part); }) {}
};

std::string join_parts(std::initializer_list<MessagePart> parts);
[[noreturn, gnu::cold]] void throw_error(ErrorKind kind, std::initializer_list<MessagePart> parts);

// The parts, concatenated.
template <class... Parts>
std::string join(const Parts&... parts) {
  return join_parts({parts...});
}

// Throws Error("part part ...") when ok is false. A message starts with the op or the file, and
// says what was given and what is needed.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_error(ErrorKind::invalid_argument, {parts...});
}

// As above, for the content of a file.
template <class... Parts>
void check_format(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_error(ErrorKind::format, {parts...});
}

// As above, for requested memory.
template <class... Parts>
void check_memory(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_error(ErrorKind::out_of_memory, {parts...});
}

// As above, for a file or directory that must exist.
template <class... Parts>
void check_found(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_error(ErrorKind::not_found, {parts...});
}

}  // namespace brine
