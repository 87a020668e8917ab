// Ranks that MPI started. The library is loaded at run time, so that one program runs without MPI,
// with Open MPI and with MPICH and its relatives, whose binary interfaces differ.
#pragma once

#include <memory>

#include "tensor/comm/communicator.h"

namespace brine {

enum class MpiKind { open_mpi, mpich };

// Initialises MPI in this process, once; call it in the main thread. Throws when the library is
// not installed. Destroying the communicator finalises MPI, after which the process can only end.
std::unique_ptr<Communicator> open_mpi(MpiKind kind);

}  // namespace brine
