// pytorch_model.bin: a state dict as torch.save writes it since PyTorch 1.6.
#pragma once

#include <unordered_map>

#include "data/weights/weight_file.h"

namespace brine::data {

// Tensors are read in place; a transposed or cut one row by row. The constructor throws an Error
// that names the file, the tensor and the reason: the format of PyTorch before 1.6, TorchScript,
// big-endian bytes, what zip_records() and read_state_dict() refuse, a tensor that is not inside
// its storage or has more elements than it (expanded).
class TorchFile : public WeightFile {
 public:
  explicit TorchFile(const Path& path);

  Dtype dtype_of(const WeightInfo& entry) const override;
  bool in_order(const WeightInfo& entry) const override { return !strides_.contains(entry.name); }

 protected:
  void gather(const WeightInfo& entry, const Tensor& to) const override;

 private:
  std::unordered_map<std::string, std::vector<uint64_t>> strides_;  // of entries not in order
};

}  // namespace brine::data
