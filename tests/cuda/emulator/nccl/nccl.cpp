// A libnccl.so.2 for emulated devices: the functions that tensor/comm/nccl.cpp uses, between
// processes or threads of one machine, by local sockets. Like a communicator of NCCL that does not
// block, it works on a separate thread and in the order of the stream, checks its arguments,
// and waits without limit for a rank that does not answer.
#include <cuda_runtime_api.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

enum Result { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6 };
enum { kInProgress = 7 };

struct UniqueId {
  char text[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

struct Operation {
  enum Kind { send, receive } kind;
  unsigned char* memory;
  size_t bytes;
  int type, peer;
};

struct Batch {
  std::vector<Operation> operations;
  cudaStream_t stream;
};

struct ncclComm {
  int rank = 0, size = 0;
  std::string id;
  std::vector<int> sockets;  // by rank
  std::thread worker;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Batch> batches;
  bool ended = false;
  std::atomic<bool> aborted{false};
  std::atomic<int> state{kInProgress};
  std::string last_error;
};

namespace {

struct Failure : std::runtime_error {
  Result result;
  Failure(Result r, const std::string& what) : std::runtime_error(what), result(r) {}
};
struct Aborted {};

// Of the calls between ncclGroupStart and ncclGroupEnd, by thread.
struct Group {
  int depth = 0;
  ncclComm* comm = nullptr;
  Batch batch;
};
thread_local Group group;

sockaddr_un address_of(const std::string& id, int rank, socklen_t& size) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  const std::string name = id + "." + std::to_string(rank);  // abstract: after a zero byte
  std::memcpy(a.sun_path + 1, name.data(), name.size());
  size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

void wait_for(const ncclComm& c, pollfd* sockets, size_t count) {
  if (c.aborted) throw Aborted();
  ::poll(sockets, nfds_t(count), 20);
  if (c.aborted) throw Aborted();
}

// One message in one direction of a pair: its size and type, then its bytes.
struct Transfer {
  bool out;
  int peer;
  std::vector<unsigned char> bytes;
  size_t done = 0;
};

void advance(const ncclComm& c, Transfer& t) {
  const int socket = c.sockets[size_t(t.peer)];
  while (t.done < t.bytes.size()) {
    unsigned char* at = t.bytes.data() + t.done;
    const size_t left = t.bytes.size() - t.done;
    const ssize_t n = t.out ? ::send(socket, at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                            : ::recv(socket, at, left, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0)
      throw Failure(kRemoteError, "rank " + std::to_string(t.peer) + " has closed its connection");
    t.done += size_t(n);
  }
}

// All at once, and those of one pair and direction one after another.
void run(const ncclComm& c, std::vector<Transfer>& transfers) {
  for (;;) {
    bool all = true;
    std::vector<pollfd> waits;
    std::vector<bool> busy(2 * size_t(c.size), false);
    for (Transfer& t : transfers) {
      const size_t pair = 2 * size_t(t.peer) + (t.out ? 1 : 0);
      if (t.done == t.bytes.size() || busy[pair]) continue;
      advance(c, t);
      if (t.done == t.bytes.size()) continue;
      busy[pair] = true;
      all = false;
      waits.push_back({c.sockets[size_t(t.peer)], short(t.out ? POLLOUT : POLLIN), 0});
    }
    if (all) return;
    wait_for(c, waits.data(), waits.size());
  }
}

constexpr size_t kHead = 2 * sizeof(uint64_t);

void put_head(std::vector<unsigned char>& bytes, uint64_t size, uint64_t type) {
  std::memcpy(bytes.data(), &size, sizeof size);
  std::memcpy(bytes.data() + sizeof size, &type, sizeof type);
}

Transfer outgoing(const Operation& o, int peer) {
  Transfer t{true, peer, std::vector<unsigned char>(kHead + o.bytes)};
  put_head(t.bytes, o.bytes, uint64_t(o.type));
  const emulator::Reach reach;
  std::memcpy(t.bytes.data() + kHead, o.memory, o.bytes);
  return t;
}
Transfer incoming(const Operation& o, int peer) {
  return {false, peer, std::vector<unsigned char>(kHead + o.bytes)};
}

void check_head(const Transfer& t, const Operation& o) {
  std::vector<unsigned char> expected(kHead);
  put_head(expected, o.bytes, uint64_t(o.type));
  if (std::memcmp(expected.data(), t.bytes.data(), kHead) != 0)
    throw Failure(kInvalidUsage, "rank " + std::to_string(t.peer) + " sent another size or type");
}

void execute(const ncclComm& c, const Batch& batch) {
  std::vector<Transfer> transfers;
  std::vector<const Operation*> of;
  for (const Operation& o : batch.operations) {
    transfers.push_back(o.kind == Operation::send ? outgoing(o, o.peer) : incoming(o, o.peer));
    of.push_back(&o);
  }
  run(c, transfers);
  const emulator::Reach reach;
  for (size_t i = 0; i < of.size(); ++i) {
    if (of[i]->kind != Operation::receive) continue;
    check_head(transfers[i], *of[i]);
    std::memcpy(of[i]->memory, transfers[i].bytes.data() + kHead, of[i]->bytes);
  }
}

void connect_all(ncclComm& c) {
  socklen_t size = 0;
  sockaddr_un local = address_of(c.id, c.rank, size);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::bind(listening, reinterpret_cast<sockaddr*>(&local), size) != 0 ||
      ::listen(listening, 64) != 0) {
    ::close(listening);
    throw Failure(kInvalidUsage, "two ranks have one number");
  }
  for (int r = 0; r < c.rank; ++r) {
    const sockaddr_un peer = address_of(c.id, r, size);
    int socket = -1;
    for (;;) {
      socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(socket, reinterpret_cast<const sockaddr*>(&peer), size) == 0) break;
      ::close(socket);
      wait_for(c, nullptr, 0);
    }
    c.sockets[size_t(r)] = socket;
    const int32_t rank = c.rank;
    if (::send(socket, &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank)
      throw Failure(kRemoteError, "a rank has closed its connection");
  }
  for (int left = c.size - 1 - c.rank; left > 0; --left) {
    pollfd one{listening, POLLIN, 0};
    while (!(one.revents & POLLIN)) wait_for(c, &one, 1);
    const int socket = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    int32_t rank = -1;
    if (::recv(socket, &rank, sizeof rank, MSG_WAITALL) != sizeof rank || rank <= c.rank ||
        rank >= c.size)
      throw Failure(kRemoteError, "an unexpected rank has connected");
    c.sockets[size_t(rank)] = socket;
  }
  ::close(listening);
}

void work(ncclComm& c) {
  cudaStream_t at_work = nullptr;
  try {
    connect_all(c);
    c.state = kSuccess;
    for (;;) {
      std::unique_lock lock(c.mutex);
      c.changed.wait(lock, [&] { return c.ended || c.aborted || !c.batches.empty(); });
      if (c.batches.empty() || c.aborted) return;
      const Batch batch = std::move(c.batches.front());
      c.batches.pop_front();
      if (c.batches.empty()) c.state = kSuccess;  // queued, not done: the stream says when
      lock.unlock();
      at_work = batch.stream;
      execute(c, batch);
      emulator::end_foreign_work(batch.stream);
      at_work = nullptr;
    }
  } catch (const Failure& f) {
    std::lock_guard lock(c.mutex);
    c.last_error = f.what();
    c.state = f.result;
  } catch (const Aborted&) {
  }
  if (at_work) emulator::end_foreign_work(at_work);
}

int add_operation(ncclComm* c, const Operation& o, cudaStream_t stream) {
  if (!c || !stream || o.peer < 0 || o.peer >= c->size || o.peer == c->rank ||
      (o.bytes > 0 && !emulator::on_device(o.memory)))
    return kInvalidArgument;
  if (c->state != kSuccess && !(group.depth > 0 && c->state == kInProgress)) return kInvalidUsage;
  if (group.depth > 0) {
    if (group.comm && (group.comm != c || group.batch.stream != stream)) return kInvalidUsage;
    group.comm = c;
    group.batch.stream = stream;
    group.batch.operations.push_back(o);
    return kInProgress;
  }
  emulator::begin_foreign_work(stream);
  std::lock_guard lock(c->mutex);
  c->state = kInProgress;
  c->batches.push_back({{o}, stream});
  c->changed.notify_all();
  return kInProgress;
}

void end(ncclComm* c) {
  c->changed.notify_all();
  c->worker.join();
  for (const Batch& batch : c->batches) emulator::end_foreign_work(batch.stream);
  for (const int socket : c->sockets)
    if (socket >= 0) ::close(socket);
  delete c;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) { return *version = 21403, kSuccess; }

int ncclGetUniqueId(UniqueId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->text, 64, "brine-nccl-%d-%08x%08x", int(::getpid()), random(), random());
  return kSuccess;
}

int ncclCommInitRankConfig(ncclComm** out, int size, UniqueId id, int rank, Config* config) {
  if (!out || !config || config->size < sizeof(Config) || config->magic != 0xcafebeefu ||
      config->version < 21400 || config->blocking != 0 || rank < 0 || rank >= size ||
      std::strncmp(id.text, "brine-nccl-", 11) != 0)
    return kInvalidArgument;
  auto* c = new ncclComm;
  c->rank = rank;
  c->size = size;
  c->id = std::string(id.text, strnlen(id.text, 64));
  c->sockets.assign(size_t(size), -1);
  c->worker = std::thread([c] { work(*c); });
  *out = c;
  return kInProgress;
}

int ncclCommGetAsyncError(ncclComm* c, int* state) { return *state = c->state, kSuccess; }

int ncclGroupStart() { return ++group.depth, kSuccess; }

int ncclGroupEnd() {
  if (group.depth == 0) return kInvalidUsage;
  if (--group.depth > 0 || !group.comm) return kSuccess;
  Group done = std::move(group);
  group = {};
  emulator::begin_foreign_work(done.batch.stream);
  std::lock_guard lock(done.comm->mutex);
  done.comm->state = kInProgress;
  done.comm->batches.push_back(std::move(done.batch));
  done.comm->changed.notify_all();
  return kInProgress;
}

int ncclSend(const void* from, size_t count, int type, int peer, ncclComm* c, cudaStream_t stream) {
  if (type != 1) return kInvalidArgument;
  auto* memory = static_cast<unsigned char*>(const_cast<void*>(from));
  return add_operation(c, {Operation::send, memory, count, type, peer}, stream);
}

int ncclRecv(void* to, size_t count, int type, int peer, ncclComm* c, cudaStream_t stream) {
  if (type != 1) return kInvalidArgument;
  return add_operation(c, {Operation::receive, static_cast<unsigned char*>(to), count, type, peer},
                       stream);
}

int ncclCommDestroy(ncclComm* c) {
  {
    std::lock_guard lock(c->mutex);
    c->ended = true;
  }
  return end(c), kSuccess;
}

int ncclCommAbort(ncclComm* c) {
  {
    std::lock_guard lock(c->mutex);
    c->aborted = true;
  }
  return end(c), kSuccess;
}

const char* ncclGetErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "in progress";
  }
}

const char* ncclGetLastError(ncclComm* c) {
  std::lock_guard lock(c->mutex);
  thread_local std::string copy;
  copy = c->last_error;
  return copy.c_str();
}

}  // extern "C"
