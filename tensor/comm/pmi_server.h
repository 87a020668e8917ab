// The part of a launcher that MPICH needs to start: version 1.1 of its process management
// interface (PMI), by which ranks exchange addresses before they are connected. Rank 0 serves it
// to ranks that another launcher started.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace brine {

class PmiServer {
 public:
  // One connected socket for each rank, which the server owns, and the machine of each rank.
  PmiServer(std::vector<int> sockets, const std::vector<std::string>& machines);
  // Ends when all ranks have finished or gone.
  ~PmiServer();
  PmiServer(const PmiServer&) = delete;
  PmiServer& operator=(const PmiServer&) = delete;

  // "(vector,(0,1,2),(1,1,2))": which machine has how many consecutive ranks.
  static std::string mapping_of(const std::vector<std::string>& machines);

 private:
  void serve();
  // Reads what a rank has sent; false when it has gone or finished.
  bool read_from(size_t rank);
  void answer(size_t rank, const std::string& command);
  void leave(size_t rank);  // finished, gone or let go
  static void send(int socket, const std::string& text);

  std::vector<int> sockets_;                     // by rank; -1: closed
  std::vector<std::string> unfinished_;          // by rank: the beginning of its next command
  std::vector<bool> waiting_, finished_, gone_;  // by rank: at the barrier, ...
  std::map<std::string, std::string> values_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace brine
