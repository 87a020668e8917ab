// How processes that no MPI launcher started find each other: rank 0 listens on a port, the others
// connect, and each knows when another one has gone. No tensor travels here.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace brine {

struct Meeting {
  std::string host;  // address of rank 0
  int port = 0;
  int rank = 0, size = 1;
  std::string run;       // processes of another run are turned away
  double seconds = 600;  // limit of each step
};

class Rendezvous {
 public:
  // Returns when all ranks are here. Throws when the port is taken, when a rank does not come in
  // time (RanksMissing), and on a rank that another run, or another rank of its number, turns away.
  explicit Rendezvous(const Meeting& meeting);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // The bytes of rank 0 (at most 500), on all ranks.
  std::string share(const std::string& of_first);
  // One more connection of each rank to rank 0, for its own use: there one descriptor for each rank
  // (its own is one half of a pair, the other half is the last of the list), elsewhere one in all.
  std::vector<int> connect_again();
  // The machine of each rank, on rank 0.
  const std::vector<std::string>& machines() const { return machines_; }

  // "rank 2 has ended" when a process has ended before all_done(), otherwise empty. Rank 0 watches
  // all and tells the others.
  std::string missing();
  // Says that this rank needs no other any more; true when that holds for all, or when one has
  // ended. Does not wait.
  bool all_done();

 private:
  using Time = std::chrono::steady_clock::time_point;
  bool wait_readable(int socket, Time end);
  std::vector<int> accept_all(char purpose);
  int connect(char purpose);
  std::string place() const;  // "rendezvous at 10.0.0.1:29501"

  Meeting meeting_;
  int listening_ = -1;
  std::vector<int> lines_;  // by rank; elsewhere one, to rank 0
  std::vector<std::string> machines_;
  std::vector<bool> done_;  // of the lines
  bool said_done_ = false;
  std::string gone_;
};

}  // namespace brine
