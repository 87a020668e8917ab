// Atomic files: whole reads, refusals, and what is left after a fault at every system call.
#include "data/io/file_io.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <csignal>
#include <fstream>
#include <memory>

#include "data/io/temporary.h"
#include "tests/faults.h"
#include "tests/faults.inc"
#include "tests/messages.h"
#include "tests/scratch.h"

namespace fs = std::filesystem;
using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

int entries_in(const fs::path& dir) {
  return int(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("file_io: reading returns what was written") {
  Scratch dir;
  for (size_t size : {size_t(0), size_t(1), size_t(4095), size_t(200'001)}) {
    std::string text(size, 'x');
    if (size > 1) text[size / 2] = '\0';
    write_file_atomic(dir / "a", text);
    CHECK(read_file(dir / "a") == text);
    MappedFile map(dir / "a");
    CHECK(std::string_view(reinterpret_cast<const char*>(map.data()), map.size()) == text);
    CHECK(entries_in(dir.path()) == 1);
  }
  CHECK(free_disk_bytes(dir / "not/yet/here") > 0);
}

TEST_CASE("file_io: refusals name the file and the reason") {
  Scratch dir;
  CHECK(message([&] { read_file(dir / "none"); }) ==
        (dir / "none").string() + ": cannot open: No such file or directory (errno 2)");
  CHECK(message([&] { read_file(dir.path()); }).find("neither a file nor a pipe") !=
        std::string::npos);
  CHECK(message([] { read_file("/dev/zero"); }).find("neither a file") != std::string::npos);
  CHECK(message([&] { MappedFile map(dir.path()); }).find("not a regular file") !=
        std::string::npos);
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(message([&] { MappedFile map(dir / "pipe"); }).find("not a regular file") !=
        std::string::npos);
  write_file_atomic(dir / "a", "12345");
  CHECK(read_file(dir / "a", 5) == "12345");
  CHECK(message([&] { read_file(dir / "a", 4); }).find("at most 4") != std::string::npos);
  CHECK(message([&] { NewFile again(dir / "a"); }).find("File exists") != std::string::npos);
  CHECK(message([&] { write_file_atomic(dir / "no/b", ""); }).find("there is no directory") !=
        std::string::npos);
  for (const fs::path& other : {dir / "pipe", dir.path()})  // and not a device in its stead
    CHECK(message([&] { write_file_atomic(other, ""); }).find("can be replaced") !=
          std::string::npos);
  CHECK(fs::is_fifo(dir / "pipe"));
  CHECK(message([&] { throw_io("/x", "write", ENOSPC); }) ==
        "/x: cannot write: the disk is full (errno 28)");
  CHECK(read_file(dir / "a") == "12345");
}

TEST_CASE("file_io: a mapped file outlives its replacement, a dropped writer leaves nothing") {
  Scratch dir;
  write_file_atomic(dir / "a", "before");
  MappedFile map(dir / "a");
  { AtomicFile(dir / "a").write("dropped"); }
  CHECK(read_file(dir / "a") == "before");
  CHECK(entries_in(dir.path()) == 1);
  write_file_atomic(dir / "a", "after!");
  CHECK(std::string(reinterpret_cast<const char*>(map.data()), map.size()) == "before");
  CHECK(read_file(dir / "a") == "after!");
}

TEST_CASE("file_io: a fault at every system call leaves the old content or the new") {
  const std::string before(3000, 'b'), after(5000, 'a');
  Scratch probe_dir;
  auto probe = run_with_fault({}, [&] { write_file_atomic(probe_dir / "f", after); });
  REQUIRE(probe.order == "wfrf");
  const int calls = probe.calls;
  for (Fault fault : {Fault::kill, Fault::torn, Fault::fail, Fault::disk_full}) {
    for (int at = 1; at <= calls; ++at) {
      CAPTURE(int(fault));
      CAPTURE(at);
      Scratch dir;
      write_file_atomic(dir / "f", before);
      auto end = run_with_fault({fault, at}, [&] { write_file_atomic(dir / "f", after); });
      CHECK(end.killed == (fault == Fault::kill || fault == Fault::torn));
      if (fault == Fault::fail) CHECK(end.status == 1);
      if (fault == Fault::disk_full) CHECK(end.status == (at == 1 ? 1 : 0));
      bool renamed = at == 4 || (fault == Fault::disk_full && at > 1);
      CHECK(read_file(dir / "f") == (renamed ? after : before));
      bool leftover = end.killed && at < 4;
      CHECK(remove_stale_temporaries(dir.path()).size() == (leftover ? 1 : 0));
      CHECK(entries_in(dir.path()) == 1);
    }
  }
}

TEST_CASE("file_io: an unconfirmed directory is reported as just that") {
  Scratch dir;
  auto outcome = [&](int at) {
    return run_with_fault({Fault::fail, at},
                          [&] {
                            try {
                              write_file_atomic(dir / "f", "x");
                            } catch (const DurabilityUncertain&) {
                              ::_exit(7);
                            }
                          })
        .status;
  };
  CHECK(outcome(3) == 1);
  CHECK_FALSE(fs::exists(dir / "f"));
  CHECK(outcome(4) == 7);
  CHECK(read_file(dir / "f") == "x");
}

TEST_CASE("file_io: a size limit stops the writer, not the old file") {
  Scratch dir;
  write_file_atomic(dir / "f", "old");
  auto end = run_with_fault({}, [&] {
    ::signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {10'000, 10'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string reason = message([&] { write_file_atomic(dir / "f", std::string(30'000, 'x')); });
    if (reason.find("ulimit -f") == std::string::npos) ::_exit(9);
    write_file_atomic(dir / "g", "short enough");
  });
  CHECK(end.status == 0);
  CHECK(read_file(dir / "f") == "old");
  CHECK(read_file(dir / "g") == "short enough");
  CHECK(entries_in(dir.path()) == 2);
}

TEST_CASE("temporary: a sweep spares temporaries of live processes and other files") {
  Scratch dir;
  std::ofstream(dir / ".notes.tmp") << "mine";
  std::ofstream(dir / "x.brine-tmp") << "mine";
  std::ofstream(dir / ".old.brine-tmp") << "stale";
  fs::create_directories(dir / ".tree.brine-tmp/deep");
  AtomicFile held(dir / "held");
  TemporaryDir held_dir(dir.path(), "held-dir");
  CHECK(remove_stale_temporaries(dir.path()).size() == 2);
  CHECK(entries_in(dir.path()) == 4);
  CHECK_THROWS_AS(TemporaryDir(dir.path(), "held-dir"), Error);
  held.write("content");
  held.commit();
  held_dir.publish();
  CHECK(fs::is_directory(dir / "held-dir"));
  CHECK(remove_stale_temporaries(dir / "nowhere").empty());
}

TEST_CASE("temporary: a published directory replaces the one before in one step") {
  Scratch dir;
  for (int round = 0; round < 2; ++round) {
    TemporaryDir fresh(dir.path(), "d");
    write_file_atomic(fresh.path() / "f", std::to_string(round));
    fresh.publish();
  }
  CHECK(read_file(dir / "d/f") == "1");
  CHECK(entries_in(dir.path()) == 1);
  { TemporaryDir dropped(dir.path(), "d"); }
  CHECK(read_file(dir / "d/f") == "1");
  remove_atomic(dir / "d");
  CHECK(entries_in(dir.path()) == 0);
}

TEST_CASE("mapped file: forgetting more than there is touches no memory of others") {
  Scratch scratch;
  const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  const std::string path = scratch.write("f", std::string(page, 'x'));
  // Private pages all around, so that one of them follows the mapping.
  std::vector<unsigned char*> pages;
  auto more = [&] {
    void* at = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pages.push_back(static_cast<unsigned char*>(at));
    pages.back()[0] = 7;
  };
  for (int i = 0; i < 32; ++i) more();
  MappedFile file(path);
  for (int i = 0; i < 32; ++i) more();
  file.forget(0, 1 << 20);
  file.forget(page, 1 << 20);
  file.forget(2 * page, 1 << 20);
  for (unsigned char* at : pages) CHECK(at[0] == 7);
  CHECK(file.data()[page - 1] == 'x');
  for (unsigned char* at : pages) ::munmap(at, page);
}
