// Directories that already are something.
#include "data/checkpoint/occupied.h"

#include <algorithm>
#include <string>

#include "tensor/base/error.h"

namespace brine::data {
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

const char* name_of(Holding kind) {
  switch (kind) {
    case Holding::model:
      return "a model";
    case Holding::shards:
      return "a dump or token shards";
    case Holding::run:
      return "a run";
    case Holding::tokenizer:
      return "a tokenizer";
  }
  return "";
}

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
    throw Error(join(out.string(), ": already contains ", name_of(kind), " (", file,
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
