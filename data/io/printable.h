// Text from files as error messages show it.
#pragma once

#include <string>
#include <string_view>

namespace brine::data {

// The text with the bytes of control characters and line breaks (also U+0080 to U+009f, U+2028 and
// U+2029) and those that are not UTF-8 as "\x0a".
std::string shown(std::string_view text);

}  // namespace brine::data
