// Writes a dump while the teacher computes: one thread of the writer's owns conversion, HDF5,
// checksums and commits, and waits for what a device still sends. What a crash leaves can be
// continued by making a writer for the same directory and spec.
#pragma once

#include <functional>
#include <memory>

#include "data/dump/dump.h"
#include "tensor/device/transfer.h"

namespace brine::data {

struct DumpWriterOptions {
  uint64_t shard_bytes = uint64_t(1) << 30;  // of values, before compression
  bool shuffle = false;
  int deflate = 0;   // 0 to 9
  size_t queue = 2;  // batches that wait for the thread at most, beside the one it writes
  std::function<uint64_t(const Path&)> free_bytes = free_disk_bytes;
};

// Throws when the values of `samples` more samples and a reserve (1 % and 16 MiB) do not fit.
void check_disk(const DumpSpec& spec, const Path& dir, int64_t samples,
                const DumpWriterOptions& options = {});

class DumpWriter {
 public:
  // Starts a dump in `dir` or continues one: its spec must be the same, its finished shards are
  // verified by size and checksum, half-written ones are dropped. A directory with shards but no
  // manifest, an adopted dump and one that another process is writing are errors.
  DumpWriter(const Path& dir, const DumpSpec& spec, const DumpWriterOptions& options = {});
  // Without finish() the shard that is being written is dropped.
  ~DumpWriter();
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  // The samples to give next: `samples` of them from `first` on. 0 samples: the dump is whole.
  struct Run {
    int64_t first = 0, samples = 0;
  };
  Run missing() const;

  // Samples missing().first and following. The tensors are kept until written and must not change.
  // Those that `arriving` has under way are read when they are there: the thread waits, not the
  // caller. Where the spec says top-n, logits may be [B, T, V] without ids: the top is taken here,
  // which waits. Undefined lengths mean T; windows may be empty: the spec knows them. Waits while
  // `queue` batches do. An error of the thread is thrown by the next call.
  void put(DumpBatch batch, Downloads arriving = {});

  // Waits until everything is on the disk. Throws when samples are missing.
  void finish();

  // One line for each shard that was verified and kept, or found damaged and is written again.
  const std::vector<std::string>& notes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brine::data
