// Directories of generated tasks of Long Range Arena: what `brine lra` writes. docs/evaluation.md
// describes the files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/config/schema.h"
#include "data/io/file_io.h"
#include "data/tasks/lra/listops.h"

namespace brine::data {

struct LraData {
  std::string task = {};  // listops
  std::string out = {};
  int64_t train = 96000, valid = 2000, test = 2000;  // examples of the splits
  ListOpsRules listops = {};

  void describe(Schema& s);
};

// Writes the directory `what.out` under a temporary name and renames it at the end. Every split has
// separate random numbers, drawn from `seed`; test comes before valid and train, so that their
// sizes do not change it. Returns what manifest.json contains. Throws an Error for settings that
// nothing fits, and for a directory that has files already.
nlohmann::ordered_json write_lra_data(const LraData& what, uint64_t seed);

}  // namespace brine::data
