// safetensors files: a strict reader by mmap and a writer with the same bytes as the reference's.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "data/weights/weight_file.h"
#include "tensor/named_tensor.h"

namespace brine::data {

using SafetensorsEntry = WeightInfo;

// An open file. The constructor checks all guarantees of the format and throws an Error that names
// the file, the tensor and the reason; afterwards no entry can refer outside the file. tensor()
// gives u8 for BOOL.
class Safetensors : public WeightFile {
 public:
  explicit Safetensors(const Path& path);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  Dtype dtype_of(const SafetensorsEntry& entry) const override;

 private:
  std::map<std::string, std::string> metadata_;
};

using StringMap = std::map<std::string, std::string>;

// Streams a whole file into `sink`, ordered by descending dtype and then by name. Strided tensors
// are packed on the way. Other programs expect the metadata {"format": "pt"}.
void write_safetensors(const ByteSink& sink, const std::vector<NamedTensor>& tensors,
                       const StringMap& metadata = {{"format", "pt"}});

// Writes a file atomically; a reader of the earlier file keeps it.
void save_safetensors(const Path& path, const std::vector<NamedTensor>& tensors,
                      const StringMap& metadata = {{"format", "pt"}});

}  // namespace brine::data
