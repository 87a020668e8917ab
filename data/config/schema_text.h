// The text form of a schema's values, in messages and as TOML.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/config/schema.h"

namespace brine::data {

// A value in a message: JSON, at most about 60 bytes of it.
std::string show(const Json& value);

// `"a", "b" or "c"`.
std::string list_of(const std::vector<std::string>& words);

// A value as TOML; a number always has a point or an exponent and reads back to the same bits.
std::string toml_value(bool value);
std::string toml_value(int64_t value);
std::string toml_value(double value);
std::string toml_value(const std::string& value);
template <class T>
std::string toml_value(const std::vector<T>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + toml_value(values[i]);
  return out + "]";
}

}  // namespace brine::data
