// One way to fail: check(condition, parts...) throws Error with the parts joined.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace brine {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
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

}  // namespace brine
