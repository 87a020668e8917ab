// Files of a directory whose checksums were compared, remembered beside them, so that a large file
// is hashed when it is new or has changed, not at every start.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace brine::data {

enum class Hashing : uint8_t { changed, all };  // files that are new or have changed; every file

// What is remembered is the file kVerifiedFiles of the directory. One that cannot be read remembers
// nothing, in a directory that cannot be written nothing is remembered: files are hashed then.
inline constexpr const char* kVerifiedFiles = "verified.json";

class VerifiedFiles {
 public:
  explicit VerifiedFiles(const std::filesystem::path& dir, Hashing hashing = Hashing::changed);

  // Whether the file has this checksum (64 hex digits). It is not read if it had it before and its
  // size and time of change (ctime, which copying and setting its dates change, too) are the same.
  bool has(const std::string& name, const std::string& sha256);
  // Remembers what has() found, replacing the file at once: several processes may do so together.
  void keep();

  uint64_t hashed_bytes() const { return hashed_; }  // by has()

 private:
  struct State {
    int64_t bytes = -1, changed = 0;  // ctime in nanoseconds; bytes -1: there is no such file
    std::string sha256 = {};
    bool operator==(const State&) const = default;
  };
  static State state_of(const std::filesystem::path& path);

  std::filesystem::path dir_;
  Hashing hashing_;
  std::map<std::string, State> files_ = {};
  bool new_ = false;  // files_ differs from what is stored
  uint64_t hashed_ = 0;
};

}  // namespace brine::data
