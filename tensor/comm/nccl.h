// Ranks whose tensors are on CUDA devices: NCCL, loaded at run time, so that one program runs with
// and without it. It only carries: gradients are added in the order of the tree by Brine.
#pragma once

#include <memory>
#include <string>

#include "tensor/comm/communicator.h"

namespace brine {

// "2.18.3", or empty when the library is not found; `why` then gets the loader's message.
std::string nccl_version(std::string* why = nullptr);
// What rank 0 makes and all others get before they open.
constexpr size_t kNcclIdBytes = 128;
std::string new_nccl_id();

struct NcclStart {
  int rank = 0, size = 1;
  std::string id;
  Device device;                       // of this rank's tensors; another one for each rank
  double seconds = 600;                // until all ranks are here
  std::unique_ptr<Communicator> host;  // for the CPU's memory
};
// Throws when a rank does not come in time, or when NCCL refuses.
std::unique_ptr<Communicator> open_nccl(NcclStart start);

}  // namespace brine
