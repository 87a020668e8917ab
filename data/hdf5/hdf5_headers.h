// Object headers and names of an HDF5 file, checked before libhdf5 decodes them. Releases before
// 2.0 read beyond their buffers when a message of a header, or a heap of names, is shorter than the
// sizes inside it. Included by data/hdf5/*.cpp only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "data/hdf5/hdf5_storage.h"

namespace brine::data::hdf5 {

// Remembers which headers of a file were checked. Links and attributes in fractal heaps, where
// files of the format 1.8 and later keep more than eight of them, are not headers and not checked.
class HeaderChecker {
 public:
  // Throws an Error that starts with `path` when the file does not start as an HDF5 file, or starts
  // with a user block.
  HeaderChecker(const std::string& path, const StoredFile& file);

  // The address of the root group's header.
  uint64_t root() const { return root_; }
  // Throws Error("WHERE: damaged object header: ...") unless every message of the header at
  // `address`, in all of its pieces, and the names of a group's members have the bytes that their
  // sizes require.
  // Returns the size of an element of its datatype, if it has one.
  std::optional<uint64_t> check_header(const std::string& where, uint64_t address, int depth = 0);

 private:
  class Walk;

  const StoredFile& file_;
  int address_bytes_ = 8, length_bytes_ = 8;
  uint64_t root_ = 0;
  uint64_t leaf_ = 4;                                 // half of the most names in a node
  std::map<uint64_t, std::optional<uint64_t>> good_;  // by address
  uint64_t work_ = 0;
};

}  // namespace brine::data::hdf5
