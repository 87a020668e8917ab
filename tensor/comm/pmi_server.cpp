// Commands are lines "cmd=put kvsname=brine key=K value=V"; answers too.
#include "tensor/comm/pmi_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "tensor/error.h"

namespace brine {
namespace {

constexpr size_t kLongestCommand = 16384;
constexpr int kRound = 100, kRoundsStopped = 100;  // milliseconds; about 10 seconds

std::map<std::string, std::string> fields_of(const std::string& command) {
  std::map<std::string, std::string> out;
  std::istringstream in(command);
  for (std::string word; in >> word;) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) out[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return out;
}

}  // namespace

std::string PmiServer::mapping_of(const std::vector<std::string>& machines) {
  std::map<std::string, size_t> numbers;
  std::string out = "(vector";
  for (size_t r = 0; r < machines.size();) {
    size_t end = r;
    while (end < machines.size() && machines[end] == machines[r]) ++end;
    const size_t number = numbers.emplace(machines[r], numbers.size()).first->second;
    out += join(",(", number, ",1,", end - r, ")");
    r = end;
  }
  return out + ")";
}

PmiServer::PmiServer(std::vector<int> sockets, const std::vector<std::string>& machines)
    : sockets_(std::move(sockets)),
      unfinished_(sockets_.size()),
      waiting_(sockets_.size()),
      finished_(sockets_.size()),
      gone_(sockets_.size()),
      values_{{"PMI_process_mapping", mapping_of(machines)}},
      thread_([this] { serve(); }) {}

PmiServer::~PmiServer() {
  stop_ = true;
  thread_.join();
  for (const int socket : sockets_)
    if (socket >= 0) ::close(socket);
}

void PmiServer::serve() {
  int rounds_stopped = 0;
  for (;;) {
    std::vector<pollfd> open;
    std::vector<size_t> ranks;
    for (size_t r = 0; r < sockets_.size(); ++r) {
      if (sockets_[r] < 0) continue;
      open.push_back({sockets_[r], POLLIN, 0});
      ranks.push_back(r);
    }
    // A rank that has neither finished nor gone does not keep this one.
    if (stop_ && ++rounds_stopped > kRoundsStopped) return;
    if (open.empty()) return;
    if (::poll(open.data(), nfds_t(open.size()), kRound) <= 0) continue;
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i].revents != 0 && !read_from(ranks[i])) leave(ranks[i]);
    }
    if (std::count(gone_.begin(), gone_.end(), true) == 0) continue;
    // A barrier that cannot end: ranks that wait there are let go, and fail.
    for (size_t r = 0; r < sockets_.size(); ++r)
      if (waiting_[r]) leave(r);
  }
}

void PmiServer::leave(size_t rank) {
  if (sockets_[rank] >= 0) ::close(sockets_[rank]);
  sockets_[rank] = -1;
  waiting_[rank] = false;
  gone_[rank] = !finished_[rank];
}

bool PmiServer::read_from(size_t rank) {
  char bytes[4096];
  const ssize_t n = ::recv(sockets_[rank], bytes, sizeof bytes, 0);
  if (n < 0) return errno == EINTR;
  if (n == 0) return false;
  std::string& text = unfinished_[rank];
  text.append(bytes, size_t(n));
  for (size_t end = 0; (end = text.find('\n')) != std::string::npos;) {
    const std::string command = text.substr(0, end);
    text.erase(0, end + 1);
    answer(rank, command);
  }
  return !finished_[rank] && text.size() < kLongestCommand;
}

void PmiServer::send(int socket, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::send(socket, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // it has gone; the next poll finds out
    at += size_t(n);
  }
}

void PmiServer::answer(size_t rank, const std::string& command) {
  std::map<std::string, std::string> given = fields_of(command);
  const std::string what = given["cmd"];
  const int socket = sockets_[rank];
  if (what == "init") {
    send(socket, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
  } else if (what == "get_maxes") {
    send(socket, "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024\n");
  } else if (what == "get_appnum") {
    send(socket, "cmd=appnum rc=0 appnum=0\n");
  } else if (what == "get_my_kvsname") {
    send(socket, "cmd=my_kvsname rc=0 kvsname=brine\n");
  } else if (what == "get_universe_size") {
    send(socket, join("cmd=universe_size rc=0 size=", sockets_.size(), "\n"));
  } else if (what == "put") {
    values_[given["key"]] = given["value"];
    send(socket, "cmd=put_result rc=0 msg=success\n");
  } else if (what == "get") {
    const auto found = values_.find(given["key"]);
    send(socket, found == values_.end()
                     ? std::string("cmd=get_result rc=-1 msg=key_not_found value=unknown\n")
                     : "cmd=get_result rc=0 msg=success value=" + found->second + "\n");
  } else if (what == "barrier_in") {
    waiting_[rank] = true;
    if (std::count(waiting_.begin(), waiting_.end(), true) == std::ptrdiff_t(waiting_.size())) {
      waiting_.assign(waiting_.size(), false);
      for (const int each : sockets_)
        if (each >= 0) send(each, "cmd=barrier_out rc=0 msg=success\n");
    }
  } else if (what == "finalize") {
    finished_[rank] = true;
    send(socket, "cmd=finalize_ack rc=0\n");
  }
  // No "abort": such ranks end without it (tensor/comm/mpi.cpp).
}

}  // namespace brine
