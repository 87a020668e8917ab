// NCCL by name: groups of sends and receives on the stream of the kernels, waited for until they
// are done or the limit has passed. The communicator does not block, so that no call waits for
// ever.
#include "tensor/comm/nccl.h"

#include <unistd.h>

#include <climits>
#include <cstring>
#include <set>
#include <utility>

#include "tensor/base/shared_library.h"
#include "tensor/comm/parts.h"
#include "tensor/comm/patience.h"
#include "tensor/device/accelerator.h"

namespace brine {
namespace {

// nccl.h, of which the binary interface has been the same since release 2.14.
using Comm = struct ncclComm*;
struct UniqueId {
  char bytes[128];
};
enum Result : int { kSuccess = 0, kInProgress = 7 };
constexpr int kBytes = 1;
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};

const SharedLibrary& library() {
  // Used until the process ends.
  static const SharedLibrary* const loaded = new SharedLibrary("ranks", "libnccl.so.2");
  return *loaded;
}

class Nccl : public Communicator {
 public:
  explicit Nccl(NcclStart start)
      : Communicator(start.rank, start.size),
        device_(start.device),
        host_(std::move(start.host)),
        version_(nccl_version()) {
    UniqueId id;
    check(start.id.size() == sizeof id, "ranks: the id of NCCL has ", start.id.size(), " bytes");
    std::memcpy(id.bytes, start.id.data(), sizeof id);
    cuda::use_device(device_.index);
    Config config;
    const std::string what = join("ranks: NCCL on ", device_);
    const Wait wait{what, start.seconds, device_};
    const auto init =
        library().function<int(Comm*, int, UniqueId, int, Config*)>("ncclCommInitRankConfig");
    verify(init(&comm_, size(), id, rank(), &config), wait);
    finish(wait, {}, false);
  }

  ~Nccl() override {
    if (comm_) destroy_(comm_);
  }

  std::string name() const override {
    return join("NCCL ", version_, " on ", device_, ", ", host_->name());
  }
  bool moves(Device where) const override { return where.is_cpu() || where == device_; }

  [[noreturn]] void abort(int status) override {
    if (comm_) abort_(std::exchange(comm_, nullptr));
    host_->abort(status);
    ::_exit(status);
  }

 protected:
  void move(const Wait& wait, const std::vector<Outgoing>& out,
            const std::vector<Incoming>& in) override {
    if (wait.where.is_cuda()) return move_on_device(wait, out, in);
    host_->set_limit(wait.seconds);
    host_->exchange(wait.what, out, in);
  }

 private:
  void* stream() const { return cuda::stream_handle(device_.index); }

  void move_on_device(const Wait& wait, const std::vector<Outgoing>& out,
                      const std::vector<Incoming>& in) {
    cuda::use_device(device_.index);
    verify(group_start_(), wait);
    for (const Incoming& i : in)
      verify(receive_(i.bytes, i.size, kBytes, i.from, comm_, stream()), wait);
    for (const Outgoing& o : out)
      verify(send_(o.bytes, o.size, kBytes, o.to, comm_, stream()), wait);
    verify(group_end_(), wait);
    std::set<int> others;
    for (const Incoming& i : in) others.insert(i.from);
    for (const Outgoing& o : out) others.insert(o.to);
    finish(wait, {others.begin(), others.end()}, true);
  }

  // Until the library has queued what it was given, or also the device has done it. `others` are
  // those it may wait for.
  void finish(const Wait& wait, const std::vector<int>& others, bool on_device) {
    Patience patience(wait.seconds);
    for (;;) {
      int state = kSuccess;
      verify(state_of_(comm_, &state), wait);
      verify(state, wait);  // errors of the network
      if (state == kSuccess && (!on_device || cuda::is_idle(device_))) return;
      rest(patience, wait, others);
    }
  }

  void rest(Patience& patience, const Wait& wait, const std::vector<int>& others) {
    try {
      if (patience.is_over()) fail(wait, others);
      patience.rest();
    } catch (const RanksMissing&) {
      // What waits on the device would keep it from ending.
      abort_(std::exchange(comm_, nullptr));
      throw;
    }
  }

  void verify(int status, const Wait& wait) const {
    if (status == kSuccess || status == kInProgress) return;
    std::string why = text_of_(status);
    if (const char* more = comm_ ? last_error_(comm_) : nullptr; more && *more)
      why += join("; ", more);
    throw Error(join(wait.what, ": NCCL ", version_, ": ", why), ErrorKind::io);
  }

  Device device_;
  std::unique_ptr<Communicator> host_;
  std::string version_;
  Comm comm_ = nullptr;
  int (*group_start_)() = library().function<int()>("ncclGroupStart");
  int (*group_end_)() = library().function<int()>("ncclGroupEnd");
  int (*send_)(const void*, size_t, int, int, Comm, void*) =
      library().function<int(const void*, size_t, int, int, Comm, void*)>("ncclSend");
  int (*receive_)(void*, size_t, int, int, Comm, void*) =
      library().function<int(void*, size_t, int, int, Comm, void*)>("ncclRecv");
  int (*state_of_)(Comm, int*) = library().function<int(Comm, int*)>("ncclCommGetAsyncError");
  int (*abort_)(Comm) = library().function<int(Comm)>("ncclCommAbort");
  int (*destroy_)(Comm) = library().function<int(Comm)>("ncclCommDestroy");
  const char* (*text_of_)(int) = library().function<const char*(int)>("ncclGetErrorString");
  const char* (*last_error_)(Comm) = library().function<const char*(Comm)>("ncclGetLastError");
};

}  // namespace

std::string nccl_version(std::string* why) {
  if (!library().found()) {
    if (why) *why = library().why();
    return "";
  }
  int v = 0;
  const int status = library().function<int(int*)>("ncclGetVersion")(&v);
  check(status == kSuccess, "ranks: ncclGetVersion failed with ", status);
  // 2.8.3 is 2803, later releases 21803.
  const int major = v >= 10000 ? v / 10000 : v / 1000, minor = v / 100 % (v >= 10000 ? 100 : 10);
  check(v >= 21400, "ranks: NCCL ", major, ".", minor,
        " is older than 2.14; --no-nccl goes without it");
  return join(major, ".", minor, ".", v % 100);
}

std::string new_nccl_id() {
  UniqueId id;
  const int status = library().function<int(UniqueId*)>("ncclGetUniqueId")(&id);
  check(status == kSuccess, "ranks: ncclGetUniqueId failed: ",
        library().function<const char*(int)>("ncclGetErrorString")(status));
  return {id.bytes, sizeof id};
}

std::unique_ptr<Communicator> open_nccl(NcclStart start) {
  return std::make_unique<Nccl>(std::move(start));
}

}  // namespace brine
