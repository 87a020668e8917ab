// The device that the program chooses, and what it says about the code it has for it.
#include "tensor/device/gpu_software.h"
#include "tests/apps/world.h"
#include "tests/cuda/compare.h"
#include "tests/messages.h"
#include "tests/paths.h"

using namespace brine;
using namespace brine::test;

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

TEST_CASE("cuda: --device auto is the GPU, --device cpu the CPU, and a missing GPU is an error") {
  if (!has_device()) return;
  static const Scratch folder;
  auto run = [&](const std::string& device) {
    const std::string out = (folder / "out").string();
    const std::string command = tests::program() + " verify " + source_dir() +
                                "/tests/golden/causal_light_t34.h5 --verbose --device " + device +
                                " >" + out + " 2>&1";
    const int code = std::system(command.c_str());
    return std::pair{WIFEXITED(code) ? WEXITSTATUS(code) : -1, tests::read_all(out)};
  };
  for (const char* device : {"auto", "cuda"}) {
    const auto [status, said] = run(device);
    CHECK_MESSAGE(status == 0, said);
    CHECK_MESSAGE(contains(said, "cuDNN was called"), said);  // only after a run on a GPU
  }
  const auto [status, said] = run("cpu");
  CHECK_MESSAGE(status == 0, said);
  CHECK_MESSAGE(!contains(said, "cuDNN was called"), said);
  const auto [none, why] = run("cuda:63");
  CHECK(none == 1);
  CHECK_MESSAGE(contains(why, "cuda:63"), why);
}
