// What a GPU's programs depend on, as found on this machine. A build without CUDA finds nothing.
#pragma once

#include <string>
#include <vector>

namespace brine::cuda {

// "580.82.07, CUDA 13.0", or "CUDA 13.0" where the kernel module does not tell; empty without a
// driver.
std::string driver_version();
// That of the runtime in this program: "13.0"; empty in a build without CUDA.
std::string runtime_version();
// "13.1.0", or why not: "none: libcublasLt.so.13: cannot open ...". Both search for the library.
std::string cublaslt_version();
std::string nvrtc_version();  // cuDNN compiles some of its kernels with it
// What cuDNN refused to plan or to run so far, a line with its reason for each size; Brine's own
// kernels computed it.
std::vector<std::string> cudnn_refusals();
// Whether this build's code was made for the device: empty, or the clause that says what is missing
// for its speed. `index` must be below device_count().
std::string code_note(int index);

}  // namespace brine::cuda
