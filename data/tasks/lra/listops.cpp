// Drawing and evaluating the expressions of ListOps, and writing their splits.
#include "data/tasks/lra/listops.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "data/codec/checksums.h"
#include "data/io/json.h"
#include "data/io/temporary.h"
#include "data/io/utf8.h"
#include "data/suites/words.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr int64_t kOperators = 4;
constexpr uint8_t kDigitTokens = 10, kMin = 10, kMax = 11, kMed = 12, kSum = 13, kClose = 14;
constexpr int64_t kMaxDraws = 200'000;

int64_t applied(uint8_t op, std::vector<int64_t>& arguments) {
  std::ranges::sort(arguments);
  const size_t n = arguments.size();
  switch (op) {
    case kMin:
      return arguments.front();
    case kMax:
      return arguments.back();
    case kMed:
      return (arguments[(n - 1) / 2] + arguments[n / 2]) / 2;
    default: {
      int64_t sum = 0;
      for (const int64_t a : arguments) sum += a;
      return sum % 10;
    }
  }
}

// A list whose closing bracket was not read yet.
struct OpenList {
  uint8_t op;
  std::vector<int64_t> arguments;
};

struct Evaluation {
  std::vector<OpenList> open;
  int64_t value = -1;  // of the finished expression

  void add(int64_t argument) {
    check(value < 0, "listops: tokens after the end of the expression");
    if (open.empty()) {
      value = argument;
    } else {
      open.back().arguments.push_back(argument);
    }
  }

  void take(uint8_t token) {
    if (token < kDigitTokens) return add(token);
    if (token != kClose) {
      check(value < 0, "listops: tokens after the end of the expression");
      open.push_back({token, {}});
      return;
    }
    check(!open.empty(), "listops: a closing bracket without a list");
    OpenList list = std::move(open.back());
    open.pop_back();
    check(!list.arguments.empty(), "listops: a list without arguments");
    add(applied(list.op, list.arguments));
  }
};

int64_t value_of(const std::vector<uint8_t>& tokens) {
  Evaluation run;
  for (const uint8_t token : tokens) run.take(token);
  return run.value;
}

// Tokens of the longest expression, INT32_MAX when there are more.
int64_t longest(const ListOpsRules& rules) {
  int64_t length = 1;
  for (int64_t depth = 1; depth < rules.max_depth; ++depth) {
    length = 2 + rules.max_args * length;
    if (length > std::numeric_limits<int32_t>::max()) return std::numeric_limits<int32_t>::max();
  }
  return length;
}

}  // namespace

const std::vector<std::string>& listops_tokens() {
  static const std::vector<std::string> tokens = {"0", "1", "2",    "3",    "4",    "5",   "6", "7",
                                                  "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};
  return tokens;
}

int64_t listops_value(std::string_view expression) {
  const std::vector<std::string>& known = listops_tokens();
  Evaluation run;
  while (!expression.empty()) {
    const std::string_view word = take_part(expression, ' ');
    if (word.empty() || word == "(" || word == ")") continue;
    const auto found = std::ranges::find(known, word);
    check(found != known.end(), "listops: unknown token '", word, "'");
    run.take(uint8_t(found - known.begin()));
  }
  check(run.open.empty(), "listops: ", run.open.size(), " lists are not closed");
  check(run.value >= 0, "listops: the expression is empty");
  return run.value;
}

void ListOpsRules::describe(Schema& s) {
  s.field("min_length", min_length, "Tokens of the shortest expression of ListOps", {.min = 4});
  s.field("max_length", max_length, "Tokens of the longest expression of ListOps",
          {.min = 4, .max = 1 << 20});
  s.field("max_depth", max_depth, "Depth of an expression, its digits included",
          {.min = 2, .max = 1000});
  s.field("max_args", max_args, "Most arguments of a list", {.min = 2, .max = 1000});
  s.field("list_probability", list_probability, "Probability that an argument is a list",
          {.min = 0, .max = 1});
}

void ListOpsRules::validate() const {
  check(max_depth >= 2 && max_args >= 2 && min_length >= 4, "listops: max_depth ", max_depth,
        " and max_args ", max_args, " must be at least 2, min_length ", min_length, " at least 4");
  check(min_length <= max_length, "listops: min_length ", min_length, " is above max_length ",
        max_length);
  check(min_length <= longest(*this), "listops: no expression of depth ", max_depth, " with ",
        max_args, " arguments has min_length ", min_length, " tokens; the longest has ",
        longest(*this));
}

ListOpsGenerator::ListOpsGenerator(const ListOpsRules& rules) : rules_(rules) { rules.validate(); }

// Appends a list at `depth`; false, with a part of it, as soon as it is too long.
bool ListOpsGenerator::add_list(LraDraws& draws, int64_t depth) {
  tokens_.push_back(uint8_t(kMin + draws.below(kOperators)));
  const int64_t count = draws.between(2, rules_.max_args);
  for (int64_t i = 0; i < count; ++i) {
    if (depth + 1 < rules_.max_depth && draws.chance(rules_.list_probability)) {
      if (!add_list(draws, depth + 1)) return false;
    } else {
      tokens_.push_back(uint8_t(draws.below(kDigitTokens)));
    }
    if (int64_t(tokens_.size()) > rules_.max_length) return false;
  }
  tokens_.push_back(kClose);
  return int64_t(tokens_.size()) <= rules_.max_length;
}

ListOpsExample ListOpsGenerator::next(LraDraws& draws) {
  for (int64_t i = 0; i < kMaxDraws; ++i) {
    tokens_.clear();
    if (!add_list(draws, 1) || int64_t(tokens_.size()) < rules_.min_length) continue;
    const std::string_view bytes(reinterpret_cast<const char*>(tokens_.data()), tokens_.size());
    if (!seen_.insert(Draws::hash_of(bytes)).second) continue;
    ListOpsExample out{
        .expression = {}, .value = value_of(tokens_), .length = int64_t(tokens_.size())};
    for (const uint8_t token : tokens_) {
      if (!out.expression.empty()) out.expression += ' ';
      out.expression += listops_tokens()[token];
    }
    return out;
  }
  throw Error(join("listops: ", kMaxDraws, " draws gave no new expression of ", rules_.min_length,
                   " to ", rules_.max_length, " tokens after ", seen_.size(),
                   "; widen the lengths, or change max_depth, max_args or list_probability"));
}

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
  const Path target = without_slash(std::filesystem::absolute(what.out));
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
