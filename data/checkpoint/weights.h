// The weights of a model: a directory in Hugging Face's layout (model.safetensors or
// pytorch_model.bin, each as one file or as shards with an index), or a GGUF file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/weights/weight_file.h"
#include "tensor/named_tensor.h"

namespace brine::data {

struct WeightEntry {
  const WeightFile* file;
  const WeightInfo* entry;
};

// Open files; tensors in the order of their data on the disk, under the names of Hugging Face.
// Safetensors come first if a directory has both. Throws an Error naming file and reason: no
// weights, an index that names missing shards or tensors or refers outside the directory, a tensor
// in two shards. A tensor that the index does not name is left out.
class WeightFiles {
 public:
  // A directory or a GGUF file.
  explicit WeightFiles(const Path& path);

  const std::vector<WeightEntry>& entries() const { return entries_; }
  // The single file or the index, for messages.
  const std::string& source() const { return source_; }
  // The tensors that the index does not name.
  const std::vector<std::string>& unnamed() const { return unnamed_; }

 private:
  void open_index(const Path& directory);

  std::string source_;
  std::vector<std::unique_ptr<WeightFile>> files_;
  std::vector<WeightEntry> entries_;
  std::vector<std::string> unnamed_;
};

// Whether two tensors have the same type, shape and values bit for bit.
bool equal(const WeightEntry& a, const WeightEntry& b);

// Writes `tensors` as model.safetensors, or as model-00001-of-0000N.safetensors with their index
// when shard_bytes > 0 and they do not fit into one such file. A tensor is never split.
void save_weights(const Path& directory, const std::vector<NamedTensor>& tensors,
                  uint64_t shard_bytes = 0);

}  // namespace brine::data
