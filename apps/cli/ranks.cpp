// Launchers are known by the variables that they set.
#include "apps/cli/ranks.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "apps/cli/terminal.h"
#include "tensor/comm/mpi.h"
#include "tensor/comm/nccl.h"
#include "tensor/comm/pmi_server.h"
#include "tensor/comm/rendezvous.h"
#include "tensor/device/device.h"

namespace brine {
namespace {

// Closed in reverse: MPI's end needs the server, and both need the others to be alive.
struct Opened {
  std::unique_ptr<PmiServer> server;
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<Communicator> ranks;
  bool tried = false;
};
Opened& opened() {
  static Opened* const all = new Opened;  // a process that is aborted closes nothing
  return *all;
}

std::string text_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? text : "";
}

// The value of a variable, or -1.
int number_in(const char* variable) {
  const std::string text = text_in(variable);
  return !text.empty() && text[0] >= '0' && text[0] <= '9' ? std::atoi(text.c_str()) : -1;
}

constexpr double kFarewellSeconds = 5;

struct Sign {
  Launch::Kind kind;
  const char *rank, *size;
};

// Ordered: srun sets SLURM_PROCID besides what MPI reads, and so do mpirun's children inherit it.
constexpr Sign kSigns[] = {{Launch::Kind::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                           {Launch::Kind::mpich, "PMI_RANK", "PMI_SIZE"},
                           {Launch::Kind::open_mpi, "PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
                           {Launch::Kind::plain, "RANK", "WORLD_SIZE"},
                           {Launch::Kind::plain, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

Launch read_launch() {
  for (const Sign& sign : kSigns) {
    const int rank = number_in(sign.rank), size = number_in(sign.size);
    if (rank >= 0 && size > 1) return {sign.kind, rank, size, sign.rank};
    if (rank >= 0 && size == 1) return {};
  }
  return {};
}

// torchrun's agent listens on MASTER_PORT itself.
int rendezvous_port() {
  const int own = number_in("BRINE_MASTER_PORT"), master = number_in("MASTER_PORT");
  const int port = own >= 0 ? own : master >= 0 ? master + 1 : 29501;
  check(port > 0 && port < 65536, "ranks: ", own >= 0 ? "BRINE_MASTER_PORT" : "MASTER_PORT + 1",
        " is ", port, ", not a port");
  return port;
}

Meeting meeting_of(const Launch& launch, double seconds) {
  const std::string host = text_in("MASTER_ADDR");
  if (host.empty()) {
    throw SharedError(join(launch.variable, " says that this is one of ", launch.size,
                           " processes, which were started without MPI; start them with mpirun, "
                           "or with srun --mpi=pmix or pmi2, or set MASTER_ADDR to the address of "
                           "rank 0"));
  }
  std::string run = text_in("TORCHELASTIC_RUN_ID");
  if (run.empty()) run = text_in("SLURM_JOB_ID");
  return {.host = host,
          .port = rendezvous_port(),
          .rank = launch.rank,
          .size = launch.size,
          .run = run + "." + text_in("TORCHELASTIC_RESTART_COUNT"),
          .seconds = seconds};
}

// MPICH between processes that no launcher of MPI started: rank 0 does what such a launcher does.
std::unique_ptr<Communicator> open_mpich(const Launch& launch) {
  Opened& all = opened();
  std::vector<int> sockets = all.rendezvous->connect_again();
  const std::string own = std::to_string(sockets.back());
  if (launch.rank == 0) {
    sockets.pop_back();
    all.server = std::make_unique<PmiServer>(std::move(sockets), all.rendezvous->machines());
  }
  const std::pair<const char*, std::string> variables[] = {
      {"PMI_FD", own},
      {"PMI_RANK", std::to_string(launch.rank)},
      {"PMI_SIZE", std::to_string(launch.size)}};
  for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
  std::unique_ptr<Communicator> ranks = open_mpi(MpiKind::mpich, MpiStart::by_caller);
  for (const auto& [name, value] : variables) ::unsetenv(name);
  return ranks;
}

// Rank 0 decides for all, since every rank must take the same way.
std::unique_ptr<Communicator> open_plain(const Launch& launch, const RanksConfig& config) {
  Opened& all = opened();
  all.rendezvous = std::make_unique<Rendezvous>(meeting_of(launch, config.seconds));
  const Device device = default_device();
  std::string why;
  const bool wants_nccl = device.is_cuda() && config.nccl && !nccl_version(&why).empty();
  const std::string way = all.rendezvous->share(wants_nccl ? "NCCL" : "MPI");
  std::unique_ptr<Communicator> ranks;
  if (way == "NCCL") {
    check(wants_nccl, "rank 0 uses NCCL, and this rank does not: ",
          !device.is_cuda() ? join("its device is ", device)
          : !config.nccl    ? "--no-nccl"
                            : why);
    const std::string id = all.rendezvous->share(launch.rank == 0 ? new_nccl_id() : "");
    ranks = open_nccl({.rank = launch.rank,
                       .size = launch.size,
                       .id = id,
                       .device = device,
                       .seconds = config.seconds,
                       .host = nullptr});
  } else {
    ranks = open_mpich(launch);
  }
  ranks->set_alarm([rendezvous = all.rendezvous.get()] { return rendezvous->missing(); });
  return ranks;
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
                           "; --no-nccl goes without it"));
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
  for (const char* variable :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK", "SLURM_LOCALID"}) {
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
  } else if (launch.kind == Launch::Kind::plain) {
    ranks = open_plain(launch, config);
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
// before it has spoken: the others leave that to it, and are ended by the launcher.
void let_first_speak() {
  const Launch launch = find_launch();
  if (launch.kind == Launch::Kind::open_mpi && launch.rank > 0 && !opened().tried)
    std::this_thread::sleep_for(std::chrono::duration<double>(kFarewellSeconds));
}

void close_ranks() {
  if (Opened& all = opened(); all.ranks && all.rendezvous)
    all.ranks->linger([&] { return all.rendezvous->all_done(); });
  opened().ranks.reset();
  opened().rendezvous.reset();
  opened().server.reset();
}

void end_ranks(int status) {
  const Launch launch = find_launch();
  if (!opened().tried && launch.kind != Launch::Kind::none) {
    try {
      // MPICH's launcher does not notice a process that ends before it has joined the others, and
      // ranks that no launcher watches would wait for this one: it comes, and goes.
      if (launch.kind == Launch::Kind::mpich) process_ranks();
      if (launch.kind == Launch::Kind::plain)
        opened().rendezvous = std::make_unique<Rendezvous>(meeting_of(launch, kFarewellSeconds));
    } catch (const Error&) {
      return;
    }
  }
  if (opened().ranks && opened().ranks->size() > 1) opened().ranks->abort(status);
}

}  // namespace brine
