// Reads samples of a dump in any order, directly or ahead of time in a thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "data/corpus/buckets.h"
#include "data/dump/dump.h"

namespace brine::data {

// The tensors to read of a batch.
struct DumpWants {
  std::set<std::string, std::less<>> parts = {};  // it is an error if the dump does not have it
  // In a ragged dump a batch has as many tokens as its longest sample, rounded up by these steps
  // but limited to the longest sample of all.
  LengthSteps tokens_steps = {};
  // Tensors returned in the stored type; all others, and always maps, are f32.
  enum class AsStored { nothing, queries_and_keys, all } as_stored = AsStored::nothing;
};

// Thread-safe.
class DumpReader : NonCopyable {
 public:
  // Checks the manifest, and that every shard exists with its size. An unfinished dump is an error.
  explicit DumpReader(const Path& dir);
  ~DumpReader();

  const Path& dir() const;
  const DumpManifest& manifest() const;
  const DumpSpec& spec() const { return manifest().spec; }
  bool has(std::string_view part) const { return spec().has(part); }
  // All tensors of the dump.
  DumpWants everything() const;

  // Reads every byte and compares checksums; the error names the shard. `progress` gets the number
  // of finished shards.
  void verify(const std::function<void(int64_t done)>& progress = {}) const;

  // The samples as a batch in this order. Lengths are always included, tokens and windows if the
  // dump stores them.
  DumpBatch read(std::span<const int64_t> samples, const DumpWants& wants) const;
  DumpBatch read(std::span<const int64_t> samples) const { return read(samples, everything()); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Throws Error(where, ": ...") unless every value of a sample is finite and its attention outputs
// follow from q, k and v.
void check_dump_sample(const DumpReader& reader, int64_t sample, const std::string& where);

// Reads the batches of steps first_step, first_step + 1, ... ahead of time.
class DumpPrefetch : NonCopyable {
 public:
  // The samples of a step; none: the end. Called in the reading thread.
  using Order = std::function<std::vector<int64_t>(int64_t step)>;
  // At most `ahead` batches wait while one more is read. They are in memory that `device` can copy
  // from directly. The reader must outlive this.
  DumpPrefetch(const DumpReader& reader, Order order, const DumpWants& wants,
               int64_t first_step = 0, size_t ahead = 2, Device device = {});
  ~DumpPrefetch();  // stops at once, at the latest when the current batch is read

  // The next batch; nothing after the last one. An error of the thread is thrown here, after the
  // batches before it.
  std::optional<DumpBatch> next();
  // The next batch if it is ready; never waits or throws.
  std::optional<DumpBatch> next_if_read();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brine::data
