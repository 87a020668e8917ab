// cuBLASLt, loaded at the first product: a program linked with it would not start on a machine
// without the CUDA toolkit. Each function here forwards to the library function of that name; their
// arguments are described in cublasLt.h.
#include <cublasLt.h>

#include <string>

#include "tensor/base/shared_library.h"
#include "tensor/device/gpu_software.h"

namespace {

// Of the major version whose headers this build has: 12 or 13.
const std::string kName = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);

const brine::SharedLibrary& any_library() {
  static const brine::SharedLibrary it("cuda", kName);
  return it;
}

const brine::SharedLibrary& library() {
  const brine::SharedLibrary& it = any_library();
  brine::check(it.found(), "cuda: ", kName, " was not found (", it.why(),
               "); install cuBLAS of CUDA ", CUBLAS_VER_MAJOR,
               " or put it into lib/ next to brine");
  return it;
}

}  // namespace

namespace brine::cuda {

std::string cublaslt_version() {
  const SharedLibrary& it = any_library();
  if (!it.found()) return join("none: ", it.why());
  const size_t version = it.function<decltype(cublasLtGetVersion)>("cublasLtGetVersion")();
  return join(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace brine::cuda

#define BRINE_FORWARD(name, ...)                                         \
  static auto* const theirs = library().function<decltype(name)>(#name); \
  return theirs(__VA_ARGS__)

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  BRINE_FORWARD(cublasLtGetStatusString, status);
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { BRINE_FORWARD(cublasLtCreate, handle); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  BRINE_FORWARD(cublasLtMatrixLayoutCreate, layout, type, rows, columns, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  BRINE_FORWARD(cublasLtMatrixLayoutDestroy, layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  BRINE_FORWARD(cublasLtMatrixLayoutSetAttribute, layout, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  BRINE_FORWARD(cublasLtMatmulDescCreate, operation, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  BRINE_FORWARD(cublasLtMatmulDescDestroy, operation);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  BRINE_FORWARD(cublasLtMatmulDescSetAttribute, operation, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  BRINE_FORWARD(cublasLtMatmulPreferenceCreate, preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  BRINE_FORWARD(cublasLtMatmulPreferenceDestroy, preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  BRINE_FORWARD(cublasLtMatmulPreferenceSetAttribute, preference, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  BRINE_FORWARD(cublasLtMatmulAlgoGetHeuristic, handle, operation, a, b, c, d, preference, wanted,
                results, found);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  BRINE_FORWARD(cublasLtMatmul, handle, operation, alpha, a, a_layout, b, b_layout, beta, c,
                c_layout, d, d_layout, algorithm, workspace, workspace_bytes, stream);
}

}  // extern "C"
