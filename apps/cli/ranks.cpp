// Launchers are known by the variables that they set.
#include "apps/cli/ranks.h"

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/terminal/terminal.h"
#include "data/io/json.h"
#include "distill/ranks/exchange.h"
#include "tensor/comm/mpi.h"
#include "tensor/comm/nccl.h"
#include "tensor/comm/shared_work.h"
#include "tensor/device/device.h"

namespace brine {
namespace {

struct Opened {
  std::unique_ptr<Communicator> ranks;
  bool tried = false;
};
Opened& opened() {
  static Opened* const all = new Opened;  // a process that is aborted closes nothing
  return *all;
}

// The value of a variable, or -1.
int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text && text[0] >= '0' && text[0] <= '9' ? std::atoi(text) : -1;
}

constexpr double kExitSeconds = 5;

struct Sign {
  Launch::Kind kind;
  const char *rank, *size;
};

// Ordered: srun sets SLURM_PROCID besides what MPI reads, and so do mpirun's children inherit it.
constexpr Sign kSigns[] = {{Launch::Kind::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                           {Launch::Kind::mpich, "PMI_RANK", "PMI_SIZE"},
                           {Launch::Kind::open_mpi, "PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
                           {Launch::Kind::unknown, "RANK", "WORLD_SIZE"},
                           {Launch::Kind::unknown, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

Launch read_launch() {
  for (const Sign& sign : kSigns) {
    const int rank = number_in(sign.rank), size = number_in(sign.size);
    if (rank >= 0 && size > 1) return {sign.kind, rank, size, sign.rank};
    if (rank >= 0 && size == 1) return {};
  }
  return {};
}

// Adds NCCL for the tensors of GPUs, if every rank has it.
std::unique_ptr<Communicator> with_nccl(std::unique_ptr<Communicator> mpi,
                                        const RanksConfig& config) {
  const Device device = default_device();
  std::string why;
  const std::string version = device.is_cuda() && config.nccl ? nccl_version(&why) : std::string();
  const std::vector<std::string> all = mpi->gather("version of NCCL", version);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw SharedError(join("rank ", r, " has ", all[r].empty() ? "no NCCL" : "NCCL " + all[r],
                           " or computes elsewhere, rank 0 has ", all[0].empty() ? "none" : all[0],
                           "; --no-nccl disables it"));
  }
  if (version.empty()) {
    if (!why.empty() && mpi->is_first())
      log_info("no NCCL (", why, "): gradients are added on the CPU");
    return mpi;
  }
  std::string id(mpi->is_first() ? new_nccl_id() : std::string(kNcclIdBytes, '\0'));
  mpi->broadcast("id of NCCL", id.data(), id.size());
  const int rank = mpi->rank(), size = mpi->size();
  return open_nccl({.rank = rank,
                    .size = size,
                    .id = id,
                    .device = device,
                    .seconds = config.seconds,
                    .host = std::move(mpi)});
}

std::unique_ptr<Communicator> open_launched(const Launch& launch, const RanksConfig& config) {
  std::unique_ptr<Communicator> ranks =
      open_mpi(launch.kind == Launch::Kind::open_mpi ? MpiKind::open_mpi : MpiKind::mpich);
  if (ranks->size() != launch.size || ranks->rank() != launch.rank) {
    throw Error(join("MPI has ", ranks->size(), " ranks and this is ", ranks->rank(), ", ",
                     launch.variable, " says ", launch.rank, " of ", launch.size,
                     "; the launcher is of another MPI"));
  }
  ranks->set_limit(config.seconds);
  return with_nccl(std::move(ranks), config);
}

}  // namespace

Launch find_launch() {
  static const Launch found = read_launch();
  return found;
}

int local_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const int rank = number_in(variable); rank >= 0) return rank;
  }
  return -1;
}

Communicator& process_ranks(const RanksConfig& config) {
  std::unique_ptr<Communicator>& ranks = opened().ranks;
  if (ranks) return *ranks;
  opened().tried = true;
  const Launch launch = find_launch();
  if (launch.kind == Launch::Kind::none) {
    ranks = std::make_unique<SelfCommunicator>();
  } else if (launch.kind == Launch::Kind::unknown) {
    throw SharedError(join(launch.variable, " says that this is one of ", launch.size,
                           " processes, which were started without MPI; start them with mpirun, "
                           "or with srun --mpi=pmix or pmi2"));
  } else {
    ranks = open_launched(launch, config);
  }
  ranks->set_limit(config.seconds);
  return *ranks;
}

bool is_first_rank() { return find_launch().rank == 0; }

std::string rank_prefix() {
  const Launch launch = find_launch();
  return launch.size > 1 ? join("rank ", launch.rank, ": ") : std::string();
}

// Open MPI's launcher ends all processes as soon as one that has not joined MPI fails, rank 0
// before it has printed its error: the others wait for it, and are ended by the launcher.
void wait_for_launcher() {
  const Launch launch = find_launch();
  if (launch.kind == Launch::Kind::open_mpi && launch.rank > 0 && !opened().tried)
    std::this_thread::sleep_for(std::chrono::duration<double>(kExitSeconds));
}

void close_ranks() { opened().ranks.reset(); }

void end_ranks(int status) {
  const Launch launch = find_launch();
  // MPICH's launcher does not notice a process that ends before it has joined the others.
  if (!opened().tried && launch.kind == Launch::Kind::mpich) {
    try {
      process_ranks();
    } catch (const Error&) {
      return;
    }
  }
  if (opened().ranks && opened().ranks->size() > 1) opened().ranks->abort(status);
}

namespace {

// No standard output of any rank but the first.
class QuietOthers : NonCopyable {
 public:
  explicit QuietOthers(bool is_first) : before_(is_first ? nullptr : std::cout.rdbuf(nullptr)) {}
  ~QuietOthers() {
    if (before_) std::cout.rdbuf(before_);
  }

 private:
  std::streambuf* before_;
};

}  // namespace

int run_divided(const RunContext& context, const std::function<int(Communicator&)>& body) {
  Communicator& ranks = process_ranks();
  distill::compare_texts(ranks, "program", "brine " BRINE_VERSION " of commit " + commit_name());
  distill::compare_settings(ranks, "configuration", json_text(context.keys.to_json()));
  const QuietOthers quiet(ranks.is_first());
  int status = 0;
  do_work(ranks, context.command, [&] { status = body(ranks); });
  return status;
}

}  // namespace brine
