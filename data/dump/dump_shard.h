// A shard that is being written. Internal to data/dump/.
#pragma once

#include <memory>
#include <vector>

#include "data/dump/dump.h"
#include "data/hdf5/hdf5_file.h"

namespace brine::data {

inline constexpr const char* kTemporaryShard = ".tmp";

// Nothing if there is none.
void remove_file(const Path& path);

// "shard-00012.h5"
std::string shard_name(int64_t index);

// Writes TARGET.tmp; commit() makes it TARGET. Without commit() it is removed.
class ShardWriter : NonCopyable {
 public:
  // `filters` selects the compression; the chunks are the schema's.
  ShardWriter(const Path& target, const DumpSpec& spec, int64_t first, int64_t samples,
              const Hdf5Layout& filters);
  ~ShardWriter();

  // Appends sample i of the batch to the shard.
  void write(const DumpBatch& batch, int64_t i);
  bool full() const { return written_ == samples_; }
  // Close, fsync, checksum, rename, fsync of the directory.
  DumpShard commit();

 private:
  std::string where(const std::string& dataset) const;
  // Appends sample i of a batch's tensor to the dataset.
  void put(const TeacherTensor& tensor, const std::string& dataset, const Tensor& x, int64_t i);
  void put_map(const std::string& dataset, const Tensor& x, int64_t i);
  // Appends `count` values of x from `first` on, in the stored type, to stored_.
  void append(const Tensor& x, int64_t first, int64_t count, Dtype dtype,
              const std::string& dataset);
  int64_t length(int64_t i) const {
    return spec_.ragged ? spec_.lengths[size_t(first_ + i)] : spec_.tokens;
  }

  Path target_, temporary_;
  DumpSpec spec_;
  int64_t first_, samples_, written_ = 0;
  int64_t token_ = 0, map_ = 0;  // ragged: tokens and values of a head's map written so far
  std::unique_ptr<Hdf5Writer> file_;
  bool committed_ = false;
  std::vector<float> packed_;
  std::vector<unsigned char> stored_;
};

}  // namespace brine::data
