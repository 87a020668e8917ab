// The pickle of a state dict: which tensors it has, and which parts of which storages they are.
// Nothing is run: of the instructions only those that such a pickle needs are read, and of the
// names only OrderedDict, PyTorch's functions that put tensors together, and its storages.
// Source: the instructions' descriptions in Python's module pickletools.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brine::data {

struct PickledStorage {
  std::string dtype;  // as safetensors names it: "F32"
  std::string key;    // of its record
  uint64_t elements = 0;
};

// Element (i, j...) is element offset + i strides[0] + j strides[1] ... of its storage. No relation
// between these numbers was checked.
struct PickledTensor {
  std::string name;
  size_t storage = 0;
  uint64_t offset = 0;
  std::vector<uint64_t> shape, strides;
};

struct StateDict {
  std::vector<PickledStorage> storages;
  std::vector<PickledTensor> tensors;  // names are unique
};

// Throws an Error that starts with `file` and names the instruction, the name or the value that a
// state dict of tensors does not have.
StateDict read_state_dict(const std::string& file, std::string_view pickle);

}  // namespace brine::data
