// Descriptions of single files: HDF5 of several kinds, safetensors, a tokenizer, a text.
#pragma once

#include <string>

namespace brine {

std::string inspect_file(const std::string& path);
// A text in UTF-8; with a tokenizer's directory its tokens and the hash that a dump of it records.
std::string inspect_text(const std::string& path, const std::string& tokenizer = {});

}  // namespace brine
