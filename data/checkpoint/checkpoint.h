// Checkpoints: directories that are published atomically, verified by checksum, with a fallback to
// the last intact one; docs/formats.md describes them. Output directories that are something else.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "data/io/file_io.h"

namespace brine::data {

inline constexpr int kCheckpointVersion = 1;

// A checkpoint written by a later version of Brine.
struct NewerCheckpoint : Error {
  using Error::Error;
};

struct CheckpointFile {
  std::string name;                                  // inside the checkpoint, without directories
  std::function<void(const data::ByteSink&)> write;  // streams the content
};

struct Checkpoint {
  int64_t step = 0;
  Path path;
};

// RUN_DIR/step-00001234.
Path checkpoint_path(const Path& run_dir, int64_t step);

// Writes all files and a manifest to a directory next to the others, publishes it in one step,
// reads it back and only then removes those older than the `keep` newest intact ones (0: keeps
// all). A checkpoint of the same step is replaced. Throws Error when nothing was committed,
// data::DurabilityUncertain when the checkpoint exists but may not survive a power failure (then
// nothing is removed). Incomplete directories of killed processes in run_dir are deleted first.
Path save_checkpoint(const Path& run_dir, int64_t step, const std::vector<CheckpointFile>& files,
                     int keep);

struct CheckpointManifest {
  struct File {
    std::string name;
    uint64_t bytes = 0;
    std::string sha256;
  };
  int64_t version = 0;
  int64_t step = 0;
  std::string program;  // "brine 0.1.0"
  std::vector<File> files;
};

// Reads and verifies only the manifest. Throws NewerCheckpoint, or Error for any other defect.
CheckpointManifest read_checkpoint_manifest(const Path& checkpoint);

// Verifies manifest, sizes and, with_content, checksums: nothing when the checkpoint is intact, the
// reason otherwise. NewerCheckpoint is thrown.
std::optional<std::string> checkpoint_defect(const Path& checkpoint, bool with_content = true);

// All checkpoints of a run, newest first, unverified.
std::vector<Checkpoint> list_checkpoints(const Path& run_dir);

struct LatestCheckpoint {
  std::optional<Checkpoint> good;    // the newest intact one
  std::vector<std::string> skipped;  // newer ones that are damaged: path and reason, one line each
  // For a message: "; skipped PATH: REASON" of the newest, or "".
  std::string why() const { return skipped.empty() ? "" : "; skipped " + skipped.front(); }
};

// Throws NewerCheckpoint when a newer version wrote one of those that it examines: falling back to
// an earlier one would lose that work.
LatestCheckpoint latest_good_checkpoint(const Path& run_dir);

// Directories that already are something: a model, a run, a dump, token shards, a tokenizer.
enum class Holding : uint8_t { model, shards, run, tokenizer };

// Throws when the directory `out`, which need not exist, has a file by which a program knows one of
// these, unless its kind is in `allowed`: a program that reads the directory later would find that
// file and not what is written now. A run has a tokenizer.
void refuse_occupied(const Path& out, std::initializer_list<Holding> allowed = {});

}  // namespace brine::data
