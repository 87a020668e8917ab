// Bytes as text for a page: deflated, and in base64.
#pragma once

#include <string>
#include <string_view>

namespace brine::data {

// A zlib stream (RFC 1950) of the bytes; the same bytes give the same stream.
std::string deflated(std::string_view bytes);
// RFC 4648, with padding.
std::string base64(std::string_view bytes);

}  // namespace brine::data
