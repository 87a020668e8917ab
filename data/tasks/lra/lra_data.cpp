// Writing the splits of generated tasks.
#include "data/tasks/lra/lra_data.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "data/codec/sha256.h"
#include "data/io/json.h"
#include "data/io/temporary.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

// A split while it is written, and what the manifest says of it.
class SplitFile {
 public:
  explicit SplitFile(const Path& path) : name_(path.filename().string()), file_(path) {}

  void write(std::string_view bytes) {
    file_.write(bytes);
    hash_.update(bytes.data(), bytes.size());
  }
  // An example of the class, `length` tokens long.
  void count(int64_t label, int64_t length) {
    ++labels_[label];
    tokens_ += length;
    shortest_ = examples_ ? std::min(shortest_, length) : length;
    longest_ = std::max(longest_, length);
    ++examples_;
  }
  Json finish() {
    file_.sync();
    int64_t largest = 0;
    for (const auto& [label, count] : labels_) largest = std::max(largest, count);
    return {{"file", name_},
            {"sha256", hash_.hex()},
            {"examples", examples_},
            {"shortest", shortest_},
            {"longest", longest_},
            {"mean_length", double(tokens_) / double(examples_)},
            {"largest_class", double(largest) / double(examples_)}};
  }

 private:
  std::string name_;
  NewFile file_;
  Sha256 hash_;
  std::map<int64_t, int64_t> labels_;
  int64_t examples_ = 0, tokens_ = 0, shortest_ = 0, longest_ = 0;
};

// The expressions of a split, a row each.
void write_split(SplitFile& file, ListOpsGenerator& generator, int64_t count, LraDraws draws) {
  file.write("Source\tTarget\n");
  for (int64_t i = 0; i < count; ++i) {
    const ListOpsExample e = generator.next(draws);
    file.write(e.expression + '\t' + std::to_string(e.value) + '\n');
    file.count(e.value, e.length);
  }
}

Json rules_of(ListOpsRules listops) {
  Schema rules;
  listops.describe(rules);
  return rules.to_json();
}

}  // namespace

void LraData::describe(Schema& s) {
  s.choice("task", task, {"listops"}, "What to write", {.required = true, .positional = true});
  s.field("out", out, "Directory to write", {.required = true});
  s.field("train", train, "Examples of the training split", {.min = 1});
  s.field("valid", valid, "Examples of the validation split", {.min = 1});
  s.field("test", test, "Examples of the test split", {.min = 1});
  listops.describe(s);
}

Json write_lra_data(const LraData& what, uint64_t seed) {
  check(what.task == "listops", "lra: unknown task '", what.task, "'");
  const Path out = std::filesystem::absolute(what.out).lexically_normal();
  const Path target = out.has_filename() ? out : out.parent_path();
  const bool is_new = !std::filesystem::exists(target);
  check(is_new || (std::filesystem::is_directory(target) && std::filesystem::is_empty(target)),
        what.out, ": exists already and is not an empty directory");
  ListOpsGenerator generator(what.listops);
  std::filesystem::create_directories(target.parent_path());
  TemporaryDir dir(target.parent_path(), target.filename().string());
  Json manifest = {{"format", "brine-lra"}, {"version", 1}, {"task", what.task}, {"seed", seed}};
  manifest["rules"] = rules_of(what.listops);
  struct Split {
    const char *name, *file;
    int64_t count;
  };
  const Split splits[] = {{"test", "basic_test.tsv", what.test},
                          {"valid", "basic_val.tsv", what.valid},
                          {"train", "basic_train.tsv", what.train}};
  uint64_t stream = 0;
  for (const Split& split : splits) {
    SplitFile file(dir.path() / split.file);
    write_split(file, generator, split.count, LraDraws(seed, stream++));
    manifest["splits"][split.name] = file.finish();
  }
  write_file_atomic(dir.path() / "manifest.json", json_text(manifest) + "\n");
  dir.publish();
  return manifest;
}

}  // namespace brine::data
