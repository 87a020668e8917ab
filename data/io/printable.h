// Text from files as error messages show it.
#pragma once

#include <string>
#include <string_view>

namespace brine::data {

// The text with control characters, including line breaks, as "\x0a".
std::string shown(std::string_view text);

}  // namespace brine::data
