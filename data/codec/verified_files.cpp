// Checksums that were compared: the file that remembers them.
#include "data/codec/verified_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/codec/sha256.h"
#include "data/io/json.h"
#include "data/io/temporary.h"

namespace brine::data {
namespace {

constexpr uint64_t kMostBytes = uint64_t(1) << 28;
constexpr const char* kFormat = "brine-verified";
constexpr int64_t kVersion = 1;

}  // namespace

VerifiedFiles::VerifiedFiles(const Path& dir, Hashing hashing) : dir_(dir), hashing_(hashing) {
  const Path path = dir / kVerifiedFiles;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  try {
    const std::string where = path.string();
    const Json json = parse_json_or_discard(read_file(path, kMostBytes), where);
    if (!json.is_object() || text_at(where, json, "format") != kFormat ||
        integer_at(where, json, "version") != kVersion)
      return;
    for (const Json& file : json.value("files", Json::array()))
      files_[text_at(where, file, "name")] = {.bytes = integer_at(where, file, "bytes"),
                                              .changed = integer_at(where, file, "changed"),
                                              .sha256 = text_at(where, file, "sha256")};
  } catch (const std::exception&) {  // only hashing again is lost
    files_.clear();
  }
}

VerifiedFiles::State VerifiedFiles::state_of(const Path& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {.bytes = int64_t(info.st_size),
          .changed = int64_t(info.st_ctim.tv_sec) * 1'000'000'000 + info.st_ctim.tv_nsec};
}

bool VerifiedFiles::has(const std::string& name, const std::string& sha256) {
  const Path path = dir_ / name;
  State now = state_of(path);
  now.sha256 = sha256;
  const auto known = files_.find(name);
  if (hashing_ == Hashing::changed && known != files_.end() && known->second == now) return true;
  hashed_ += uint64_t(std::max<int64_t>(now.bytes, 0));
  const bool good = sha256_file(path.string()) == sha256;
  State after = state_of(path);
  after.sha256 = sha256;
  if (!good) {  // nor is it trusted at the next start
    new_ |= files_.erase(name) > 0;
    keep();
  } else if (after == now) {  // one that is being written is hashed again
    new_ |= known == files_.end() || known->second != now;
    files_[name] = now;
  }
  return good;
}

void VerifiedFiles::keep() {
  if (!std::exchange(new_, false)) return;
  Json json = {{"format", kFormat}, {"version", kVersion}, {"files", Json::array()}};
  for (const auto& [name, file] : files_)
    json["files"].push_back({{"name", name},
                             {"bytes", file.bytes},
                             {"changed", file.changed},
                             {"sha256", file.sha256}});
  try {
    remove_stale_temporaries(dir_);
    write_file_atomic(dir_ / kVerifiedFiles, json_text(json, 2) + "\n");
  } catch (const std::exception&) {  // read-only, or another process writes the same
  }
}

}  // namespace brine::data
