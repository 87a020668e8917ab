// Error messages, for tests of refusals.
#pragma once

#include <string>
#include <utility>

#include "tensor/base/error.h"

namespace brine::test {

// The message of the Error that f throws; "no error" when it throws none.
template <class F>
std::string message(F&& f) {
  try {
    std::forward<F>(f)();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace brine::test
