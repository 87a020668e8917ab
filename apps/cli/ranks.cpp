// Launchers are known by the variables that they set.
#include "apps/cli/ranks.h"

#include <cstdlib>
#include <memory>

#include "tensor/comm/mpi.h"

namespace brine {
namespace {

std::unique_ptr<Communicator>& opened() {
  static std::unique_ptr<Communicator> ranks;
  return ranks;
}

// The value of a variable, or -1.
int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text && *text >= '0' && *text <= '9' ? std::atoi(text) : -1;
}

struct Sign {
  Launch::Kind kind;
  const char *rank, *size;
};

// Ordered: srun sets SLURM_PROCID besides what MPI reads, and so do mpirun's children inherit it.
constexpr Sign kSigns[] = {{Launch::Kind::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                           {Launch::Kind::mpich, "PMI_RANK", "PMI_SIZE"},
                           {Launch::Kind::open_mpi, "PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
                           {Launch::Kind::unknown, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
                           {Launch::Kind::unknown, "RANK", "WORLD_SIZE"}};

}  // namespace

Launch find_launch() {
  for (const Sign& sign : kSigns) {
    const int rank = number_in(sign.rank), size = number_in(sign.size);
    if (rank >= 0 && size > 1) return {sign.kind, rank, size, sign.rank};
    if (rank >= 0 && size == 1) return {};
  }
  return {};
}

Communicator& process_ranks() {
  if (opened()) return *opened();
  const Launch launch = find_launch();
  if (launch.kind == Launch::Kind::unknown) {
    throw SharedError(join(launch.variable, " says that this is one of ", launch.size,
                           " processes, which were started without MPI; start them with mpirun, "
                           "or with srun --mpi=pmix or pmi2"));
  }
  if (launch.kind == Launch::Kind::none) {
    opened() = std::make_unique<SelfCommunicator>();
  } else {
    opened() = open_mpi(launch.kind == Launch::Kind::open_mpi ? MpiKind::open_mpi : MpiKind::mpich);
    if (opened()->size() != launch.size || opened()->rank() != launch.rank) {
      throw Error(join("MPI has ", opened()->size(), " ranks and this is ", opened()->rank(), ", ",
                       launch.variable, " says ", launch.rank, " of ", launch.size,
                       "; the launcher is of another MPI"));
    }
  }
  return *opened();
}

bool is_first_rank() { return find_launch().rank == 0; }

std::string rank_prefix() {
  const Launch launch = find_launch();
  return launch.size > 1 ? join("rank ", launch.rank, ": ") : std::string();
}

void close_ranks() { opened().reset(); }

void end_ranks(int status) {
  // MPICH's launcher does not notice a process that ends before it has joined the others.
  if (!opened() && find_launch().kind == Launch::Kind::mpich) {
    try {
      process_ranks();
    } catch (const Error&) {
      return;
    }
  }
  if (opened() && opened()->size() > 1) opened()->abort(status);
}

}  // namespace brine
