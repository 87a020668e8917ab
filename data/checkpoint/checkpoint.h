// Checkpoints: directories that appear at once and whole, are checked by checksum and fall back to
// the last good one. The layout is described in docs/checkpoint-format.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/io/file_io.h"

namespace brine::data {

using data::Path;

inline constexpr int kCheckpointVersion = 1;

// A checkpoint that a later version of Brine has written.
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

// Writes all files and a manifest beside the others, publishes the directory in one step, reads it
// back and only then removes what is older than the `keep` newest good ones (0: keeps all). One of
// the same step is replaced. Throws Error when nothing was committed, data::DurabilityUncertain
// when the checkpoint stands but may not survive a power cut (nothing is removed then). What killed
// processes left half-written in run_dir is swept first.
Path save_checkpoint(const Path& run_dir, int64_t step, const std::vector<CheckpointFile>& files,
                     int keep);

struct CheckpointManifest {
  struct File {
    std::string name;
    uint64_t bytes = 0;
    std::string sha256;
  };
  int version = 0;
  int64_t step = 0;
  std::string program;  // "brine 0.1.0"
  std::vector<File> files;
};

// Reads and checks the manifest alone. Throws NewerCheckpoint, or Error for any other defect.
CheckpointManifest read_checkpoint_manifest(const Path& checkpoint);

// Checks manifest, sizes and checksums: nothing when the checkpoint is good, the reason otherwise.
// NewerCheckpoint is thrown.
std::optional<std::string> checkpoint_defect(const Path& checkpoint);

// All of a run, newest first, unchecked.
std::vector<Checkpoint> list_checkpoints(const Path& run_dir);

struct LatestCheckpoint {
  std::optional<Checkpoint> good;    // the newest good one
  std::vector<std::string> skipped;  // newer ones that are not: path and reason, one line each
};

// Throws NewerCheckpoint when a newer version wrote one of those that it must look at: falling
// back behind it would lose that work.
LatestCheckpoint latest_good_checkpoint(const Path& run_dir);

}  // namespace brine::data
