// Writing and comparing the record.
#include "apps/selftest/stamp.h"

#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <sstream>
#include <vector>

#include "apps/terminal/commit.h"
#include "data/codec/sha256.h"
#include "data/io/file_io.h"
#include "tensor/device/gpu_software.h"

namespace brine::selftest {
namespace {

constexpr const char* kFirstLine = "brine gpu-selftest passed";

// The id that the linker gave the program, so that two builds of one commit differ; empty if it
// gave none.
std::string build_id() {
  std::string id;
  auto read = [](dl_phdr_info* info, size_t, void* to) {
    constexpr char kDigits[] = "0123456789abcdef";
    auto round_up = [](size_t n) { return (n + 3) / 4 * 4; };
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = info->dlpi_phdr[i];
      if (part.p_type != PT_NOTE) continue;
      const auto* at = reinterpret_cast<const unsigned char*>(info->dlpi_addr + part.p_vaddr);
      const auto* end = at + part.p_memsz;
      while (at + sizeof(ElfW(Nhdr)) <= end) {
        const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
        const unsigned char* name = at + sizeof note;
        const unsigned char* value = name + round_up(note.n_namesz);
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            std::string_view(reinterpret_cast<const char*>(name), 3) == "GNU") {
          for (size_t b = 0; b < note.n_descsz; ++b) {
            *static_cast<std::string*>(to) += {kDigits[value[b] / 16], kDigits[value[b] % 16]};
          }
          return 1;
        }
        at = value + round_up(note.n_descsz);
      }
    }
    return 1;  // the first one is the program; no others
  };
  dl_iterate_phdr(read, &id);
  return id;
}

std::filesystem::path cache() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg && std::filesystem::path(xdg).is_absolute()) return xdg;
  const char* home = std::getenv("HOME");
  check(home && *home,
        "gpu-selftest: neither XDG_CACHE_HOME nor HOME names a place for the record");
  return std::filesystem::path(home) / ".cache";
}

struct Line {
  const char* name;
  std::string Stamp::*value;
};
constexpr Line kLines[] = {
    {"build", &Stamp::build}, {"driver", &Stamp::driver}, {"device", &Stamp::device}};

}  // namespace

Stamp Stamp::present(int index) {
  return {.build = join(BRINE_VERSION, " ", commit_name(), " ", build_id()),
          .driver = cuda::driver_version(),
          .device = cuda::unique_name(index)};
}

std::filesystem::path Stamp::path() const {
  data::Sha256 hash;
  hash.update(device);
  return cache() / "brine" / ("gpu-selftest-" + hash.hex().substr(0, 16));
}

std::string Stamp::text() const {
  std::string out = std::string(kFirstLine) + "\n";
  for (const Line& line : kLines) out += join(line.name, ": ", this->*line.value, "\n");
  return out;
}

void Stamp::write() const {
  std::error_code failed;
  std::filesystem::create_directories(path().parent_path(), failed);  // the next line reports it
  data::write_file_atomic(path(), text());
}

void Stamp::remove() const {
  std::error_code absent;
  std::filesystem::remove(path(), absent);
}

std::string Stamp::difference() const {
  std::string there;
  try {
    there = data::read_file(path(), 4096);
  } catch (const Error& e) {
    if (e.kind == ErrorKind::not_found) return "it has not passed";
    return e.what();
  }
  if (there == text()) return "";
  std::istringstream lines(there);
  std::string line;
  // A record that was cut ends within a line, whose value would look like another one.
  if (!there.ends_with('\n') || !std::getline(lines, line) || line != kFirstLine) {
    return join("its record ", path().string(), " is damaged");
  }
  for (const Line& wanted : kLines) {
    const std::string name = std::string(wanted.name) + ": ";
    if (!std::getline(lines, line) || !line.starts_with(name)) break;
    const std::string value = line.substr(name.size());
    if (value != this->*wanted.value) {
      return join("it passed with another ", wanted.name, " (", value, ", now ",
                  this->*wanted.value, ")");
    }
  }
  return join("its record ", path().string(), " is damaged");
}

}  // namespace brine::selftest
