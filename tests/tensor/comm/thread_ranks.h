// Ranks that are threads of the test program: messages are queues.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "tensor/comm/communicator.h"

namespace brine::test {

struct Mailboxes {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::string>> waiting;  // by sender and receiver
};

class ThreadRank : public Communicator {
 public:
  ThreadRank(Mailboxes& boxes, int rank, int size) : Communicator(rank, size), boxes_(boxes) {}
  std::string name() const override { return "threads"; }
  [[noreturn]] void abort(int) override { throw Error("a thread cannot end the others"); }

 protected:
  void move(const Wait& wait, const std::vector<Outgoing>& out,
            const std::vector<Incoming>& in) override {
    std::unique_lock lock(boxes_.mutex);
    for (const Outgoing& o : out) {
      boxes_.waiting[{rank(), o.to}].emplace_back(static_cast<const char*>(o.bytes), o.size);
    }
    boxes_.changed.notify_all();
    for (const Incoming& i : in) {
      std::deque<std::string>& box = boxes_.waiting[{i.from, rank()}];
      if (!boxes_.changed.wait_for(lock, std::chrono::duration<double>(wait.seconds),
                                   [&] { return !box.empty(); }))
        throw RanksMissing(join(wait.what, ": no answer from rank ", i.from));
      check(box.front().size() == i.size, "a message of ", box.front().size(), " bytes, wanted ",
            i.size);
      box.front().copy(static_cast<char*>(i.bytes), i.size);
      box.pop_front();
    }
  }

 private:
  Mailboxes& boxes_;
};

// Runs f(rank) in one thread for each rank; rethrows the first exception.
inline void in_threads(int size, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        f(r);
      } catch (...) {
        failures[size_t(r)] = std::current_exception();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// The same of f(communicator).
inline void on_ranks(int size, const std::function<void(Communicator&)>& f) {
  Mailboxes boxes;
  in_threads(size, [&](int r) {
    ThreadRank rank(boxes, r, size);
    f(rank);
  });
}

}  // namespace brine::test
