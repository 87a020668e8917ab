// The order of folders (docs/architecture.md): the allowed includes, and where each library's
// headers may appear.
#include <map>
#include <set>

#include "tests/architecture/sources.h"

namespace brine::tests {
namespace {

// Empty when the line includes nothing; `quoted` distinguishes "x" from <x>.
std::string included(const std::string& line, bool* quoted) {
  size_t at = line.find_first_not_of(' ');
  if (at == std::string::npos || line[at] != '#') return "";
  at = line.find("include", at);
  if (at == std::string::npos) return "";
  size_t open = line.find_first_of("\"<", at);
  if (open == std::string::npos) return "";
  *quoted = line[open] == '"';
  size_t close = line.find_first_of("\">", open + 1);
  return line.substr(open + 1, close - open - 1);
}

const std::map<std::string, std::set<std::string>>& ladder() {
  static const std::map<std::string, std::set<std::string>> may = {
      {"tensor", {"tensor"}},
      {"autograd", {"tensor", "autograd"}},
      {"data", {"tensor", "data"}},
      {"nn", {"tensor", "autograd", "data", "nn"}},
      {"sea", {"tensor", "autograd", "data", "nn", "sea"}},
      {"distill", {"tensor", "autograd", "data", "nn", "distill"}},
      {"apps", {"tensor", "autograd", "nn", "sea", "data", "distill", "apps"}},
      {"tests", {folders().begin(), folders().end()}},
  };
  return may;
}

Complaints broken_order(const Source& s) {
  Complaints out;
  for (size_t i = 0; i < s.lines.size(); ++i) {
    bool quoted = false;
    std::string header = included(s.lines[i], &quoted);
    if (header.empty() || !quoted) continue;
    size_t slash = header.find('/');
    if (slash == std::string::npos || header[0] == '.') {
      out.push_back(location(s, i) + ": \"" + header + "\" is not a path from the project's root");
    } else if (!ladder().at(s.folder()).count(header.substr(0, slash))) {
      out.push_back(location(s, i) + ": " + s.folder() + "/ may not include \"" + header + "\"");
    }
  }
  return out;
}

// Where the headers of a library may appear; tests/ may use those they need.
struct Home {
  std::string header;              // how the include begins
  std::vector<std::string> files;  // paths, or folders ending in '/'
};
const std::vector<Home>& homes() {
  static const std::vector<Home> all = {
      {"dnnl", {"tensor/cpu/core/onednn.cpp"}},
      {"oneapi/dnnl", {"tensor/cpu/core/onednn.cpp", "apps/cli/version.cpp"}},
      {"hdf5", {"data/hdf5/hdf5_internal.h", "apps/cli/version.cpp", "tests/data/"}},
      {"H5", {"data/hdf5/hdf5_internal.h", "apps/cli/version.cpp", "tests/data/"}},
      {"CLI/", {"apps/cli/options.cpp"}},
      {"toml++", {"apps/cli/config_file.cpp"}},
      {"spdlog/", {"apps/terminal/terminal.cpp"}},
      {"doctest/", {"tests/"}},
      {"cuda", {"tensor/cuda/", "tests/cuda/emulator/"}},
      {"cublas", {"tensor/cuda/", "tests/cuda/emulator/"}},
      {"cudnn", {"tensor/cuda/cudnn/"}},
      {"boost/", {"tests/cuda/emulator/"}},
      {"nettle/", {"data/codec/checksums.cpp"}},
      {"utf8proc",
       {"data/io/utf8.cpp", "data/tokenizer/normalize/normalizer.cpp", "data/unicode/unicode.cpp"}},
  };
  return all;
}

bool lives_in(const std::string& path, const std::string& home) {
  return home.back() == '/' ? path.rfind(home, 0) == 0 : path == home;
}

Complaints stray_libraries(const Source& s) {
  Complaints out;
  for (size_t i = 0; i < s.lines.size(); ++i) {
    bool quoted = false;
    std::string header = included(s.lines[i], &quoted);
    if (header.empty() || quoted) continue;
    for (const Home& home : homes()) {
      if (header.rfind(home.header, 0) != 0) continue;
      bool allowed = std::any_of(home.files.begin(), home.files.end(),
                                 [&](const std::string& f) { return lives_in(s.path, f); });
      if (!allowed) out.push_back(location(s, i) + ": <" + header + "> has another home");
    }
    if (s.path == "nn/models/register_family.h") continue;  // a template that only families include
    bool is_header = s.path.size() > 2 && s.path.substr(s.path.size() - 2) == ".h";
    if (is_header && s.folder() != "tests" && header == "nlohmann/json.hpp") {
      out.push_back(location(s, i) + ": <" + header + "> is too heavy for a header: json_fwd.hpp");
    }
  }
  return out;
}

// Headers of kernels, of helpers of ops and of the CPU's threads, which are not part of the
// library's interface.
bool is_private(const std::string& path) {
  static const std::vector<std::string> all = {"tensor/kernels/", "tensor/cpu/", "tensor/cuda/",
                                               "autograd/primitives/", "tensor/base/parallel.h"};
  return std::any_of(all.begin(), all.end(),
                     [&](const std::string& home) { return lives_in(path, home); });
}

// Where a header of kernels may be included: next to kernels, in ops, tests, and by the bench,
// which measures kernels by themselves.
Complaints stray_kernels(const Source& s) {
  Complaints out;
  const bool inside = s.folder() == "tensor" || s.folder() == "autograd" || s.folder() == "tests" ||
                      lives_in(s.path, "apps/bench/");
  const bool is_public = s.path.size() > 2 && s.path.substr(s.path.size() - 2) == ".h" &&
                         s.folder() != "tests" && !is_private(s.path);
  for (size_t i = 0; i < s.lines.size(); ++i) {
    bool quoted = false;
    const std::string header = included(s.lines[i], &quoted);
    const bool kernels = quoted && is_private(header) && header != "tensor/base/parallel.h";
    if (kernels && !inside) {
      out.push_back(location(s, i) + ": \"" + header + "\" is for kernels; use ops");
    }
    if (is_public && ((quoted && is_private(header)) || (!quoted && header == "omp.h"))) {
      out.push_back(location(s, i) + ": a public header may not include \"" + header + "\"");
    }
  }
  return out;
}

TEST_CASE("headers of kernels are included by ops, tests and the bench, never by public headers") {
  hold(stray_kernels);
}

TEST_CASE("a folder includes only those below it") { hold(broken_order); }

TEST_CASE("the headers of a library stay in their one home") { hold(stray_libraries); }

TEST_CASE("the rules of includes detect a violation") {
  CHECK(broken_order(source_of("tensor/a.cpp", "#include \"nn/layers/module.h\"")).size() == 1);
  CHECK(broken_order(source_of("distill/a.cpp", "#  include \"sea/base/mask.h\"")).size() == 1);
  CHECK(broken_order(source_of("data/a.cpp", "#include \"nn/layers/module.h\"")).size() == 1);
  CHECK(broken_order(source_of("nn/a.cpp", "#include \"sea/base/mask.h\"")).size() == 1);
  CHECK(broken_order(source_of("autograd/a.cpp", "#include \"data/io/json.h\"")).size() == 1);
  CHECK(broken_order(source_of("sea/a.cpp", "#include \"data/dump/dump.h\"")).empty());
  CHECK(broken_order(source_of("apps/a.cpp", "#include \"tests/main.h\"")).size() == 1);
  CHECK(broken_order(source_of("nn/a.cpp", "#include \"module.h\"")).size() == 1);
  CHECK(broken_order(source_of("nn/a.cpp", "#include \"nn/layers/module.h\"")).empty());
  const std::string kernels = "#include \"tensor/kernels/dense.h\"";
  CHECK(stray_kernels(source_of("sea/a.cpp", kernels)).size() == 1);
  CHECK(stray_kernels(source_of("apps/commands/a.cpp", kernels)).size() == 1);
  CHECK(stray_kernels(source_of("autograd/a.h", kernels)).size() == 1);
  CHECK(stray_kernels(source_of("nn/a.h", kernels)).size() == 2);
  CHECK(stray_kernels(source_of("tensor/mask/csr.h", "#include <omp.h>")).size() == 1);
  CHECK(stray_kernels(source_of("tensor/a.h", "#include \"tensor/base/parallel.h\"")).size() == 1);
  CHECK(stray_kernels(source_of("autograd/a.cpp", kernels)).empty());
  CHECK(stray_kernels(source_of("tensor/cpu/core/a.h", kernels)).empty());
  CHECK(stray_kernels(source_of("apps/bench/a.cpp", kernels)).empty());
  CHECK(stray_libraries(source_of("nn/a.cpp", "#include <dnnl.hpp>")).size() == 1);
  CHECK(stray_libraries(source_of("distill/a.cpp", "#include <hdf5.h>")).size() == 1);
  CHECK(stray_libraries(source_of("nn/a.h", "#include <nlohmann/json.hpp>")).size() == 1);
  CHECK(stray_libraries(source_of("data/hdf5/hdf5_internal.h", "#include <hdf5.h>")).empty());
}

}  // namespace
}  // namespace brine::tests
