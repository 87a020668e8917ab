// The weights of a model: one file or several with an index.
#include "data/checkpoint/weights.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "data/gguf/gguf_model.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/safetensors/safetensors.h"
#include "data/torch/torch_file.h"

namespace brine::data {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kTorch = "pytorch_model.bin";
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";
constexpr uint64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxListed = 4;  // missing shards

// Tensors by shard, as in the index.
std::map<std::string, std::vector<std::string>> read_index(const std::string& file) {
  const std::string ending = file.ends_with(kTorchIndex) ? ".bin" : ".safetensors";
  std::map<std::string, std::vector<std::string>> shards;
  nlohmann::json json;
  try {
    json = brine::parse_json(read_file(file, kMaxIndexBytes), file);
  } catch (const nlohmann::json::exception&) {
    throw Error(file + ": not JSON", ErrorKind::format);
  }
  auto map = json.is_object() ? json.find("weight_map") : json.end();
  check_format(json.is_object() && map != json.end() && map->is_object(), file,
               ": has no weight_map");
  for (const auto& [tensor, shard] : map->items()) {
    check_format(shard.is_string(), file, ": the shard of '", shown(tensor), "' is ",
                 json_text(shard));
    std::string name = shard.get<std::string>();
    check_format(is_plain_name(name) && name.ends_with(ending), file, ": '", shown(name),
                 "' is not the name of a shard");
    shards[name].push_back(tensor);
  }
  check_format(!shards.empty(), file, ": names no tensor");
  return shards;
}

void check_shards(const std::string& index, const Path& directory,
                  const std::map<std::string, std::vector<std::string>>& shards) {
  std::vector<std::string> missing;
  for (const auto& [shard, tensors] : shards) {
    if (!std::filesystem::exists(directory / shard)) missing.push_back(shard);
  }
  std::string list;
  for (size_t i = 0; i < std::min(missing.size(), kMaxListed); ++i)
    list += (i ? ", " : "") + shown(missing[i]);
  if (missing.size() > kMaxListed) list += join(" and ", missing.size() - kMaxListed, " more");
  check_found(missing.empty(), index, ": ", missing.size(), " of ", shards.size(), " shards ",
              missing.size() == 1 ? "is" : "are", " missing: ", list);
}

std::unique_ptr<WeightFile> open_weights(const Path& file) {
  if (is_gguf(file)) return std::make_unique<GgufModel>(file);
  if (file.extension() == ".bin") return std::make_unique<TorchFile>(file);
  return std::make_unique<Safetensors>(file);
}

// The file to begin with: the path itself if it is not a directory.
Path first_file(const Path& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return path;
  for (const char* name : {kSingle, kIndex, kTorch, kTorchIndex}) {
    if (std::filesystem::exists(path / name, ignored)) return path / name;
  }
  throw Error(join(path.string(), ": has no ", kSingle, ", no ", kIndex, " and no ", kTorch),
              ErrorKind::not_found);
}

}  // namespace

WeightFiles::WeightFiles(const Path& path) {
  const Path first = first_file(path);
  source_ = first.string();
  if (source_.ends_with(".index.json")) {
    open_index(path);
  } else {
    files_.push_back(open_weights(first));
  }
  for (const auto& file : files_) {
    size_t begin = entries_.size();
    for (const WeightInfo& e : file->entries()) {
      if (!std::binary_search(unnamed_.begin(), unnamed_.end(), e.name))
        entries_.push_back({file.get(), &e});
    }
    std::sort(entries_.begin() + int64_t(begin), entries_.end(),
              [](const auto& a, const auto& b) { return a.entry->bytes < b.entry->bytes; });
  }
}

void WeightFiles::open_index(const Path& directory) {
  const std::map<std::string, std::vector<std::string>> shards = read_index(source_);
  check_shards(source_, directory, shards);
  std::map<std::string, std::string> shard_of;
  for (const auto& [shard, tensors] : shards) {
    std::unique_ptr<WeightFile> file = open_weights(directory / shard);
    for (const std::string& name : tensors) {
      check_format(file->contains(name), source_, ": tensor '", shown(name),
                   "' is not in its shard ", shard);
      shard_of[name] = shard;
    }
    files_.push_back(std::move(file));
  }
  for (const auto& file : files_) {
    std::string shard = file->path().filename().string();
    for (const WeightInfo& e : file->entries()) {
      auto it = shard_of.find(e.name);
      if (it == shard_of.end()) unnamed_.push_back(e.name);
      check_format(it == shard_of.end() || it->second == shard, source_, ": tensor '",
                   shown(e.name), "' is in ", shard, " and in ", it->second);
    }
  }
  std::sort(unnamed_.begin(), unnamed_.end());
}

bool equal(const WeightEntry& a, const WeightEntry& b) {
  const WeightInfo &x = *a.entry, &y = *b.entry;
  if (x.dtype != y.dtype || x.shape != y.shape) return false;
  bool same = false;
  if (a.file->in_order(x) && b.file->in_order(y)) {
    same = x.bytes == y.bytes || x.size == 0 || std::memcmp(x.bytes, y.bytes, x.size) == 0;
  } else {
    const Tensor u = a.file->tensor(x.name), v = b.file->tensor(y.name);
    same = std::memcmp(u.raw(), v.raw(), size_t(u.numel()) * item_size(u.dtype())) == 0;
  }
  a.file->forget(x);
  b.file->forget(y);
  return same;
}

void save_weights(const Path& directory, const std::vector<NamedTensor>& tensors,
                  uint64_t shard_bytes) {
  auto bytes_of = [](const NamedTensor& t) {
    return uint64_t(t.tensor.numel()) * item_size(t.tensor.dtype());
  };
  std::vector<std::vector<NamedTensor>> shards(1);
  uint64_t total = 0, filled = 0;
  for (const NamedTensor& t : tensors) {
    uint64_t bytes = bytes_of(t);
    if (shard_bytes && !shards.back().empty() && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(t);
    filled += bytes;
    total += bytes;
  }
  if (shards.size() == 1) {
    save_safetensors(directory / kSingle, tensors);
    return;
  }
  check(shards.size() < 100000, "export: ", shards.size(), " shards; give a larger shard_size");
  ordered_json map = ordered_json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    save_safetensors(directory / name, shards[i]);
    for (const NamedTensor& t : shards[i]) map[t.name] = name;
  }
  ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file_atomic(directory / kIndex, json_text(index, 2) + "\n");
}

}  // namespace brine::data
