// A file of named tensors, mapped into memory: what safetensors, PyTorch's zip files and GGUF have
// in common.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/file_io.h"
#include "tensor/tensor.h"

namespace brine::data {

struct WeightInfo {
  std::string name;
  std::string dtype;            // the name in the file: "F32", "BF16", "F8_E4M3", "Q4_K"...
  std::vector<uint64_t> shape;  // any rank; the number of elements fits in 63 bits
  const unsigned char* bytes;   // inside the mapped file, of any alignment
  uint64_t size;                // in bytes, as they are in the file
};

// An open file. Constructors of derived classes check all guarantees of their format and throw an
// Error that names the file, the tensor and the reason; afterwards no entry can refer outside the
// file.
class WeightFile : NonCopyable {
 public:
  virtual ~WeightFile() = default;

  const Path& path() const { return path_; }
  const std::vector<WeightInfo>& entries() const { return entries_; }  // sorted by name
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const WeightInfo& entry(std::string_view name) const;
  // The entry's shape and the type of its values in Brine's types (f32 for quantised values). More
  // axes than Brine has, or a type that it does not have, is an error.
  Shape shape_of(const WeightInfo& entry) const;
  virtual Dtype dtype_of(const WeightInfo& entry) const = 0;
  // Whether the entry's bytes are its values, row by row, in the type dtype_of().
  virtual bool in_order(const WeightInfo& /*entry*/) const { return true; }

  // A copy in allocated memory; the errors of shape_of() and dtype_of(), or a missing name.
  Tensor tensor(std::string_view name) const;
  // An entry over the mapped file itself, which stays open as long as the tensor exists: nothing is
  // read before it is used. It may be written to; the file never changes. Renaming a new file over
  // this one is harmless, truncating it or writing to it in place is not. It is a copy, as from
  // tensor(), if the bytes are not in order or not aligned to their type.
  Tensor mapped(const WeightInfo& entry) const;
  // Copies an entry into `to` (contiguous, of its shape), converting between float types, directly
  // from the mapped file, whose pages are released afterwards: it needs no memory besides `to`.
  void read(const WeightInfo& entry, const Tensor& to) const;
  // Releases the pages of an entry; nothing if a tensor is mapped to it.
  void forget(const WeightInfo& entry) const;

 protected:
  explicit WeightFile(const Path& path);
  void add(WeightInfo entry) { entries_.push_back(std::move(entry)); }
  void sort_entries();  // by name; called once all are added
  // Writes the values of an entry that is not in order; types and shapes were checked.
  virtual void gather(const WeightInfo& entry, const Tensor& to) const;
  const MappedFile& file() const { return *file_; }

 private:
  const WeightInfo* find(std::string_view name) const;
  void copy_in_order(const WeightInfo& entry, Dtype from, const Tensor& to) const;

  Path path_;
  std::shared_ptr<MappedFile> file_;
  mutable std::set<const unsigned char*> mapped_;  // starts of the entries with mapped tensors
  std::vector<WeightInfo> entries_;
};

// The product of a shape's sizes, 0 if one of them is. It is an error, which starts with `where`,
// if the product without the zeros does not fit in 63 bits.
uint64_t count_elements(const std::string& where, const std::vector<uint64_t>& shape);

// n elements of any alignment in another float type, or copied if the types are equal.
void convert_values(unsigned char* y, Dtype to, const unsigned char* x, Dtype from, int64_t n);

}  // namespace brine::data
