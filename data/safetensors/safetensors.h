// safetensors files: a strict reader by mmap and a writer whose bytes equal the reference's.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "data/io/file_io.h"
#include "tensor/tensor.h"

namespace brine::data {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;            // as the file names it: "F32", "BF16", "F8_E4M3"...
  std::vector<uint64_t> shape;  // any rank; the number of elements fits in 63 bits
  const unsigned char* bytes;   // inside the mapped file, of any alignment
  uint64_t size;                // in bytes; what dtype and shape ask for
};

// An open file. The constructor checks everything that the format promises and throws an Error that
// names the file, the tensor and the reason; afterwards no entry can lead outside the file.
class Safetensors {
 public:
  explicit Safetensors(const Path& path);

  const Path& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // sorted by name
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const SafetensorsEntry& entry(std::string_view name) const;
  // A copy in our own memory; BOOL becomes u8. A dtype that Brine has not, more than six axes or a
  // missing name is an error.
  Tensor tensor(std::string_view name) const;
  // An entry over the mapped file itself, which lives as long as the tensor: nothing is read before
  // it is used. It may be written to; the file never changes. A new file renamed over this one does
  // no harm, one that is cut or written in place does. A copy, as of tensor(), where the bytes are
  // not aligned to their type.
  Tensor mapped(const SafetensorsEntry& entry) const;
  // Copies an entry into `to` (contiguous, of its shape), converting between float types, straight
  // from the mapped file, whose pages are given back afterwards: the memory of `to` is all it
  // needs.
  void read(const SafetensorsEntry& entry, const Tensor& to) const;
  // Gives back the pages of an entry that was looked at; of one that a tensor is mapped to, none.
  void forget(const SafetensorsEntry& entry) const;
  // The entry's shape and type as ours; the same errors as tensor().
  Shape shape_of(const SafetensorsEntry& entry) const;
  Dtype dtype_of(const SafetensorsEntry& entry) const;

 private:
  const SafetensorsEntry* find(std::string_view name) const;

  Path path_;
  std::shared_ptr<MappedFile> file_;
  mutable std::set<const unsigned char*> mapped_;  // begins of the entries that tensors are over
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

using NamedTensor = std::pair<std::string, Tensor>;
using StringMap = std::map<std::string, std::string>;

// Streams a whole file into `sink`, ordered by descending dtype and then by name. Strided tensors
// are packed on the way. Other programs expect the metadata {"format": "pt"}.
void write_safetensors(const ByteSink& sink, const std::vector<NamedTensor>& tensors,
                       const StringMap& metadata = {{"format", "pt"}});

// The same into a file that appears at once and whole; a reader of the file before keeps it.
void save_safetensors(const Path& path, const std::vector<NamedTensor>& tensors,
                      const StringMap& metadata = {{"format", "pt"}});

}  // namespace brine::data
