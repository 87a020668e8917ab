// Names that the writer and the reader of token shards share.
#pragma once

#include <cstdint>

#include "data/config/named.h"

namespace brine::data {

inline constexpr const char* kTokenFormat = "brine-tokens";
inline constexpr const char* kTokenManifest = "manifest.json";
inline constexpr const char* kTokenStarts = "documents.u64";
// The types of stored tokens, by the bytes of a token.
inline constexpr Named<int64_t> kTokenTypes[] = {{2, "u16"}, {4, "u32"}};

}  // namespace brine::data
