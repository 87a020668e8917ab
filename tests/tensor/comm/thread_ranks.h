// Ranks that are threads of the test program: messages are queues.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "tensor/comm/communicator.h"

namespace brine::test {

struct Mailboxes {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::string>> waiting;  // by sender and receiver
  // By sender, receiver and number.
  std::map<std::tuple<int, int, int>, std::deque<std::string>> posted;
};

class ThreadRank : public Communicator {
 public:
  ThreadRank(Mailboxes& boxes, int rank, int size) : Communicator(rank, size), boxes_(boxes) {}
  std::string name() const override { return "threads"; }
  bool posts() const override { return true; }
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

  // A message leaves, and another one arrives, when it has been asked for some times; those of one
  // number do so in their order.
  std::unique_ptr<Posted> start(const Wait&, const Outgoing& out, int number) override {
    auto send = [this, out, number] {
      std::unique_lock lock(boxes_.mutex);
      boxes_.posted[{rank(), out.to, number}].emplace_back(static_cast<const char*>(out.bytes),
                                                           out.size);
      return true;
    };
    return std::make_unique<Late>(turns_[{true, out.to, number}], send, draw_() % 5);
  }
  std::unique_ptr<Posted> start(const Wait&, const Incoming& in, int number) override {
    auto receive = [this, in, number] {
      std::unique_lock lock(boxes_.mutex);
      std::deque<std::string>& box = boxes_.posted[{in.from, rank(), number}];
      if (box.empty()) return false;
      check(box.front().size() == in.size, "a message of ", box.front().size(), " bytes, wanted ",
            in.size);
      box.front().copy(static_cast<char*>(in.bytes), in.size);
      box.pop_front();
      return true;
    };
    return std::make_unique<Late>(turns_[{false, in.from, number}], receive, draw_() % 5);
  }

 private:
  struct Turns {
    int given = 0, now = 0;
  };
  struct Late : Posted {
    Late(Turns& t, std::function<bool()> f, unsigned n)
        : turns(t), turn(t.given++), act(std::move(f)), left(n) {}
    bool is_done() override {
      if (done) return true;
      if (left > 0) return --left, false;
      done = turns.now == turn && act();
      if (done) ++turns.now;
      return done;
    }
    Turns& turns;
    int turn;
    std::function<bool()> act;
    unsigned left;
    bool done = false;
  };
  Mailboxes& boxes_;
  std::map<std::tuple<bool, int, int>, Turns> turns_;
  std::minstd_rand draw_{unsigned(rank()) + 1};
};

// Runs f(communicator) in one thread for each rank; rethrows the first exception.
inline void on_ranks(int size, const std::function<void(Communicator&)>& f) {
  Mailboxes boxes;
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        ThreadRank rank(boxes, r, size);
        f(rank);
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

}  // namespace brine::test
