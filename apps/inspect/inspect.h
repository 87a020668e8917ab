// What a path is, in words: dumps, runs, checkpoints, models, tokenizers, safetensors, HDF5.
#pragma once

#include <string>

namespace brine {

struct InspectOptions {
  bool verify = false;   // compare every checksum of a dump
  bool tensors = false;  // list the tensors of a model
};

// Several lines for stdout. Throws when the path is nothing that Brine knows, or is damaged in a
// way that hides what it is.
std::string inspect(const std::string& path, const InspectOptions& options = {});

}  // namespace brine
