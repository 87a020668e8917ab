// Checkpoints: the manifest is written last and ends with a checksum of itself, so that any change
// is detected before its contents are used. What an output directory must not contain already.
#include "data/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "data/codec/checksums.h"
#include "data/config/named.h"
#include "data/io/json.h"
#include "data/io/temporary.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

using nlohmann::ordered_json;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kCheckpointFormat = "brine checkpoint";
constexpr uint64_t kMaxManifestBytes = 16 << 20;

std::string checksum_tail(std::string_view body) {
  return ",\n  \"sha256\": \"" + data::sha256_hex(body) + "\"\n}\n";
}

std::string manifest_text(int64_t step, const std::vector<CheckpointManifest::File>& files) {
  ordered_json manifest = {{"format", kCheckpointFormat},
                           {"version", kCheckpointVersion},
                           {"step", step},
                           {"program", "brine " BRINE_VERSION},
                           {"files", ordered_json::array()}};
  for (const auto& file : files) {
    manifest["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  std::string body = json_text(manifest, 2);
  body.resize(body.rfind('\n'));  // without the last brace
  return body + checksum_tail(body);
}

// The step in "step-00001234", or nothing.
std::optional<int64_t> step_of(const std::string& name) {
  std::string digits = name.starts_with("step-") ? name.substr(5) : "";
  if (digits.size() < 8 || digits.size() > 18) return {};
  if (digits.find_first_not_of("0123456789") != digits.npos) return {};
  return std::stoll(digits);
}

void check_files(const Path& checkpoint, const CheckpointManifest& manifest, bool with_content) {
  for (const auto& file : manifest.files) {
    Path path = checkpoint / file.name;
    std::error_code error;
    uint64_t bytes = std::filesystem::file_size(path, error);
    if (error) data::throw_io(path, "examine", error.value());
    check_format(bytes == file.bytes, path.string(), ": has ", bytes,
                 " bytes, but the manifest has ", file.bytes);
    check_format(!with_content || data::sha256_file(path.string()) == file.sha256, path.string(),
                 ": content does not match its checksum");
  }
}

// Removes checkpoints older than the newest `keep` intact ones up to `step`. Later steps belong to
// an abandoned part of the run; they are kept until the run reaches them again.
void remove_older(const Path& run_dir, int64_t step, int keep) {
  int good = 0;
  for (const Checkpoint& c : list_checkpoints(run_dir)) {
    if (c.step > step) continue;
    if (good >= keep) {
      data::remove_atomic(c.path);
    } else if (!checkpoint_defect(c.path, false)) {
      ++good;
    }
  }
}

}  // namespace

std::optional<std::string> checkpoint_defect(const Path& checkpoint, bool with_content) {
  try {
    check_files(checkpoint, read_checkpoint_manifest(checkpoint), with_content);
  } catch (const NewerCheckpoint&) {
    throw;
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

Path checkpoint_path(const Path& run_dir, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return run_dir / name;
}

Path save_checkpoint(const Path& run_dir, int64_t step, const std::vector<CheckpointFile>& files,
                     int keep) {
  Path path = checkpoint_path(run_dir, step);
  check(step_of(path.filename().string()) == step, "checkpoint: step ", step, " is out of range");
  check(keep >= 0, "checkpoint: cannot keep ", keep);
  data::remove_stale_temporaries(run_dir);
  data::TemporaryDir directory(run_dir, path.filename().string());
  std::vector<CheckpointManifest::File> written;
  for (const CheckpointFile& file : files) {
    check(is_plain_name(file.name) && file.name != kManifest, "checkpoint: '", file.name,
          "' is not the name of a file");
    data::NewFile out(directory.path() / file.name);
    data::Sha256 hash;
    file.write([&](std::string_view bytes) {
      out.write(bytes);
      hash.update(bytes);
    });
    out.sync();
    written.push_back({file.name, out.written(), hash.hex()});
  }
  {
    data::NewFile out(directory.path() / kManifest);
    out.write(manifest_text(step, written));
    out.sync();
  }
  std::optional<DurabilityUncertain> uncertain;
  try {
    directory.publish();
  } catch (const DurabilityUncertain& e) {
    uncertain = e;
  }
  std::optional<std::string> reason = checkpoint_defect(path);
  check(!reason, "checkpoint: just written, but not readable: ", reason.value_or(""));
  if (keep > 0) remove_older(run_dir, step, keep);
  if (uncertain) throw *uncertain;
  return path;
}

CheckpointManifest read_checkpoint_manifest(const Path& checkpoint) {
  const std::string name = (checkpoint / kManifest).string();
  const std::string text = data::read_file(name, kMaxManifestBytes);
  const size_t tail = checksum_tail("").size();
  check_format(text.size() > tail, name, ": is truncated");
  std::string_view body = std::string_view(text).substr(0, text.size() - tail);
  check_format(text.ends_with(checksum_tail(body)), name,
               ": is damaged (its checksum does not match)");
  CheckpointManifest manifest;
  try {
    ordered_json json = parse_ordered_json(text, name);
    check_format(json.at("format") == kCheckpointFormat, name,
                 ": is not the manifest of a checkpoint");
    manifest.version = integer_at(name, json, "version");
    if (manifest.version > kCheckpointVersion) {
      throw NewerCheckpoint(join(name, ": format version ", manifest.version, " (written by ",
                                 json.value("program", "another program"),
                                 ") is newer than this program reads (", kCheckpointVersion, ")"));
    }
    manifest.step = integer_at(name, json, "step");
    manifest.program = json.at("program").get<std::string>();
    std::set<std::string> names;
    for (const ordered_json& file : json.at("files")) {
      const int64_t bytes = integer_at(name, file, "bytes");
      manifest.files.push_back({file.at("name").get<std::string>(), uint64_t(bytes),
                                file.at("sha256").get<std::string>()});
      const std::string& of = manifest.files.back().name;
      check_format(is_plain_name(of), name, ": bad file name '", of, "'");
      check_format(names.insert(of).second, name, ": file '", of, "' is listed twice");
      check_format(bytes >= 0, name, ": ", of, " cannot have ", bytes, " bytes");
    }
  } catch (const ordered_json::exception& e) {
    throw Error(join(name, ": ", e.what()), ErrorKind::format);
  }
  std::optional<int64_t> step = step_of(checkpoint.filename().string());
  check_format(!step || *step == manifest.step, name, ": is of step ", manifest.step,
               ", unlike its directory");
  return manifest;
}

std::vector<Checkpoint> list_checkpoints(const Path& run_dir) {
  std::vector<Checkpoint> found;
  std::error_code error;
  std::filesystem::directory_iterator entries(run_dir, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (auto step = step_of(entries->path().filename().string()))
      found.push_back({*step, entries->path()});
  }
  if (error) data::throw_io(run_dir, "list", error.value());
  std::ranges::sort(found, std::greater(), &Checkpoint::step);
  return found;
}

LatestCheckpoint latest_good_checkpoint(const Path& run_dir) {
  LatestCheckpoint latest;
  for (const Checkpoint& candidate : list_checkpoints(run_dir)) {
    std::optional<std::string> reason = checkpoint_defect(candidate.path);
    if (!reason) {
      latest.good = candidate;
      break;
    }
    latest.skipped.push_back(candidate.path.string() + ": " + *reason);
  }
  return latest;
}

namespace {

struct Marker {
  Holding kind;
  const char* file;
};
constexpr Marker kMarkers[] = {{Holding::model, "config.json"},
                               {Holding::model, "model.safetensors"},
                               {Holding::model, "model.safetensors.index.json"},
                               {Holding::model, "pytorch_model.bin"},
                               {Holding::model, "pytorch_model.bin.index.json"},
                               {Holding::shards, "manifest.json"},
                               {Holding::run, "config.toml"},
                               {Holding::run, "log.jsonl"},
                               {Holding::tokenizer, "tokenizer.json"},
                               {Holding::tokenizer, "tokenizer.model"},
                               {Holding::tokenizer, "vocab.json"},
                               {Holding::tokenizer, "vocab.txt"}};

constexpr Named<Holding> kHoldings[] = {{Holding::model, "a model"},
                                        {Holding::shards, "a dump or token shards"},
                                        {Holding::run, "a run"},
                                        {Holding::tokenizer, "a tokenizer"}};

// The name of a checkpoint in a directory; "" if there is none.
std::string checkpoint_in(const Path& dir) {
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && entry.is_directory()) return name;
  }
  return "";
}

}  // namespace

void refuse_occupied(const Path& out, std::initializer_list<Holding> allowed) {
  if (!std::filesystem::is_directory(out)) return;
  auto is_allowed = [&](Holding kind) {
    return std::find(allowed.begin(), allowed.end(), kind) != allowed.end();
  };
  auto refuse = [&](Holding kind, const std::string& file) {
    throw Error(join(out.string(), ": already contains ", name_of(kind, kHoldings), " (", file,
                     "); give another directory"));
  };
  bool is_run = false;
  for (const Marker& marker : kMarkers) {
    if (!std::filesystem::exists(out / marker.file)) continue;
    is_run = is_run || marker.kind == Holding::run;
    const bool of_run = is_run && marker.kind == Holding::tokenizer && is_allowed(Holding::run);
    if (!is_allowed(marker.kind) && !of_run) refuse(marker.kind, marker.file);
  }
  if (is_allowed(Holding::run)) return;
  if (const std::string checkpoint = checkpoint_in(out); !checkpoint.empty())
    refuse(Holding::run, checkpoint);
}

}  // namespace brine::data
