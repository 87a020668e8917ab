// The processes of one run (ranks): messages of bytes between them, with a limit for every wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/error.h"

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
class Communicator {
 public:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_first() const { return rank_ == 0; }
  // Of every wait, in seconds.
  double limit() const { return limit_; }
  void set_limit(double seconds) { limit_ = seconds; }
  const Traffic& traffic() const { return traffic_; }

  // Sends and receives until all is done. Messages between two ranks arrive in the order of their
  // lists. Throws RanksMissing after limit() times `patience` seconds. The memory of both lists
  // may be in use until the process ends when this throws.
  void exchange(const std::string& what, const std::vector<Outgoing>& out,
                const std::vector<Incoming>& in, double patience = 1);
  // Returns when all ranks have called it.
  void barrier(const std::string& what, double patience = 1);
  // The bytes of every rank, by rank; their lengths may differ.
  std::vector<std::string> gather(const std::string& what, const std::string& mine);
  // The bytes of rank 0, on all ranks.
  void broadcast(const std::string& what, void* bytes, size_t size);

  // Ends all ranks at once.
  [[noreturn]] virtual void abort(int status) = 0;

 protected:
  struct Wait {
    const std::string& what;
    double seconds;
  };
  virtual void move(const Wait& wait, const std::vector<Outgoing>& out,
                    const std::vector<Incoming>& in) = 0;

 private:
  int rank_, size_;
  double limit_ = 600;
  Traffic traffic_;
};

// One process.
class SelfCommunicator : public Communicator {
 public:
  SelfCommunicator() : Communicator(0, 1) {}
  [[noreturn]] void abort(int status) override;

 protected:
  void move(const Wait& wait, const std::vector<Outgoing>& out,
            const std::vector<Incoming>& in) override;
};

}  // namespace brine
