// The locations of a dataset's values, and reading them into memory.
#include "data/hdf5/hdf5_storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "data/io/file_io.h"

namespace brine::data::hdf5 {
namespace {

#if !BRINE_TRUST_HDF5
constexpr size_t kKeptChunkBytes = size_t(1) << 20;

uint64_t bytes_of(const Shape& shape, size_t item) { return uint64_t(shape.numel()) * item; }

// Calls f(at) for every chunk that contains some of the rows; `at` is its first element.
template <class F>
void each_chunk(const Shape& shape, const Shape& chunk, int64_t first, int64_t count, F&& f) {
  Shape at = shape;
  for (int i = 0; i < at.rank(); ++i) at[i] = 0;
  int64_t begin = first / chunk[0] * chunk[0];
  at[0] = begin;
  while (at[0] < first + count) {
    f(at);
    int axis = at.rank() - 1;
    for (; axis >= 0; --axis) {
      at[axis] += chunk[axis];
      if (axis == 0 || at[axis] < shape[axis]) break;
      at[axis] = 0;
    }
  }
}

// Copies the intersection of chunk `at` and the requested rows. Chunks at the edge are stored
// whole.
void copy_shared(const Shape& shape, const Shape& chunk, const Shape& at, size_t item,
                 int64_t first, int64_t count, const char* from, char* out) {
  int rank = shape.rank();
  Shape begin = at, end = at;  // in the dataset
  for (int i = 0; i < rank; ++i) {
    begin[i] = i == 0 ? std::max(at[0], first) : at[i];
    end[i] = std::min(at[i] + chunk[i], i == 0 ? first + count : shape[i]);
  }
  Shape index = begin;
  size_t run = size_t(end[rank - 1] - begin[rank - 1]) * item;
  while (true) {
    int64_t source = 0, target = 0;
    for (int i = 0; i < rank; ++i) {
      source = source * chunk[i] + index[i] - at[i];
      target = target * shape[i] + index[i] - (i == 0 ? first : 0);
    }
    std::memcpy(out + size_t(target) * item, from + size_t(source) * item, run);
    int axis = rank - 2;
    for (; axis >= 0; --axis) {
      if (++index[axis] < end[axis]) break;
      index[axis] = begin[axis];
    }
    if (axis < 0) return;
  }
}

std::vector<char> read_chunk(const std::string& where, const StoredFile& file, hid_t dataset,
                             const Storage& storage, const Shape& at, uint64_t bytes) {
  unsigned skipped = 0;
  haddr_t address = HADDR_UNDEF;
  hsize_t size = 0;
  must(H5Dget_chunk_info_by_coord(dataset, to_hsize(at).data(), &skipped, &address, &size) >= 0,
       where, "cannot find a chunk");
  if (address == HADDR_UNDEF) {
    check_format(storage.zero, where, ": chunk ", at,
                 " was never written and is not zero by default");
    return std::vector<char>(bytes);
  }
  check_format(!storage.filters.empty() || size == bytes, where, ": chunk ", at, " has ", size,
               " bytes, wanted ", bytes);
  check_format(size <= file.size(), where, ": chunk ", at, " has ", size, " bytes in a file of ",
               file.size());
  std::vector<char> stored(size);
  file.read(where, address, size, stored.data());
  return undo_filters(where, storage.filters, skipped, std::move(stored), bytes);
}

#endif

}  // namespace

StoredFile::StoredFile(const std::string& path) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  check_format(fd_ >= 0 || errno != ENOENT, path, ": there is no such file");
  if (fd_ < 0) throw_io(path, "open", errno);
  struct stat status {};
  bool known = fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
  if (!known) close(fd_);
  check_format(known, path, ": is not a regular file");
  size_ = uint64_t(status.st_size);
}

StoredFile::~StoredFile() { close(fd_); }

void StoredFile::read(const std::string& where, uint64_t offset, uint64_t bytes, char* out) const {
  check_format(bytes <= size_ && offset <= size_ - bytes, where, ": ", bytes, " bytes at ", offset,
               " are outside the file of ", size_);
  while (bytes > 0) {
    ssize_t got = pread(fd_, out, bytes, off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    check_format(got >= 0, where, ": cannot read: ", std::strerror(errno));
    check_format(got > 0, where, ": the file became shorter while it was read");
    out += got;
    offset += uint64_t(got);
    bytes -= uint64_t(got);
  }
}

Storage read_storage(const std::string& where, hid_t dataset) {
  Handle properties(H5Dget_create_plist(dataset), H5Pclose);
  must(properties.ok(), where, "cannot read the dataset's properties");
  Storage s;
  s.layout = H5Pget_layout(properties.id());
  check_format(s.layout != H5D_VIRTUAL, where, ": is a virtual dataset, which is refused");
  check_format(s.layout == H5D_COMPACT || s.layout == H5D_CONTIGUOUS || s.layout == H5D_CHUNKED,
               where, ": has an unknown storage layout");
  check_format(H5Pget_external_count(properties.id()) == 0, where,
               ": keeps its data in another file, which is refused");
  s.filters = read_filters(where, properties.id());
  check_format(s.filters.empty() || s.layout == H5D_CHUNKED, where, ": has filters without chunks");
  H5D_fill_value_t fill = H5D_FILL_VALUE_ERROR;
  must(H5Pfill_value_defined(properties.id(), &fill) >= 0, where, "cannot read the fill value");
  s.zero = fill != H5D_FILL_VALUE_USER_DEFINED;
  if (s.layout != H5D_CHUNKED) return s;
  hsize_t chunk[Shape::kMaxRank] = {};
  int rank = H5Pget_chunk(properties.id(), Shape::kMaxRank, chunk);
  check_format(rank >= 1 && rank <= Shape::kMaxRank, where, ": has chunks of ", rank, " axes");
  for (int i = 0; i < rank; ++i) {
    check_format(chunk[i] >= 1 && chunk[i] <= uint64_t(INT64_MAX), where, ": has chunks of ",
                 chunk[i], " entries");
    s.chunk.push_back(int64_t(chunk[i]));
  }
  return s;
}

#if BRINE_TRUST_HDF5

void read_stored_rows(const std::string& where, const StoredFile&, hid_t dataset, const Storage&,
                      const Shape& shape, size_t, int64_t first, int64_t count, char* out,
                      ChunkCache&) {
  Handle type(H5Dget_type(dataset), H5Tclose), space(H5Dget_space(dataset), H5Sclose);
  must(type.ok() && space.ok(), where, "cannot read");
  std::vector<hsize_t> begin(size_t(shape.rank())), rows = to_hsize(shape);
  Handle memory(H5Screate(H5S_SCALAR), H5Sclose);
  if (shape.rank() > 0) {
    begin[0] = hsize_t(first);
    rows[0] = hsize_t(count);
    memory = Handle(H5Screate_simple(shape.rank(), rows.data(), nullptr), H5Sclose);
    must(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, begin.data(), nullptr, rows.data(),
                             nullptr) >= 0,
         where, "cannot read");
  }
  must(H5Dread(dataset, type.id(), memory.id(), space.id(), H5P_DEFAULT, out) >= 0, where,
       "cannot read");
}

#else

void read_stored_rows(const std::string& where, const StoredFile& file, hid_t dataset,
                      const Storage& storage, const Shape& shape, size_t item, int64_t first,
                      int64_t count, char* out, ChunkCache& cache) {
  Shape rows = shape;
  if (rows.rank() > 0) rows[0] = count;
  uint64_t bytes = bytes_of(rows, item);
  uint64_t row = rows.rank() > 0 ? bytes / uint64_t(count) : bytes;
  if (storage.layout == H5D_CHUNKED) {
    uint64_t chunk_bytes = bytes_of(storage.chunk, item);
    each_chunk(shape, storage.chunk, first, count, [&](const Shape& at) {
      if (cache.values.empty() || cache.at != at) {
        cache.values = read_chunk(where, file, dataset, storage, at, chunk_bytes);
        cache.at = at;
      }
      copy_shared(shape, storage.chunk, at, item, first, count, cache.values.data(), out);
    });
    if (cache.values.size() > kKeptChunkBytes) cache.values = {};
    return;
  }
  uint64_t skip = rows.rank() > 0 ? uint64_t(first) * row : 0, whole = bytes_of(shape, item);
  if (storage.layout == H5D_COMPACT) {  // in the object's header, with a separate size
    check_format(H5Dget_storage_size(dataset) == whole, where, ": stores ",
                 H5Dget_storage_size(dataset), " bytes, wanted ", whole);
    std::vector<char> all(whole);
    Handle type(H5Dget_type(dataset), H5Tclose);
    must(type.ok() && H5Dread(dataset, type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()) >= 0,
         where, "cannot read");
    std::memcpy(out, all.data() + skip, bytes);
    return;
  }
  haddr_t address = H5Dget_offset(dataset);
  if (address == HADDR_UNDEF) {
    check_format(storage.zero, where, ": was never written and is not zero by default");
    std::memset(out, 0, bytes);
    return;
  }
  check_format(whole <= file.size() && address <= file.size() - whole, where, ": ", whole,
               " bytes at ", address, " are outside the file of ", file.size());
  file.read(where, address + skip, bytes, out);
}

#endif

}  // namespace brine::data::hdf5
