// Stored values of an HDF5 dataset. libhdf5 before 2.0 copies and unpacks with sizes that a damaged
// file names, and has read and written beyond its buffers that way. So it is only asked where bytes
// are; every size is compared with the file and the shape, and the rest is done here, unless
// BRINE_TRUST_HDF5. Included by data/hdf5/*.cpp only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/hdf5/hdf5_internal.h"

namespace brine::data::hdf5 {

// The bytes of a file, for several readers at once.
class StoredFile {
 public:
  explicit StoredFile(const std::string& path);  // a file that is not there or not regular throws
  ~StoredFile();
  StoredFile(const StoredFile&) = delete;
  StoredFile& operator=(const StoredFile&) = delete;

  uint64_t size() const { return size_; }
  // Throws Error("WHERE: ...") unless all of it lies inside the file.
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

// Undoes the filters of a chunk, last one first; bit i of `skipped` says that filter i was not
// applied. The result holds exactly `bytes` bytes or the chunk is refused.
std::vector<char> undo_filters(const std::string& where, const std::vector<Filter>& filters,
                               unsigned skipped, std::vector<char> stored, uint64_t bytes);

// How a dataset's values lie in the file.
struct Storage {
  H5D_layout_t layout = H5D_CONTIGUOUS;
  std::vector<Filter> filters;
  Shape chunk;       // chunked only
  bool zero = true;  // what was never written reads as zero
};
Storage read_storage(const std::string& where, hid_t dataset);

// The chunk that was unpacked last, for readers that go through it row by row.
struct ChunkCache {
  Shape at;
  std::vector<char> values;
};

// Rows [first, first + count) of a dataset of `shape` (one row when it has no axes) into `out`, as
// they are stored. The sizes of `shape` and of a chunk must have been found believable.
void read_stored_rows(const std::string& where, const StoredFile& file, hid_t dataset,
                      const Storage& storage, const Shape& shape, size_t item, int64_t first,
                      int64_t count, char* out, ChunkCache& cache);

}  // namespace brine::data::hdf5
