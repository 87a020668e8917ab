// Processes that find each other without a launcher of MPI, as threads: strangers, other runs,
// ranks that do not come, that come twice, and that go.
#include "tensor/comm/rendezvous.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "tensor/comm/communicator.h"
#include "tensor/comm/pmi_server.h"
#include "tests/messages.h"

namespace brine::test {
namespace {

// A port of the loopback address that was free a moment ago, or that a socket listens on.
struct Port {
  int socket = ::socket(AF_INET, SOCK_STREAM, 0), number = 0;
  Port() {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof a;
    REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&a), size) == 0);
    REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&a), &size) == 0);
    number = ntohs(a.sin_port);
  }
  ~Port() { ::close(socket); }
};

int free_port() { return Port().number; }

Meeting meeting(int port, int rank, int size, double seconds = 20) {
  return {.host = "127.0.0.1",
          .port = port,
          .rank = rank,
          .size = size,
          .run = "run 1",
          .seconds = seconds};
}

// Runs f(rank) in a thread for each rank.
void on_threads(int size, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::string failed;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        f(r);
      } catch (const std::exception& e) {
        std::lock_guard lock(mutex);
        failed += std::string(e.what()) + "\n";
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(failed == "");
}

// Connects to a port, however long it takes until it is listened to, says a line, and reads one.
std::string say(int port, const std::string& line) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(uint16_t(port));
  int socket = -1;
  for (;;) {
    socket = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(socket, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0) break;
    ::close(socket);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::send(socket, line.data(), line.size(), MSG_NOSIGNAL);
  std::string answer;
  char c = 0;
  while (::recv(socket, &c, 1, 0) == 1 && c != '\n') answer += c;
  ::close(socket);
  return answer;
}

TEST_CASE("rendezvous: all ranks get the bytes of rank 0, and connections of their own") {
  for (const int size : {2, 5}) {
    const int port = free_port();
    std::string bytes(256, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = char(i);
    on_threads(size, [&](int r) {
      Rendezvous all(meeting(port, r, size));
      check(all.share(r == 0 ? bytes : "") == bytes, "rank ", r, " has other bytes");
      const std::vector<int> sockets = all.connect_again();
      check(int(sockets.size()) == (r == 0 ? size + 1 : 1), "rank ", r, " has ", sockets.size());
      // Each rank writes its number, rank 0 by the half that is its own.
      const char number = char(r);
      check(::send(sockets.back(), &number, 1, 0) == 1, "send");
      for (int other = 0; r == 0 && other < size; ++other) {
        char got = -1;
        check(::recv(sockets[size_t(other)], &got, 1, 0) == 1 && got == other, "socket ", other,
              " is that of rank ", int(got));
      }
      while (!all.all_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      check(all.missing().empty(), "rank ", r, " misses ", all.missing());
      for (const int socket : sockets) ::close(socket);
    });
  }
}

TEST_CASE("rendezvous: ranks that do not come are named, with those that were turned away") {
  const int port = free_port();
  const std::string place = join("rendezvous at 127.0.0.1:", port, ": ");
  std::string first;
  std::thread rank_0([&] { first = message([&] { Rendezvous r(meeting(port, 0, 3, 3)); }); });
  Meeting of_another = meeting(port, 1, 3);
  of_another.run = "run 2";
  CHECK(message([&] { Rendezvous r(of_another); }) ==
        place + "rank 0 there is of run run_1, not run_2");
  CHECK(message([&] { Rendezvous r(meeting(port, 1, 4)); }) ==
        place + "rank 0 there is one of 3 ranks, not 4");
  // One of the two is turned away, the other one waits in vain.
  std::string twice[2];
  std::thread second([&] { twice[0] = message([&] { Rendezvous r(meeting(port, 2, 3, 4)); }); });
  twice[1] = message([&] { Rendezvous r(meeting(port, 2, 3, 4)); });
  second.join();
  rank_0.join();
  CHECK(first ==
        place +
            "2 of 3 ranks within 3 seconds, missing: 1; turned away: a rank 2, a rank 2 is "
            "there already");
  CHECK(std::count(twice, twice + 2, place + "a rank 2 is there already") == 1);
  CHECK(std::count_if(twice, twice + 2, [&](const std::string& text) {
          return text.starts_with(place + "rank 0 was not there within 4 seconds: ");
        }) == 1);
}

TEST_CASE("rendezvous: strangers do not disturb it") {
  const int port = free_port();
  std::string http, silent;
  std::thread stranger([&] {
    http = say(port, "GET / HTTP/1.1\n");
    silent = say(port, std::string(5000, 'x'));
  });
  std::thread first([&] {
    Rendezvous r(meeting(port, 0, 2));
    CHECK(r.share("here") == "here");
  });
  stranger.join();
  CHECK(http == "no this is rank 0 of a run of brine");
  Rendezvous second(meeting(port, 1, 2));
  CHECK(second.share("") == "here");
  first.join();
}

TEST_CASE("rendezvous: a port that is taken, by another program or for the others") {
  const Port taken;
  REQUIRE(::listen(taken.socket, 4) == 0);
  CHECK(
      message([&] { Rendezvous r(meeting(taken.number, 0, 2)); }) ==
      join("rendezvous at 127.0.0.1:", taken.number,
           ": rank 0 cannot listen there: Address already in use; set BRINE_MASTER_PORT to a free "
           "port, on all ranks"));
  std::thread program([&] {
    const int socket = ::accept(taken.socket, nullptr, nullptr);
    ::send(socket, "220 mail\n", 9, MSG_NOSIGNAL);
    ::close(socket);
  });
  CHECK(message([&] { Rendezvous r(meeting(taken.number, 1, 2)); }) ==
        join("rendezvous at 127.0.0.1:", taken.number,
             ": another program answered, not rank 0 of this run"));
  program.join();
}

TEST_CASE("rendezvous: without rank 0 the limit ends the wait") {
  const int port = free_port();
  CHECK(message([&] { Rendezvous r(meeting(port, 1, 2, 0.2)); }) ==
        join("rendezvous at 127.0.0.1:", port,
             ": rank 0 was not there within 0.2 seconds: Connection refused"));
}

// A rank that ends without its destructor: the process's sockets are closed, nothing is said.
TEST_CASE("rendezvous: a rank that has ended is named on all, one that is done is not") {
  const int port = free_port();
  std::unique_ptr<Rendezvous> first, third;
  std::thread one([&] { first = std::make_unique<Rendezvous>(meeting(port, 0, 4)); });
  std::thread three([&] { third = std::make_unique<Rendezvous>(meeting(port, 3, 4)); });
  std::thread done([&] {
    Rendezvous r(meeting(port, 1, 4));
    r.all_done();
  });
  const std::string answer = say(port, "brine-ranks-1 l 2 4 run_1 machine\n");  // and goes
  one.join();
  three.join();
  done.join();
  CHECK(answer == "yes");
  auto wait_for = [](Rendezvous& r) {
    for (int i = 0; i < 1000 && r.missing().empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return r.missing();
  };
  CHECK(wait_for(*first) == "rank 2 has ended");
  CHECK(wait_for(*third) == "rank 2 has ended");
}

TEST_CASE("rendezvous: ranks are done when all are") {
  const int port = free_port();
  std::atomic<int> over{0};
  std::atomic<bool> late{false};
  on_threads(3, [&](int r) {
    Rendezvous all(meeting(port, r, 3));
    if (r == 1) {  // the others ask in vain
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      check(over == 0, "a rank is done before rank 1");
      late = true;
    }
    while (!all.all_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    check(late, "rank ", r, " does not wait for rank 1");
    ++over;
    check(all.missing().empty(), "rank ", r, " misses ", all.missing());
  });
  CHECK(over == 3);
}

TEST_CASE("PMI: the mapping names consecutive ranks of a machine") {
  CHECK(PmiServer::mapping_of({"a"}) == "(vector,(0,1,1))");
  CHECK(PmiServer::mapping_of({"a", "a", "b", "b", "b", "a"}) ==
        "(vector,(0,1,2),(1,1,3),(0,1,1))");
}

}  // namespace
}  // namespace brine::test
