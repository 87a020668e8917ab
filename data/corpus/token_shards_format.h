// Names that the writer and the reader of token shards share.
#pragma once

namespace brine::data {

inline constexpr const char* kTokenFormat = "brine-tokens";
inline constexpr const char* kTokenManifest = "manifest.json";
inline constexpr const char* kTokenStarts = "documents.u64";
inline constexpr const char* kDocuments = "documents";  // how the text was joined
inline constexpr const char* kJoinedLines = "lines";

}  // namespace brine::data
