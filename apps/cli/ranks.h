// The processes that a launcher (mpirun, srun) started together for one run.
#pragma once

#include <string>

#include "tensor/comm/communicator.h"

namespace brine {

// What the environment says of the launcher that started this process.
struct Launch {
  enum class Kind { none, open_mpi, mpich, unknown };
  Kind kind = Kind::none;
  int rank = 0, size = 1;
  std::string variable = {};  // that gave the rank
};
Launch find_launch();

// Opened at the first call: with MPI when a launcher started several processes, otherwise for this
// process alone, without loading MPI. Throws when ranks were started without MPI.
Communicator& process_ranks();
// Whether this process reports what all of them know.
bool is_first_rank();
// "rank 2: " before an error of one of several ranks, otherwise empty.
std::string rank_prefix();
// At the end of a program in which all ranks end.
void close_ranks();
// Ends all ranks, if there are several, after an error of this one.
void end_ranks(int status);

}  // namespace brine
