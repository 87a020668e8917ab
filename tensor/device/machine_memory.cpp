// The memory that the machine can still give to this process.
#include "tensor/device/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace brine {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

// The number after `key` in a file of "key number" lines, or its first number.
double number_in(const std::filesystem::path& path, const std::string& key = "") {
  std::ifstream in(path);
  std::string word;
  while (!key.empty() && word != key) {
    if (!(in >> word)) return kUnknown;
  }
  double number = 0;
  return in >> number ? number : kUnknown;  // "max" means none
}

// What a control group leaves of its limit; the page cache that it counts is given back.
double left_in(const std::filesystem::path& group, bool unified) {
  const double limit = number_in(group / (unified ? "memory.max" : "memory.limit_in_bytes"));
  const double used = number_in(group / (unified ? "memory.current" : "memory.usage_in_bytes"));
  if (limit == kUnknown || used == kUnknown) return kUnknown;
  const double cache =
      number_in(group / "memory.stat", unified ? "inactive_file" : "total_inactive_file");
  return std::max(limit - used + (cache == kUnknown ? 0 : std::min(cache, used)), 0.0);
}

}  // namespace

double available_memory(const std::string& root) {
  const std::filesystem::path base(root + "/");
  double bytes = number_in(base / "proc/meminfo", "MemAvailable:") * 1024;
  std::ifstream groups(base / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/a/b", of version 2 "0::/a/b"
    std::istringstream parts(line);
    std::string number, controllers, path;
    std::getline(parts, number, ':');
    std::getline(parts, controllers, ':');
    std::getline(parts, path);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::filesystem::path top = base / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    std::filesystem::path group = top / std::filesystem::path(path).relative_path();
    // The limits of all groups around it count; in a container the path may not be there.
    for (;; group = group.parent_path()) {
      bytes = std::min(bytes, left_in(group, unified));
      if (group == top || !group.has_relative_path()) break;
    }
    bytes = std::min(bytes, left_in(top, unified));
  }
  return bytes;
}

}  // namespace brine
