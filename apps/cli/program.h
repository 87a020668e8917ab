// Subcommands: their interface, and how the program finds and runs them. See apps/README.md
// for an example.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/config/schema.h"

namespace brine {

enum class Compute { f32, tf32, bf16, f16 };
enum class Cudnn { automatic, off };

// Keys that every subcommand has.
struct CommonOptions {
  int64_t threads = 0;
  int64_t seed = 1;
  Compute compute = Compute::f32;
  std::string device = "auto";
  Cudnn cudnn = Cudnn::automatic;
  std::string load = {};  // a shared library that registers attention methods
  void describe(data::Schema& s);
};

// The arguments of run().
struct RunContext {
  std::string command;       // "train"
  uint64_t seed = 1;         // --seed
  bool quiet = false;        // --quiet
  bool verbose = false;      // --verbose
  const data::Schema& keys;  // the subcommand's keys with the values of this run
  std::string line = {};     // the command line: "brine train --out run"
};

// Writes directory/config.toml: every key of the run, so that
// `brine COMMAND --config directory/config.toml` is the same run.
void save_configuration(const RunContext& context, const std::string& directory);

// The type-erased body of a subcommand.
struct CommandBody {
  std::function<void(data::Schema&)> describe;
  std::function<int(const RunContext&)> run;  // the exit status; errors are thrown
};

// What a subcommand does when a launcher starts it as several processes: their work is divided, or
// they are refused.
enum class Ranks { refused, divided };

// The end of a subcommand's help.
struct Manual {
  std::string example;  // a command line
  std::string page;     // of docs/
};

struct Subcommand {
  std::string name;
  std::string help;  // one line
  Manual manual;
  Ranks ranks = Ranks::refused;
  bool hidden = false;
  std::function<CommandBody()> make;
};

// By name.
const std::vector<Subcommand>& subcommands();
void register_subcommand(Subcommand command);

enum class Listing { listed, hidden };

// Body has `void describe(data::Schema&)`, whose members are its keys, and `int run(const
// RunContext&)`.
template <class Body>
struct RegisterSubcommand {
  RegisterSubcommand(const char* name, const char* help, const Manual& manual,
                     Ranks ranks = Ranks::refused, Listing listing = Listing::listed) {
    register_subcommand({name, help, manual, ranks, listing == Listing::hidden, [] {
                           auto body = std::make_shared<Body>();
                           return CommandBody{
                               [body](data::Schema& s) { body->describe(s); },
                               [body](const RunContext& context) { return body->run(context); }};
                         }});
  }
};

// The output of `brine --version`: version, compiler, libraries and CPU features, one per line.
std::string version_text();

// Runs `brine words...`. An error is one line on stderr and status 1.
int run_program(const std::vector<std::string>& words);

// A word as a shell takes it, so that a command with it can be pasted.
std::string shell_word(const std::string& word);

// docs/configuration.md, from the schemas of all listed subcommands.
std::string configuration_page();

}  // namespace brine
