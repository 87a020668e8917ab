// Lines of text over TCP: a greeting, its answer, and a connection that stays open as a sign of
// life.
#include "tensor/comm/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "tensor/comm/communicator.h"

namespace brine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kGreeting = "brine-ranks-1";
constexpr size_t kLongestLine = 1024;
// For the line of a process that has connected; a stranger may say nothing.
constexpr double kLineSeconds = 5;

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, 1e8)));
}
int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return int(std::max<int64_t>(0, std::min<int64_t>(left.count() + 1, 1 << 30)));
}

bool is_readable(int socket, Clock::time_point end) {
  pollfd one{socket, POLLIN, 0};
  for (;;) {
    const int n = ::poll(&one, 1, milliseconds_until(end));
    if (n >= 0 || errno != EINTR) return n > 0;
  }
}

constexpr double kGlance = 0.1;  // seconds between looks at who has gone

// False when the peer is gone.
bool write_line(int socket, const std::string& text) {
  const std::string line = text + "\n";
  for (size_t at = 0; at < line.size();) {
    const ssize_t n = ::send(socket, line.data() + at, line.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += size_t(n);
  }
  return true;
}

// Without its end; empty when the peer says nothing in time, goes, or says too much.
std::string read_line(int socket, Clock::time_point end) {
  std::string line;
  while (line.size() < kLongestLine && is_readable(socket, end)) {
    char c = 0;
    const ssize_t n = ::recv(socket, &c, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return "";
    if (c == '\n') return line;
    line += c;
  }
  return "";
}

std::string one_word(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f) c = '_';
  }
  return text.empty() ? "-" : text.substr(0, 200);
}

std::string hex_of(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    out += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    out += "0123456789abcdef"[c & 15];
  }
  return out;
}
std::string bytes_of_hex(const std::string& hex) {
  std::string out;
  auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += char(digit(hex[i]) << 4 | digit(hex[i + 1]));
  return out;
}

std::string machine_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return one_word(name);
}

struct Greeting {
  char purpose = 0;
  int rank = -1, size = 0;
  std::string run, machine;
};

std::string text_of(const Greeting& g) {
  return join(kGreeting, " ", g.purpose, " ", g.rank, " ", g.size, " ", g.run, " ", g.machine);
}

bool read_greeting(const std::string& line, Greeting& g) {
  std::istringstream in(line);
  std::string head;
  return bool(in >> head >> g.purpose >> g.rank >> g.size >> g.run >> g.machine) &&
         head == kGreeting;
}

struct Addresses {
  addrinfo* first = nullptr;
  Addresses(const char* host, int port, int flags = 0, int family = AF_UNSPEC) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    const int status = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &first);
    if (status != 0) {
      throw Error(join("ranks: the address of rank 0, ", host ? host : "",
                       ", is not known: ", ::gai_strerror(status)));
    }
  }
  ~Addresses() { ::freeaddrinfo(first); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
};

int new_socket(const addrinfo& a) {
  return ::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC, a.ai_protocol);
}

// A name may be known to this machine by another address than to the others, so that rank 0
// listens on all of its addresses, unless it is told one that only this machine has.
bool is_local(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

std::string Rendezvous::place() const {
  return join("rendezvous at ", meeting_.host, ":", meeting_.port);
}

Rendezvous::Rendezvous(const Meeting& meeting) : meeting_(meeting) {
  meeting_.run = one_word(meeting_.run);
  if (meeting_.rank > 0) {
    lines_.push_back(connect('l'));
    done_.assign(1, false);
    return;
  }
  const int family = Addresses(meeting_.host.c_str(), meeting_.port).first->ai_family;
  const Addresses found(is_local(meeting_.host) ? meeting_.host.c_str() : nullptr, meeting_.port,
                        AI_PASSIVE, family);
  int error = 0;
  for (const addrinfo* a = found.first; a && listening_ < 0; a = a->ai_next) {
    const int socket = new_socket(*a);
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket, a->ai_addr, a->ai_addrlen) == 0 && ::listen(socket, 1024) == 0) {
      listening_ = socket;
    } else {
      error = errno;
      ::close(socket);
    }
  }
  if (listening_ < 0) {
    throw Error(
        join(place(), ": rank 0 cannot listen there: ", std::strerror(error),
             error == EADDRINUSE ? "; set BRINE_MASTER_PORT to a free port, on all ranks" : ""),
        ErrorKind::io);
  }
  lines_ = accept_all('l');
  done_.assign(lines_.size(), false);
}

Rendezvous::~Rendezvous() {
  for (const int line : lines_) {
    if (line >= 0) ::close(line);
  }
  if (listening_ >= 0) ::close(listening_);
}

// Ends, too, when a rank that was here has gone.
bool Rendezvous::wait_readable(int socket, Clock::time_point end) {
  for (;;) {
    if (is_readable(socket, std::min(end, after(kGlance)))) return true;
    if (const std::string why = missing(); !why.empty())
      throw RanksMissing(join(place(), ": ", why));
    if (Clock::now() >= end) return false;
  }
}

std::vector<int> Rendezvous::accept_all(char purpose) {
  std::vector<int> sockets(size_t(meeting_.size), -1);
  machines_.assign(size_t(meeting_.size), machine_name());
  std::string refused;
  const auto end = after(meeting_.seconds);
  for (int here = 1; here < meeting_.size;) {
    if (!wait_readable(listening_, end)) {
      std::string names;
      for (int r = 1; r < meeting_.size; ++r)
        if (sockets[size_t(r)] < 0) names += (names.empty() ? "" : ", ") + std::to_string(r);
      for (const int socket : sockets)
        if (socket >= 0) ::close(socket);
      ::close(std::exchange(listening_, -1));
      throw RanksMissing(join(place(), ": ", here, " of ", meeting_.size, " ranks within ",
                              meeting_.seconds, " seconds, missing: ", names, refused));
    }
    const int socket = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    Greeting g;
    std::string why;
    if (!read_greeting(read_line(socket, after(kLineSeconds)), g)) {
      why = "this is rank 0 of a run of brine";
    } else if (g.run != meeting_.run) {
      why = join("rank 0 there is of run ", meeting_.run, ", not ", g.run);
    } else if (g.size != meeting_.size) {
      why = join("rank 0 there is one of ", meeting_.size, " ranks, not ", g.size);
    } else if (g.purpose != purpose || g.rank < 1 || g.rank >= g.size ||
               sockets[size_t(g.rank)] >= 0) {
      why = join("a rank ", g.rank, " is there already");
    }
    if (!why.empty()) {
      if (g.rank >= 0) refused = join("; turned away: a rank ", g.rank, ", ", why);
      write_line(socket, "no " + why);
      ::close(socket);
      continue;
    }
    sockets[size_t(g.rank)] = socket;
    machines_[size_t(g.rank)] = g.machine;
    ++here;
  }
  for (const int socket : sockets)
    if (socket >= 0) write_line(socket, "yes");
  return sockets;
}

int Rendezvous::connect(char purpose) {
  const auto end = after(meeting_.seconds);
  std::string last = "no answer";
  for (;;) {
    const Addresses found(meeting_.host.c_str(), meeting_.port);
    for (const addrinfo* a = found.first; a; a = a->ai_next) {
      const int socket = new_socket(*a);
      if (::connect(socket, a->ai_addr, a->ai_addrlen) != 0) {
        last = std::strerror(errno);
        ::close(socket);
        continue;
      }
      write_line(socket,
                 text_of({purpose, meeting_.rank, meeting_.size, meeting_.run, machine_name()}));
      const std::string answer = wait_readable(socket, end) ? read_line(socket, end) : "";
      if (answer == "yes") return socket;
      ::close(socket);
      if (answer.starts_with("no ")) throw Error(join(place(), ": ", answer.substr(3)));
      // Either rank 0 has ended, or another program listens there.
      last = answer.empty() ? "the connection was closed without an answer"
                            : "another program answered";
      if (!answer.empty()) throw Error(join(place(), ": ", last, ", not rank 0 of this run"));
    }
    if (Clock::now() >= end)
      throw RanksMissing(
          join(place(), ": rank 0 was not there within ", meeting_.seconds, " seconds: ", last));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string Rendezvous::share(const std::string& of_first) {
  if (meeting_.rank == 0) {
    for (const int line : lines_)
      if (line >= 0) write_line(line, "share " + hex_of(of_first));
    return of_first;
  }
  const std::string text = read_line(lines_[0], after(meeting_.seconds));
  if (text.starts_with("share ")) return bytes_of_hex(text.substr(6));
  throw RanksMissing(join(place(), ": ", text.empty() ? "rank 0 has ended" : text));
}

std::vector<int> Rendezvous::connect_again() {
  if (meeting_.rank > 0) return {connect('a')};
  std::vector<int> sockets = accept_all('a');
  int pair[2];
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, place(),
        ": socketpair: ", std::strerror(errno));
  sockets[0] = pair[0];
  sockets.push_back(pair[1]);
  return sockets;
}

std::string Rendezvous::missing() {
  for (size_t i = 0; gone_.empty() && i < lines_.size(); ++i) {
    if (lines_[i] < 0 || done_[i] || !is_readable(lines_[i], Clock::now())) continue;
    const std::string said = read_line(lines_[i], after(kLineSeconds));
    if (said == "done") {
      done_[i] = true;
      continue;
    }
    const size_t rank = meeting_.rank == 0 ? i : 0;
    gone_ = said.empty() ? join("rank ", rank, " has ended") : said;
    for (size_t other = 0; meeting_.rank == 0 && other < lines_.size(); ++other)
      if (other != i && lines_[other] >= 0) write_line(lines_[other], gone_);
  }
  return gone_;
}

bool Rendezvous::all_done() {
  if (meeting_.rank > 0 && !std::exchange(said_done_, true)) write_line(lines_[0], "done");
  if (!missing().empty()) return true;
  for (size_t i = 0; i < lines_.size(); ++i)
    if (lines_[i] >= 0 && !done_[i]) return false;
  for (const int line : lines_)
    if (meeting_.rank == 0 && line >= 0) write_line(line, "done");
  return true;
}

}  // namespace brine
