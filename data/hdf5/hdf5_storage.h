// Stored values of an HDF5 dataset. libhdf5 before 2.0 copies and unpacks with sizes that a damaged
// file names, and has read and written beyond its buffers that way. Therefore it only locates
// bytes; every size is compared with the file and the shape, and everything else is done here,
// unless BRINE_TRUST_HDF5. Included by data/hdf5/*.cpp only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/hdf5/hdf5_internal.h"

namespace brine::data::hdf5 {

// The bytes of a file, for several concurrent readers.
class StoredFile : NonCopyable {
 public:
  explicit StoredFile(const std::string& path);  // throws for a missing or irregular file
  ~StoredFile();

  uint64_t size() const { return size_; }
  // Throws Error("WHERE: ...") unless the range is inside the file.
  void read(const std::string& where, uint64_t offset, uint64_t bytes, char* out) const;

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
};

struct Filter {
  H5Z_filter_t kind = H5Z_FILTER_NONE;  // shuffle, deflate or fletcher32
  unsigned item = 1;                    // shuffle: bytes of one item
};
// The filters of a dataset in the order of writing; any other filter throws.
std::vector<Filter> read_filters(const std::string& where, hid_t properties);

// Undoes the filters of a chunk, last one first; bit i of `skipped` means that filter i was not
// applied. The result must have exactly `bytes` bytes, otherwise the chunk is refused.
std::vector<char> undo_filters(const std::string& where, const std::vector<Filter>& filters,
                               unsigned skipped, std::vector<char> stored, uint64_t bytes);

// The storage of a dataset's values in the file.
struct Storage {
  H5D_layout_t layout = H5D_CONTIGUOUS;
  std::vector<Filter> filters;
  Shape chunk;       // chunked only
  bool zero = true;  // unwritten values read as zero
};
Storage read_storage(const std::string& where, hid_t dataset);

// The last decoded chunk, for readers that read it row by row.
struct ChunkCache {
  Shape at;
  std::vector<char> values;
};

// Rows [first, first + count) of a dataset of `shape` (one row when it has no axes) into `out`, as
// they are stored. The sizes of `shape` and of a chunk must have been checked.
void read_stored_rows(const std::string& where, const StoredFile& file, hid_t dataset,
                      const Storage& storage, const Shape& shape, size_t item, int64_t first,
                      int64_t count, char* out, ChunkCache& cache);

}  // namespace brine::data::hdf5
