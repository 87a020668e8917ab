// MPI by name: nonblocking sends and receives, tested until they are done or the limit has passed.
#include "tensor/comm/mpi.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "tensor/base/shared_library.h"
#include "tensor/comm/patience.h"

namespace brine {
namespace {

constexpr int kTag = 1, kFunneled = 1;
constexpr size_t kLargest = size_t(1) << 30;  // bytes of a message: counts are int

// The binary interfaces: the type of handles, and the constants of mpi.h.
struct OpenMpi {
  using Handle = void*;
  static constexpr const char *kLibrary = "libmpi.so.40", *kName = "Open MPI";
  static Handle world(const SharedLibrary& l) { return l.address("ompi_mpi_comm_world"); }
  static Handle bytes(const SharedLibrary& l) { return l.address("ompi_mpi_byte"); }
  static Handle errors_return(const SharedLibrary& l) {
    return l.address("ompi_mpi_errors_return");
  }
  static void* status_ignore() { return nullptr; }
};

struct Mpich {
  using Handle = int;
  static constexpr const char *kLibrary = "libmpich.so.12", *kName = "MPICH";
  static Handle world(const SharedLibrary&) { return 0x44000000; }
  static Handle bytes(const SharedLibrary&) { return 0x4c00010d; }
  static Handle errors_return(const SharedLibrary&) { return 0x54000001; }
  static void* status_ignore() { return reinterpret_cast<void*>(1); }
};

template <class Abi>
class Mpi : public Communicator {
  using Handle = typename Abi::Handle;

 public:
  // The members of a base are set before those of this class, so the library is opened first.
  static std::unique_ptr<Communicator> open() {
    // Global: Open MPI's plug-ins expect its symbols there.
    SharedLibrary library("ranks", Abi::kLibrary, RTLD_GLOBAL);
    check(library.found(),
          "ranks: started by MPI, but its library cannot be loaded: ", library.why());
    int provided = 0, rank = 0, size = 1;
    const int status = library.function<int(int*, char***, int, int*)>("MPI_Init_thread")(
        nullptr, nullptr, kFunneled, &provided);
    check(status == 0, "ranks: MPI_Init_thread failed with ", status);
    library.function<int(Handle, Handle)>("MPI_Comm_set_errhandler")(Abi::world(library),
                                                                     Abi::errors_return(library));
    using Query = int(Handle, int*);
    library.function<Query>("MPI_Comm_rank")(Abi::world(library), &rank);
    library.function<Query>("MPI_Comm_size")(Abi::world(library), &size);
    return std::unique_ptr<Communicator>(new Mpi(std::move(library), rank, size));
  }

  ~Mpi() override { library_.template function<int()>("MPI_Finalize")(); }

  std::string name() const override { return Abi::kName; }

  [[noreturn]] void abort(int status) override {
    // MPICH's launcher drops output of this rank that it has not read yet.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    library_.template function<int(Handle, int)>("MPI_Abort")(world_, status);
    ::_exit(status);
  }

 protected:
  void move(const Wait& wait, const std::vector<Outgoing>& out,
            const std::vector<Incoming>& in) override {
    struct Open {
      int rank;
      Handle request;
    };
    std::vector<Open> open;
    auto start = [&](auto* call, auto* bytes, size_t size, int rank) {
      for (size_t at = 0; at < size; at += kLargest) {
        open.push_back({rank, Handle()});
        const int count = int(std::min(kLargest, size - at));
        verify(call(bytes + at, count, bytes_, rank, kTag, world_, &open.back().request), wait);
      }
    };
    for (const Incoming& i : in) start(receive_, static_cast<char*>(i.bytes), i.size, i.from);
    for (const Outgoing& o : out) start(send_, static_cast<const char*>(o.bytes), o.size, o.to);
    Patience patience(wait.seconds);
    while (!open.empty()) {
      if (std::erase_if(open, [&](Open& o) { return is_done(o.request, wait); }) > 0)
        patience.renew();
      if (open.empty()) break;
      if (patience.is_over()) {
        std::set<int> missing;
        for (const Open& o : open) missing.insert(o.rank);
        fail(wait, {missing.begin(), missing.end()});
      }
      patience.rest();
    }
  }

 private:
  Mpi(SharedLibrary library, int rank, int size)
      : Communicator(rank, size),
        library_(std::move(library)),
        world_(Abi::world(library_)),
        bytes_(Abi::bytes(library_)),
        send_(library_.template function<Send>("MPI_Isend")),
        receive_(library_.template function<Receive>("MPI_Irecv")),
        test_(library_.template function<Test>("MPI_Test")) {}

  bool is_done(Handle& request, const Wait& wait) {
    int done = 0;
    verify(test_(&request, &done, Abi::status_ignore()), wait);
    return done != 0;
  }

  void verify(int status, const Wait& wait) const {
    if (status == 0) return;
    char text[8192] = "";  // larger than both libraries' MPI_MAX_ERROR_STRING
    int length = 0;
    library_.template function<int(int, char*, int*)>("MPI_Error_string")(status, text, &length);
    throw Error(join(wait.what, ": ", text), ErrorKind::io);
  }

  using Send = int(const void*, int, Handle, int, int, Handle, Handle*);
  using Receive = int(void*, int, Handle, int, int, Handle, Handle*);
  using Test = int(Handle*, int*, void*);
  SharedLibrary library_;
  Handle world_, bytes_;
  Send* send_;
  Receive* receive_;
  Test* test_;
};

}  // namespace

std::unique_ptr<Communicator> open_mpi(MpiKind kind) {
  return kind == MpiKind::open_mpi ? Mpi<OpenMpi>::open() : Mpi<Mpich>::open();
}

}  // namespace brine
