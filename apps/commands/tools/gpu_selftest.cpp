// brine gpu-selftest: whether a GPU computes what the CPU does, which --device auto asks for.
#include <chrono>
#include <iostream>

#include "apps/cli/program.h"
#include "apps/selftest/selftest.h"
#include "apps/selftest/stamp.h"
#include "apps/terminal/terminal.h"
#include "autograd/compute_type.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/gpu_software.h"

namespace brine {
namespace {

struct GpuSelftest {
  std::string only;

  void describe(data::Schema& s) {
    s.field("only", only, "Compare only what has this in its name; nothing is recorded");
  }

  int run(const RunContext& context) {
    const Device device = default_device().is_cuda() ? default_device() : parse_device("cuda");
    const ComputeType plain(Dtype::f32);
    cuda::set_tf32(false);
    cuda::set_cudnn(true);  // a record is for commands without these flags
    const selftest::Stamp stamp = selftest::Stamp::present(device.index);
    log_info(device, ": ", stamp.device, ", driver ", stamp.driver);
    if (const std::string note = cuda::code_note(device.index); !note.empty()) log_warning(note);
    const auto started = std::chrono::steady_clock::now();
    const selftest::Count count = selftest::run(device, only, context.verbose, std::cout);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
    check(count.compared > 0, "gpu-selftest: nothing has \"", only, "\" in its name");
    std::cout << count.compared - count.failed << " of " << count.compared << " ok, in "
              << int64_t(seconds.count() + 0.5) << " s\n";
    if (count.failed > 0) {
      stamp.remove();
      return 1;
    }
    if (!only.empty()) return 0;
    stamp.write();
    log_info("recorded in ", stamp.path().string(), ": --device auto uses this GPU");
    return 0;
  }
};
const RegisterSubcommand<GpuSelftest> registration(
    "gpu-selftest", "Compare a GPU with the CPU; passing lets --device auto use it",
    {"brine gpu-selftest --verbose", "docs/cuda.md"});

}  // namespace
}  // namespace brine
