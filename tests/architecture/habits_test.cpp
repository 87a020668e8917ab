// What the code may not do: read the environment, get memory past the allocator, launch or call
// kernels outside their folders, ask for flags below the command line, leave notes to itself.
#include <regex>

#include "tests/architecture/sources.h"

namespace brine::tests {
namespace {

struct Ban {
  std::regex pattern;
  std::vector<std::string> allowed;  // folders, by the beginning of their paths
  std::string why;
};

const std::vector<Ban>& bans() {
  static const std::vector<Ban> all = {
      {std::regex(R"(\b(secure_)?getenv\b)"),
       {"apps", "tests"},
       "the environment is read in apps/"},
      {std::regex(R"(\b(malloc|calloc|realloc|aligned_alloc|posix_memalign|cudaMalloc\w*)\s*\()"),
       {"tensor", "tests/cuda/emulator"},
       "memory comes from tensor/device/allocator.h"},
      {std::regex(R"(\bnew\s+[\w:<>]+\s*\[)"),
       {"tensor"},
       "memory comes from tensor/device/allocator.h"},
      {std::regex(R"(<<<)"), {"tensor"}, "kernels are launched in tensor/"},
      {std::regex(R"(\bBRINE_(CALL|KERNEL|CPU)\b)"),
       {"tensor", "autograd", "tests", "apps/bench"},  // the bench measures kernels by themselves
       "layers use the ops of autograd/ and the functions of tensor/, not kernels"},
      {std::regex(R"(-ffast-math|\bfast-math\b)"), {}, "results must not depend on the compiler"},
      // The schema itself notes what was set, and names what is missing.
      {std::regex(R"(\bCLI::|(\.|->)given\b|(\.|->)keys\.(find|fields)\()"),
       {"apps/cli", "data/config", "tests"},
       "whether a flag was given is asked in apps/cli/; elsewhere a setting is a std::optional"},
  };
  return all;
}

Complaints banned(const Source& s) {
  Complaints out;
  for (size_t i = 0; i < s.lines.size(); ++i) {
    std::string code = code_of(s.lines[i]);
    for (const Ban& ban : bans()) {
      if (std::any_of(ban.allowed.begin(), ban.allowed.end(), [&](const std::string& folder) {
            return s.path.rfind(folder + "/", 0) == 0;
          }))
        continue;
      if (std::regex_search(code, ban.pattern)) out.push_back(location(s, i) + ": " + ban.why);
    }
  }
  return out;
}

// Notes that mark unfinished work.
Complaints notes(const Source& s) {
  static const std::regex unfinished(
      "\\b(TO"
      "DO|FIX"
      "ME|XX"
      "X|HA"
      "CK)\\b");
  Complaints out;
  for (size_t i = 0; i < s.lines.size(); ++i) {
    if (std::regex_search(s.lines[i], unfinished)) out.push_back(location(s, i) + ": unfinished");
  }
  return out;
}

TEST_CASE("no source reads the environment, allocates or launches outside its folder") {
  hold(banned);
}

TEST_CASE("no source contains a note that it is unfinished") { hold(notes); }

TEST_CASE("the rules of habits detect a violation") {
  CHECK(banned(source_of("nn/a.cpp", "char* s = std::getenv(\"HOME\");")).size() == 1);
  CHECK(banned(source_of("data/a.cpp", "void* p = malloc(3);")).size() == 1);
  CHECK(banned(source_of("sea/a.cpp", "float* p = new float[3];")).size() == 1);
  CHECK(banned(source_of("autograd/a.cu", "kernel<<<1, 2>>>();")).size() == 1);
  CHECK(banned(source_of("nn/a.cpp", "BRINE_CALL(x, relu, y, x);")).size() == 1);
  CHECK(banned(source_of("apps/commands/a.cpp", "BRINE_CALL(x, relu, y, x);")).size() == 1);
  CHECK(banned(source_of("apps/bench/a.cpp", "BRINE_CALL(x, relu, y, x);")).empty());
  CHECK(banned(source_of("autograd/dense/a.cpp", "BRINE_CALL(x, relu, y, x);")).empty());
  CHECK(banned(source_of("nn/a.cpp", "f();  // getenv(x) is not called")).empty());
  CHECK(banned(source_of("nn/a.cpp", "check(ok, \"malloc(3)\");")).empty());
  CHECK(banned(source_of("apps/a.cpp", "std::getenv(\"TERM\");")).empty());
  CHECK(banned(source_of("distill/a.cpp", "if (schema.find(key)->given) f();")).size() == 1);
  CHECK(banned(source_of("apps/commands/a.cpp", "if (context.keys.find(\"k\")) f();")).size() == 1);
  CHECK(banned(source_of("apps/a.cpp", "CLI::App app;")).size() == 1);
  CHECK(banned(source_of("apps/cli/a.cpp", "CLI::App app;")).empty());
  CHECK(notes(source_of("nn/a.cpp", std::string("// TO") + "DO: more")).size() == 1);
}

}  // namespace
}  // namespace brine::tests
