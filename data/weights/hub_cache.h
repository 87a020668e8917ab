// Models by their name on the Hugging Face Hub, "org/name" or "org/name@revision", as the Python
// package huggingface_hub keeps them on the disk.
#pragma once

#include <string>

#include "data/io/file_io.h"

namespace brine::data {

// The directory with "models--org--name", which huggingface_hub calls its cache. Without a call,
// and with an empty path, no name is looked up. Not to be called while a model is loaded.
void set_hub_cache(const Path& directory);

// `path` if something has that path, if it is not such a name or if the cache does not have it;
// else the directory of the snapshot. A revision is a reference ("main", the default) or a whole
// commit. Nothing is downloaded. No errors.
std::string local_model(const std::string& path);

// What a message says after "PATH: no such model directory" of a path that can be such a name: that
// it is not in the cache, and the command that fetches it. Empty for other paths.
std::string how_to_fetch(const std::string& path);

}  // namespace brine::data
