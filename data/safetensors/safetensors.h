// safetensors files: a strict reader by mmap and a writer with the same bytes as the reference's.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/io/file_io.h"
#include "tensor/named_tensor.h"

namespace brine::data {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;            // the name in the file: "F32", "BF16", "F8_E4M3"...
  std::vector<uint64_t> shape;  // any rank; the number of elements fits in 63 bits
  const unsigned char* bytes;   // inside the mapped file, of any alignment
  uint64_t size;                // in bytes; as dtype and shape require
};

// An open file. The constructor checks all guarantees of the format and throws an Error that names
// the file, the tensor and the reason; afterwards no entry can refer outside the file.
class Safetensors {
 public:
  explicit Safetensors(const Path& path);

  const Path& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // sorted by name
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const SafetensorsEntry& entry(std::string_view name) const;
  // A copy in allocated memory; BOOL becomes u8. A dtype that Brine does not have, more than six
  // axes or a missing name is an error.
  Tensor tensor(std::string_view name) const;
  // An entry over the mapped file itself, which lives as long as the tensor: nothing is read before
  // it is used. It may be written to; the file never changes. Renaming a new file over this one is
  // harmless, truncating it or writing to it in place is not. It is a copy, as from tensor(), if
  // the bytes are not aligned to their type.
  Tensor mapped(const SafetensorsEntry& entry) const;
  // Copies an entry into `to` (contiguous, of its shape), converting between float types, directly
  // from the mapped file, whose pages are released afterwards: it needs no memory besides `to`.
  void read(const SafetensorsEntry& entry, const Tensor& to) const;
  // Releases the pages of an entry; nothing if a tensor is mapped to it.
  void forget(const SafetensorsEntry& entry) const;
  // The entry's shape and type in Brine's types; the same errors as tensor().
  Shape shape_of(const SafetensorsEntry& entry) const;
  Dtype dtype_of(const SafetensorsEntry& entry) const;

 private:
  const SafetensorsEntry* find(std::string_view name) const;

  Path path_;
  std::shared_ptr<MappedFile> file_;
  mutable std::set<const unsigned char*> mapped_;  // starts of the entries with mapped tensors
  std::vector<SafetensorsEntry> entries_;
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
