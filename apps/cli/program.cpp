// The program: runs the subcommand of a command line, and finds the Hub's cache.
#include "apps/cli/program.h"

#include <dlfcn.h>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <new>
#include <set>

#include "apps/cli/options.h"
#include "apps/cli/ranks.h"
#include "apps/terminal/terminal.h"
#include "autograd/compute_type.h"
#include "data/io/file_io.h"
#include "data/io/utf8.h"
#include "data/weights/hub_cache.h"
#include "tensor/comm/communicator.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/device.h"
#include "tensor/device/gpu_software.h"

namespace brine {

namespace {

// The first of HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub and
// HOME/.cache/huggingface/hub whose variable is set and not empty, as huggingface_hub chooses it.
// Empty when none is.
std::filesystem::path hub_cache() {
  constexpr struct {
    const char *variable, *below;
  } candidates[] = {{"HF_HUB_CACHE", ""},
                    {"HF_HOME", "hub"},
                    {"XDG_CACHE_HOME", "huggingface/hub"},
                    {"HOME", ".cache/huggingface/hub"}};
  for (const auto& [variable, below] : candidates) {
    const char* value = std::getenv(variable);
    if (value && *value) return *below ? std::filesystem::path(value) / below : value;
  }
  return {};
}

std::vector<Subcommand>& registry() {
  static std::vector<Subcommand> commands;
  return commands;
}

std::string overview() {
  std::string text =
      "brine gives transformers attention that reads chosen keys, and trains them with it.\n\n"
      "Usage: brine SUBCOMMAND [OPTIONS]     brine SUBCOMMAND --help     brine --version\n\n";
  for (const Subcommand& command : subcommands()) {
    if (command.hidden) continue;
    std::string name = "  " + command.name;
    name.resize(std::max<size_t>(name.size() + 1, 14), ' ');
    text += name + command.help + "\n";
  }
  return text;
}

const Subcommand& find_subcommand(const std::string& name) {
  std::vector<std::string> names;
  for (const Subcommand& command : subcommands()) {
    if (command.name == name) return command;
    if (!command.hidden) names.push_back(command.name);
  }
  const bool gone = name == "convert";  // of former versions
  const std::string best = gone ? "brine distill --stages attention" : data::nearest(name, names);
  throw Error(join("unknown subcommand \"", name, "\"",
                   best.empty() ? "" : "; the nearest is \"" + best + "\""));
}

// Of several ranks each gets another GPU. A launcher may show a rank only its GPU.
Device gpu_of_rank() {
  const int rank = find_launch().kind == Launch::Kind::none ? -1 : local_rank();
  const int count = cuda::device_count();
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (rank < 0 || count == 0 || (count == 1 && visible && *visible)) return parse_device("cuda");
  const bool has_one = rank < count;
  check(has_one, "--device cuda: this is rank ", rank, " of its machine, which has ", count,
        " CUDA device", count == 1 ? "" : "s", "; start fewer ranks there, or name a device");
  return parse_device(join("cuda:", rank));
}

Device device_of(const std::string& name) {
  if (name == "auto") return cuda::device_count() == 0 ? Device{} : gpu_of_rank();
  return name == "cuda" ? gpu_of_rank() : parse_device(name);
}

Dtype compute_dtype(Compute compute) {
  return compute == Compute::bf16 ? Dtype::bf16 : compute == Compute::f16 ? Dtype::f16 : Dtype::f32;
}

void refuse_ranks(const Subcommand& command) {
  const Launch launch = find_launch();
  if (launch.size == 1 || command.ranks == Ranks::divided) return;
  throw SharedError(join("its work is not divided, and ", launch.variable,
                         " says that this is one of ", launch.size,
                         " processes; start it as one process"));
}

// The library of --load registers its attention methods, whose keys are options, before these are
// read. Returns whether there was one.
bool load_library(const std::vector<std::string>& words) {
  const std::string flag = "--load";
  bool loaded = false;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string path;
    if (words[i] == flag && i + 1 < words.size()) path = words[i + 1];
    if (words[i].starts_with(flag + "=")) path = words[i].substr(flag.size() + 1);
    if (path.empty()) continue;
    if (std::filesystem::exists(path)) path = std::filesystem::absolute(path);
    if (!dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) throw Error(join(flag, ": ", dlerror()));
    loaded = true;
  }
  return loaded;
}

int run_subcommand(const Subcommand& command, const std::vector<std::string>& words) {
  const bool loaded = load_library(words);
  CommonOptions common;
  CommandBody body = command.make();
  data::Schema keys;
  body.describe(keys);
  common.describe(keys);
  const HelpText help{
      .about = command.help,
      .end = join("Example: ", command.manual.example, "\nMore: ", command.manual.page, "\n")};
  Invocation invocation = apply_options("brine " + command.name, help, keys, words);
  if (invocation.version) std::cout << version_text();
  if (invocation.help) std::cout << invocation.help_text;
  if (invocation.version || invocation.help) return 0;
  check(common.load.empty() || loaded, "load is a flag, not a key of a file: --load ", common.load);
  refuse_ranks(command);
  // Only rank 0 logs; the errors of one rank are not log lines.
  set_up_log(!is_first_rank()     ? LogLevel::nothing
             : invocation.quiet   ? LogLevel::warning
             : invocation.verbose ? LogLevel::detail
                                  : LogLevel::info);
  data::set_hub_cache(hub_cache());
  set_threads(int(common.threads));
  const Device device = device_of(common.device);
  set_default_device(device);
  if (device.is_cuda()) {
    if (const std::string code = cuda::code_note(device.index); !code.empty()) log_info(code);
  }
  const bool tf32 = common.compute == Compute::tf32;
  if (tf32 && !device.is_cuda()) log_info("--compute tf32: a CPU does not round factors to tf32");
  cuda::set_tf32(tf32);
  if (common.cudnn == Cudnn::off) cuda::set_cudnn(false);
  const ComputeType compute(compute_dtype(common.compute));
  std::string line = "brine " + command.name;
  for (const std::string& word : words) line += " " + shell_word(word);
  const int status = body.run({command.name, uint64_t(common.seed), invocation.quiet,
                               invocation.verbose, keys, std::move(line)});
  if (device.is_cuda()) {
    for (const std::string& refusal : cuda::cudnn_refusals()) log_detail("not by cuDNN: ", refusal);
    log_detail("cuDNN was called ", cuda::cudnn_calls(), " times");
  }
  return status;
}

int without_subcommand(const std::vector<std::string>& words) {
  CommonOptions common;
  data::Schema keys = data::schema_of(common);
  Invocation invocation = apply_options("brine", {}, keys, words);
  check(invocation.help || invocation.version, "no subcommand; brine --help lists them");
  std::cout << (invocation.version ? version_text() : overview());
  return 0;
}

// Control characters may come from a file, and a terminal would execute them.
std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return text;
}

// An error that names its command does not name it twice.
std::string without_name(std::string why, const std::string& name) {
  const std::string prefix = name.substr(name.find(' ') + 1) + ": ";
  if (why.starts_with(prefix)) why.erase(0, prefix.size());
  return why;
}

}  // namespace

std::string shell_word(const std::string& word) {
  const char* plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=,+@%-";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  return "'" + data::replaced(word, "'", "'\\''") + "'";
}

void CommonOptions::describe(data::Schema& s) {
  s.field("threads", threads, "Threads that compute; 0 takes all cores",
          {.min = 0, .max = 4096, .transient = true});
  s.field("seed", seed, "Seed of everything random", {.min = 0});
  s.field("device", device, "Where models compute: cpu, cuda, cuda:N; auto: a GPU if there is one",
          {.transient = true});
  s.choice("compute", compute,
           {{Compute::f32, "f32"},
            {Compute::tf32, "tf32"},
            {Compute::bf16, "bf16"},
            {Compute::f16, "f16"}},
           "Type of the factors of products; sums are f32. tf32 needs a GPU");
  s.choice("cudnn", cudnn, {{Cudnn::automatic, "auto"}, {Cudnn::off, "off"}},
           "Whether 16-bit attention on a GPU uses cuDNN if found", {.transient = true});
  s.field("load", load, "Shared library that registers further attention methods (docs/library.md)",
          {.transient = true});
}

void save_configuration(const RunContext& context, const std::string& directory) {
  std::string head = "# brine " + context.command + ", version " BRINE_VERSION "\n";
  data::write_file_atomic(directory + "/config.toml", head + context.keys.to_toml());
}

const std::vector<Subcommand>& subcommands() { return registry(); }

void register_subcommand(Subcommand command) {
  auto& all = registry();
  auto position = std::find_if(all.begin(), all.end(),
                               [&](const Subcommand& other) { return other.name > command.name; });
  all.insert(position, std::move(command));
}

int run_program(const std::vector<std::string>& words) {
  std::string name = "brine";
  try {
    CommonOptions common;
    data::Schema keys = data::schema_of(common);
    Split split = split_command_line(keys, words);
    int status = 0;
    if (split.subcommand.empty()) {
      status = without_subcommand(words);
    } else {
      const Subcommand& command = find_subcommand(split.subcommand);
      name += " " + command.name;
      status = run_subcommand(command, split.rest);
    }
    std::cout.flush();
    check(bool(std::cout) && std::fflush(stdout) == 0 && !std::ferror(stdout),
          "standard output cannot be written");
    close_ranks();
    return status;
  } catch (const SharedError& e) {
    // All ranks caught this error: rank 0 prints it, none waits for another.
    if (is_first_rank()) std::cerr << one_line(name + ": " + without_name(e.what(), name)) << "\n";
    wait_for_launcher();
    close_ranks();
    return 1;
  } catch (const std::bad_alloc&) {
    std::cerr << rank_prefix() + name + ": out of memory\n";
  } catch (const std::exception& e) {
    std::cerr << rank_prefix() + one_line(name + ": " + without_name(e.what(), name)) + "\n";
  }
  end_ranks(1);
  return 1;
}

namespace {

// A row of a key, and the section that it is in.
using Row = data::Schema::Row;

// A table of the rows that hold for every variant, then one for each variant: those of Brine's own
// methods first.
std::string tables_of(const std::vector<Row>& rows, const std::string& section = {}) {
  std::vector<std::string> variants = {"", "attention.method = blocks", "attention.method = sea"};
  using Table = std::pair<std::string, std::string>;  // its heading, its rows
  std::map<std::string, std::vector<Table>> tables;
  for (const Row& row : rows) {
    if (std::find(variants.begin(), variants.end(), row.variant) == variants.end())
      variants.push_back(row.variant);
    std::string heading = row.group;
    if (heading.empty() && row.variant.empty() && row.section != section)
      heading = "`[" + row.section + "]`";
    std::vector<Table>& of = tables[row.variant];
    auto at =
        std::find_if(of.begin(), of.end(), [&](const Table& t) { return t.first == heading; });
    if (at == of.end()) at = of.insert(of.end(), {heading, ""});
    at->second += row.text;
  }
  std::string text;
  for (const std::string& variant : variants) {
    if (!tables.count(variant)) continue;
    if (!variant.empty()) text += "\n### " + variant + "\n";
    for (const auto& [heading, table] : tables[variant]) {
      text +=
          (heading.empty() ? "\n" : "\n" + heading + ":\n\n") + data::Schema::kTableHead + table;
    }
  }
  return text;
}

// Rows of sections that several commands have alike are in a table of the section.
std::string tables_of_commands() {
  auto name_of = [](const Row& row) { return row.variant + row.text; };
  std::map<std::string, int> commands_with;         // a row of a section
  std::map<std::string, std::vector<Row>> rows_of;  // a section's, shared ones
  std::vector<std::pair<const Subcommand*, std::vector<Row>>> all;
  for (const Subcommand& command : subcommands()) {
    if (command.hidden) continue;
    CommandBody body = command.make();
    data::Schema keys;
    body.describe(keys);
    all.emplace_back(&command, keys.rows());
    std::set<std::string> seen;
    for (const Row& row : all.back().second) {
      if (row.section.empty() || !seen.insert(name_of(row)).second) continue;
      if (++commands_with[name_of(row)] == 2) rows_of[row.section].push_back(row);
    }
  }
  std::string text;
  for (const auto& [section, rows] : rows_of) {
    text +=
        "\n## [" + section + "]\n\nKeys that several commands have.\n" + tables_of(rows, section);
  }
  for (const auto& [command, rows] : all) {
    text += "\n## brine " + command->name + "\n\n" + command->help + ".\n";
    std::set<std::string> sections;
    std::vector<Row> own;
    for (const Row& row : rows) {
      const bool shared = !row.section.empty() && commands_with.at(name_of(row)) > 1;
      if (shared) sections.insert("[" + row.section + "]");
      if (!shared) own.push_back(row);
    }
    if (!sections.empty()) {
      text += "Also the keys of ";
      for (const std::string& section : sections) {
        text += (section == *sections.begin() ? "" : ", ") + section;
      }
      text += ".\n";
    }
    text += tables_of(own);
  }
  return text;
}

}  // namespace

std::string configuration_page() {
  CommonOptions common;
  std::string page =
      "# Configuration\n\n"
      "Written by `brine docs-config --out docs/configuration.md`; do not edit it by hand.\n\n"
      "Every key is a flag (`learning_rate` is `--learning-rate`, `attention.k` is\n"
      "`--attention.k`, or `--k` if no other key of as few sections ends in k) and a key of the\n"
      "TOML files given with `--config FILE` (`[attention]`, then `k = 16`). Files win over\n"
      "defaults, later files over earlier ones, flags over files. An unknown key is an error.\n\n"
      "## Everywhere\n\n" +
      data::schema_of(common).to_markdown() + tables_of_commands();
  return page;
}

}  // namespace brine
