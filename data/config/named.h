// Enums under the names that they have in files, on command lines and in messages.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace brine::data {

// A value of an enum with its name. An enum has one table of these, next to its declaration.
template <class E>
struct Named {
  E value;
  const char* name;
};

template <class E, size_t N>
constexpr const char* name_of(E value, const Named<E> (&names)[N]) {
  for (const Named<E>& known : names) {
    if (known.value == value) return known.name;
  }
  return "?";
}

// The value of that name; empty when the table has no such name.
template <class E, size_t N>
constexpr std::optional<E> value_of(std::string_view name, const Named<E> (&names)[N]) {
  for (const Named<E>& known : names) {
    if (name == known.name) return known.value;
  }
  return std::nullopt;
}

}  // namespace brine::data
