// The vocabulary in a GGUF file's metadata.
#pragma once

#include "data/gguf/gguf_metadata.h"
#include "data/io/file_io.h"
#include "data/tokenizer/vocabulary.h"

namespace brine::data {

// The vocabulary in a file's metadata; an Error if there is none.
VocabularyMetadata gguf_vocabulary(const GgufMetadata& metadata);
// The same for the file at `path`, of which only the header is read.
bool has_gguf_vocabulary(const Path& path);
VocabularyMetadata gguf_vocabulary(const Path& path);

}  // namespace brine::data
