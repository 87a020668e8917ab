// Ranks that MPI started. The library is loaded at run time, so that one program runs without MPI,
// with Open MPI and with MPICH and its relatives, whose binary interfaces differ.
#pragma once

#include <memory>

#include "tensor/comm/communicator.h"

namespace brine {

enum class MpiKind { open_mpi, mpich };

// Who started the processes: a launcher of MPI, or another one, for which the caller does what
// MPI's would. Such ranks linger() together and end without MPI_Finalize: over TCP that of
// MPICH 4.0 may wait for ever for a rank that has already left it for the launcher's barrier.
enum class MpiStart { by_launcher, by_caller };

// Initialises MPI in this process, once; call it in the main thread. Throws when the library is
// not installed. Destroying the communicator finalises MPI, after which the process can only end.
std::unique_ptr<Communicator> open_mpi(MpiKind kind, MpiStart start = MpiStart::by_launcher);

}  // namespace brine
