// Writes a dump while the teacher computes: one thread performs conversion, HDF5, checksums and
// commits, and waits for pending copies from a device. After a crash, a writer for the same
// directory and spec continues the dump.
#pragma once

#include <functional>
#include <memory>

#include "data/dump/dump.h"
#include "tensor/functions/transfer.h"

namespace brine::data {

struct DumpWriterOptions {
  uint64_t shard_bytes = uint64_t(1) << 30;  // of values, before compression
  bool shuffle = false;
  int deflate = 0;   // 0 to 9
  size_t queue = 2;  // maximum number of batches that wait for the thread, in addition to the one
                     // being written
  std::function<uint64_t(const Path&)> free_bytes = free_disk_bytes;
  // This writer is one of several that share the missing shards of a directory in turn. The first
  // one starts or continues the dump, writes the manifest and is made before the others.
  int part = 0, parts = 1;
};

// Throws when the values of `samples` more samples and a reserve (1 % and 16 MiB) do not fit on the
// disk.
void check_disk(const DumpSpec& spec, const Path& dir, int64_t samples,
                const DumpWriterOptions& options = {});

class DumpWriter : NonCopyable {
 public:
  // Starts a dump in `dir` or continues one: its spec must be the same, its finished shards are
  // verified by size and checksum, incomplete ones are deleted. A directory with shards but no
  // manifest and a dump that another process is writing are errors.
  DumpWriter(const Path& dir, const DumpSpec& spec, const DumpWriterOptions& options = {});
  // Without finish() the unfinished shard is deleted.
  ~DumpWriter();

  // The next samples to give: `samples` of them from `first` on. 0 samples: the dump is complete.
  struct Run {
    int64_t first = 0, samples = 0;
    int64_t in_shard = 0;  // of them, those of the first one's shard
  };
  Run missing() const;

  // Adds the samples from missing().first on. The tensors are f32 (integers i32) or, except maps,
  // of the stored type; they are kept until written and must not change. Tensors that `arriving` is
  // still copying are read when they have arrived: the thread waits, not the caller. If the spec
  // stores top-n logits, logits may be [B, T, V] without ids: the top is selected here, which
  // waits. Undefined lengths mean T; windows may be empty: the spec has them. Waits while `queue`
  // batches are waiting. The next call throws an error of the thread.
  void put(DumpBatch batch, Downloads arriving = {});

  void wait();  // until the samples that were given are written
  // Waits; the shards finished since the last call.
  std::vector<DumpShard> take_finished();
  // Those of other parts, for the first one, which lists them in the manifest.
  void add_finished(const std::vector<DumpShard>& shards);

  // Waits until everything is on the disk. Throws when samples of this part are missing, or in the
  // first one those of any.
  void finish();

  // One line for each shard that was verified and kept, or is damaged and written again.
  const std::vector<std::string>& notes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brine::data
