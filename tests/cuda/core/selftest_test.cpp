// Whether --device auto uses a GPU: only with the record of a self-test of this build, this driver
// and this device; and the self-test itself.
#include "apps/selftest/device_choice.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "apps/selftest/selftest.h"
#include "apps/selftest/stamp.h"
#include "tensor/device/gpu_software.h"
#include "tests/apps/world.h"
#include "tests/cuda/compare.h"
#include "tests/messages.h"
#include "tests/paths.h"

// The kernels that were launched since the last call; only the emulator has it.
extern "C" __attribute__((weak)) const char* brine_emulated_names();

using namespace brine;
using namespace brine::test;
using selftest::choose_device;
using selftest::Stamp;

namespace {

// The user's cache is another folder while an object lives.
class OwnCache {
 public:
  OwnCache() {
    const char* own = std::getenv("XDG_CACHE_HOME");
    if (own) before_ = own;
    setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
  }
  ~OwnCache() {
    before_ ? setenv("XDG_CACHE_HOME", before_->c_str(), 1) : unsetenv("XDG_CACHE_HOME");
  }
  OwnCache(const OwnCache&) = delete;

  std::string setting() const {
    return "export XDG_CACHE_HOME=" + (folder_ / "cache").string() + ";";
  }

 private:
  Scratch folder_;
  std::optional<std::string> before_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// The kernels that tensor/kernels declares.
std::set<std::string> declared_kernels() {
  const std::string mark = "BRINE_KERNEL(";
  std::set<std::string> out;
  for (const auto& file : std::filesystem::directory_iterator(source_dir() + "/tensor/kernels")) {
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(mark))
        out.insert(line.substr(mark.size(), line.find(',') - mark.size()));
    }
  }
  return out;
}

}  // namespace

TEST_CASE("cuda: brine gpu-selftest passes and launches every kernel") {
  if (!has_device() || !brine_emulated_names) return;
  brine_emulated_names();
  std::ostringstream said;
  const selftest::Count count = selftest::run(kCuda, "", false, said);
  CHECK_MESSAGE(count.failed == 0, said.str());
  CHECK(count.compared > 200);
  std::set<std::string> missing = declared_kernels();
  CHECK(missing.size() > 100);
  std::istringstream launched(brine_emulated_names());
  for (std::string name; launched >> name;) missing.erase(name);
  // Names that no launch has: what they call has others.
  const std::set<std::string> others = {"linear", "linear_activation", "table_estimate"};
  for (const std::string& name : missing) {
    CHECK_MESSAGE(others.count(name), name << " was never launched");
  }
}

TEST_CASE("cuda: --device auto is the CPU until the self-test of this build and driver passed") {
  if (!has_device()) return;
  const OwnCache cache;
  const Stamp stamp = Stamp::present(0);
  CHECK(stamp.build.size() > 20);  // version, commit and an id
  CHECK_FALSE(stamp.driver.empty());
  auto refused = [&](const std::string& why) {
    const selftest::DeviceChoice choice = choose_device("auto");
    CHECK(choice.device == kCpu);
    for (const std::string& part :
         {why, std::string("brine gpu-selftest"), std::string("--device cuda")})
      CHECK_MESSAGE(contains(choice.note, part), choice.note);
    CHECK(choice.note.find('\n') == std::string::npos);
    CHECK(choose_device("cuda").device == kCuda);
    CHECK(choose_device("cuda:0").note.empty());
  };
  refused("it has not passed");
  stamp.write();
  CHECK(choose_device("auto").device == kCuda);
  CHECK(choose_device("auto").note.empty());
  CHECK(choose_device("cpu").device == kCpu);

  const std::string good = stamp.text();
  auto stored = [&](const std::string& text) {
    std::ofstream(stamp.path(), std::ios::binary) << text;
  };
  stored(replaced(good, "build: ", "build: older "));
  refused("it passed with another build (older ");
  stored(replaced(good, "driver: ", "driver: 470.1, "));
  refused("it passed with another driver (470.1, ");
  stored(replaced(good, "device: ", "device: other "));
  refused("it passed with another device (other ");
  for (const std::string& text :
       {std::string(), good.substr(0, good.size() / 2), "x" + good, good + "more\n",
        std::string(100000, 'a'), std::string(3000, '\n'), std::string(7, '\0')}) {
    CAPTURE(text.substr(0, 100));
    stored(text);
    const selftest::DeviceChoice choice = choose_device("auto");
    CHECK(choice.device == kCpu);
    CHECK(choice.note.find('\n') == std::string::npos);
    CHECK_MESSAGE(contains(choice.note, stamp.path().string()), choice.note);
  }
  stored(good);
  CHECK(choose_device("auto").device == kCuda);
  stamp.remove();
  refused("it has not passed");
}

TEST_CASE("cuda: without a place for its record a GPU is not used by itself") {
  if (!has_device()) return;
  const OwnCache cache;
  setenv("XDG_CACHE_HOME", "not/absolute", 1);
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  unsetenv("HOME");
  const selftest::DeviceChoice choice = choose_device("auto");
  setenv("HOME", home.c_str(), 1);
  CHECK(choice.device == kCpu);
  CHECK_MESSAGE(contains(choice.note, "neither XDG_CACHE_HOME nor HOME"), choice.note);
}

TEST_CASE("cuda: brine gpu-selftest compares cases by name, and a fault takes the record away") {
  if (!has_device() || !cuda::emulated()) return;
  const OwnCache cache;
  static const Scratch folder;
  const Stamp stamp = Stamp::present(0);
  auto run = [&](const std::string& arguments, const std::string& before = "") {
    const std::string out = (folder / "out").string();
    const std::string command = cache.setting() + before + tests::program() + " gpu-selftest " +
                                arguments + " >" + out + " 2>&1";
    const int code = std::system(command.c_str());
    return std::pair{WIFEXITED(code) ? WEXITSTATUS(code) : -1, tests::read_all(out)};
  };
  for (const char* name : {"rotary", "golden file causal_paper_t12.h5, f"}) {
    CAPTURE(name);
    const auto [status, said] = run(join("--verbose --only '", name, "'"));
    CHECK_MESSAGE(status == 0, said);
    CHECK_MESSAGE(contains(said, name), said);
    CHECK_MESSAGE(contains(said, " ok, in "), said);
    CHECK_MESSAGE(!std::filesystem::exists(stamp.path()), "a part of the test was recorded");
  }
  stamp.write();
  const auto [status, said] = run("--only 'flash_attention, heads of 64, causal, f32'",
                                  "export BRINE_EMULATED_STATIC_SHARED=220000;");
  CHECK_MESSAGE(status == 1, said);
  CHECK_MESSAGE(
      contains(said, "flash_attention, heads of 64, causal, f32: flash_attention: a block needs "),
      said);
  CHECK_MESSAGE(contains(said, "0 of 1 ok"), said);
  CHECK_FALSE(std::filesystem::exists(stamp.path()));
  // A record is for commands with cuDNN.
  const auto [off, with] =
      run("--device cuda --verbose --cudnn off --only 'flash_attention in bf16'");
  CHECK_MESSAGE(off == 0, with);
  CHECK_MESSAGE(contains(with, "cuDNN was called "), with);
  CHECK_MESSAGE(!contains(with, "cuDNN was called 0 times"), with);
  CHECK_MESSAGE(contains(with, "; without cuDNN, at most "), with);
  const auto [none, nothing] = run("--only nonsense");
  CHECK(none == 1);
  CHECK_MESSAGE(contains(nothing, "nothing has \"nonsense\" in its name"), nothing);
}

TEST_CASE("cuda: code that is older than the device is reported with what it lacks") {
  if (!has_device() || !cuda::emulated()) return;
  CHECK(cuda::code_note(0).empty());
  for (const auto& [version, slow] : {std::pair{"75", true}, {"80", false}}) {
    setenv("BRINE_EMULATED_PTX", version, 1);
    const std::string note = cuda::code_note(0);
    unsetenv("BRINE_EMULATED_PTX");
    CAPTURE(note);
    CHECK(contains(note, "newest code for compute capability 9.0 is that of " +
                             join(version[0], ".", version[1])));
    CHECK(contains(note, "without tensor cores") == slow);
    CHECK(contains(note, "CMAKE_CUDA_ARCHITECTURES=native"));
  }
}

TEST_CASE("cuda: a program on a GPU without a record says in one line how to allow it") {
  if (!has_device()) return;
  static const Scratch folder;
  const OwnCache cache;
  folder.write("text.txt", tests::sample_text(20));
  const std::string command = "cd " + folder.path().string() + "; " + cache.setting() +
                              tests::program() +
                              " tokenizer --train text.txt --vocab-size 300 --out tok 2>said";
  CHECK(std::system(command.c_str()) == 0);
  const std::string said = tests::read_all((folder / "said").string());
  const size_t at = said.find("computing on the CPU: of cuda:0");
  CHECK_MESSAGE(at != std::string::npos, said);
  CHECK(said.find("computing on the CPU", at + 1) == std::string::npos);
}
