// Descriptions of single files: HDF5 of several kinds, safetensors, a tokenizer.
#pragma once

#include <string>

namespace brine {

std::string inspect_file(const std::string& path);

}  // namespace brine
