// The processes that a launcher (mpirun, srun) started together for one run, and subcommands whose
// work they divide.
#pragma once

#include <functional>
#include <string>

#include "apps/cli/program.h"
#include "tensor/comm/communicator.h"

namespace brine {

// What the environment says of the launcher that started this process.
struct Launch {
  // unknown: a launcher that is not MPI's, which tells each process its rank; it is refused.
  enum class Kind { none, open_mpi, mpich, unknown };
  Kind kind = Kind::none;
  int rank = 0, size = 1;
  std::string variable = {};  // that gave the rank
};
Launch find_launch();
// The rank among those of this machine, or -1 when no launcher says it.
int local_rank();

struct RanksConfig {
  double seconds = 600;  // until all ranks are connected, then of every wait
  bool nccl = true;      // if tensors are on GPUs and the library is found
};
// Opened at the first call: with MPI or NCCL when a launcher started several processes, otherwise
// for this process alone, without loading either. Throws when the ranks cannot be connected.
Communicator& process_ranks(const RanksConfig& config = {});
// Whether this process reports what all of them know.
bool is_first_rank();
// "rank 2: " before an error of one of several ranks, otherwise empty.
std::string rank_prefix();
// Before the end of a program in which all ranks fail and rank 0 says why: waits until the launcher
// ends this process, at most some seconds, where the end of this one would end rank 0.
void wait_for_launcher();
// At the end of a program in which all ranks end.
void close_ranks();
// Ends all ranks, if there are several, after an error of this one.
void end_ranks(int status);

// Compares program and keys of all ranks, then calls `body` on each and returns its status. An
// error of any rank ends all with one line, wherever the others are: all exchanges in `body` are
// those of tensor/comm/shared_work.h. Only the first rank prints.
int run_divided(const RunContext& context, const std::function<int(Communicator&)>& body);

}  // namespace brine
