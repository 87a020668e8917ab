// The processes of one run (ranks): messages and collectives between them, with a limit for every
// wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/base/error.h"
#include "tensor/tensor.h"

namespace brine {

// A wait for other ranks that took longer than its limit. The message names the operation and the
// ranks that are missing.
struct RanksMissing : Error {
  using Error::Error;
};

// An error that every rank of a run throws with the same text: one of them prints it.
struct SharedError : Error {
  using Error::Error;
};

// A range of slots, of elements, ...
struct SlotRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const SlotRange&, const SlotRange&) = default;
};

// The elements of a flat buffer of n that one rank owns: it adds them up for all.
SlotRange elements_of(int64_t n, int rank, int ranks);

// What a rank sends to, or expects from, another one.
struct Outgoing {
  int to;
  const void* bytes;
  size_t size;
};
struct Incoming {
  int from;
  void* bytes;
  size_t size;
};

// What one rank has sent so far, messages to itself excluded.
struct Traffic {
  int64_t bytes = 0, messages = 0;
};

// Calls are made by one thread, and by all ranks in the same order. `what` names the operation in
// errors: "gradients of step 3".
class Communicator : NonCopyable {
 public:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_first() const { return rank_ == 0; }
  // Of every wait, in seconds.
  double limit() const { return limit_; }
  void set_limit(double seconds) { limit_ = seconds; }
  const Traffic& traffic() const { return traffic_; }
  // What moves the messages: "self", "MPI", "NCCL 2.18.3 on cuda:0, MPI".
  virtual std::string name() const = 0;
  // Whether memory of that device can be sent and received; the CPU's always.
  virtual bool moves(Device where) const { return where.is_cpu(); }

  // Sends and receives memory of one device until all is done. Messages between two ranks arrive in
  // the order of their lists. Throws RanksMissing after limit() times `patience` seconds. The
  // memory of both lists may be in use until the process ends when this throws.
  void exchange(const std::string& what, const std::vector<Outgoing>& out,
                const std::vector<Incoming>& in, double patience = 1, Device where = {});
  // Returns when all ranks have called it.
  void barrier(const std::string& what, double patience = 1);
  // The bytes of every rank, by rank; their lengths may differ.
  std::vector<std::string> gather(const std::string& what, const std::string& local);
  // The bytes of rank 0, on all ranks, in memory of one device.
  void broadcast(const std::string& what, void* bytes, size_t size, Device where = {});

  // Collectives on flat tensors [n]: contiguous, of one size and type on all ranks, in memory that
  // moves(). With one rank they do nothing. Errors as of exchange().
  //
  // The values of rank 0, on all ranks.
  void broadcast(const std::string& what, const Tensor& values);

  // Ends all ranks at once.
  [[noreturn]] virtual void abort(int status) = 0;

 protected:
  struct Wait {
    const std::string& what;
    double seconds;
    Device where = {};
  };
  virtual void move(const Wait& wait, const std::vector<Outgoing>& out,
                    const std::vector<Incoming>& in) = 0;
  [[noreturn]] static void fail(const Wait& wait, const std::vector<int>& missing);

 private:
  void refuse_other(const std::string& what, const Tensor& values) const;

  int rank_, size_;
  double limit_ = 600;
  Traffic traffic_;
};

// One process.
class SelfCommunicator : public Communicator {
 public:
  SelfCommunicator() : Communicator(0, 1) {}
  std::string name() const override { return "self"; }
  [[noreturn]] void abort(int status) override;

 protected:
  void move(const Wait& wait, const std::vector<Outgoing>& out,
            const std::vector<Incoming>& in) override;
};

}  // namespace brine
