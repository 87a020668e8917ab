// Variables of Open MPI, PMIx, PMI (MPICH, Slurm) and of other launchers.
#include "apps/cli/one_process.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace brine {
namespace {

constexpr std::string_view kPrefixes[] = {"OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MPI_LOCAL"};
constexpr std::string_view kNames[] = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS",
                                       "RANK",         "LOCAL_RANK",    "WORLD_SIZE"};

bool is_of_launcher(std::string_view name) {
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); }) ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

std::vector<std::string> environment_of_one_process() {
  std::vector<std::string> out;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text(*variable);
    if (!is_of_launcher(text.substr(0, text.find('=')))) out.emplace_back(text);
  }
  return out;
}

}  // namespace brine
