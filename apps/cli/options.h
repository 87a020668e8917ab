// The command line of one subcommand: every key of its schema is a flag.
#pragma once

#include <string>
#include <vector>

#include "data/config/schema.h"

namespace brine {

// Flags that are not keys.
struct Invocation {
  bool help = false;
  bool version = false;
  bool quiet = false;
  bool verbose = false;
  std::vector<std::string> config_files;
  std::string help_text;  // when help is set
};

// What help says of a subcommand, and the lines at its end.
struct HelpText {
  std::string about;
  std::string end = {};
};

// Splits the words after the program's name at the subcommand. `subcommand` is empty when there is
// none; `rest` then has all words. Flags before it belong to the subcommand too.
struct Split {
  std::string subcommand;
  std::vector<std::string> rest;
};
Split split_command_line(data::Schema& everywhere, const std::vector<std::string>& words);

// Sets the schema: defaults, then the --config files in their order, then the flags.
// `learning_rate` is --learning-rate, `attention.k` is --attention.k and, if no other key of as few
// sections ends in k, --k. Checks required keys unless help or version was requested. Throws Error.
// Help has the keys without a section, the losses and those of the chosen attention method; with
// --help-all every key.
Invocation apply_options(const std::string& name, const HelpText& help, data::Schema& schema,
                         const std::vector<std::string>& words);

}  // namespace brine
