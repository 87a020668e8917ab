// Products by cuBLASLt. Its description of a product (descriptors, the algorithm that its heuristic
// picks) is cached by shape, for the most recently used plans.
//
// cuBLASLt uses column-major order: y in rows is y^T in columns, so the request is y^T = op(b)^T
// op(a)^T.
#include "tensor/cuda/core/blas.h"

#include <cublasLt.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "tensor/cuda/core/common.cuh"
#include "tensor/cuda/core/plans.h"

namespace brine::cuda {
namespace {

// A model has about 60 shapes of products for every length of a batch, which has one of 32 lengths
// up to 512 tokens (distill/batches/task_source.h).
constexpr size_t kPlans = 4096;
constexpr uint64_t kWorkspace = uint64_t(32) << 20;  // the most memory that an algorithm may use

std::atomic<bool> use_tf32{false};

void check_blas(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cublasLt: ", what, ": ", cublasLtGetStatusString(status));
}

template <class T, auto destroy>
struct Destroy {
  void operator()(T* it) const { destroy(it); }
};
template <class Pointer, auto destroy>
using Held = std::unique_ptr<std::remove_pointer_t<Pointer>,
                             Destroy<std::remove_pointer_t<Pointer>, destroy>>;
using Operation = Held<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Held<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Held<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// Everything that an algorithm depends on.
struct Key {
  Gemm gemm;
  unsigned align_a = 0, align_b = 0, align_y = 0;
  bool bias = false, tf32 = false;
  int device = 0;

  auto operator<=>(const Key&) const = default;
};

struct Plan {
  Operation operation;
  Layout a, b, y;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
  bool possible = false;
};

// Never destroyed: the driver may be unloaded before it.
auto& library() {
  static auto* it = new Library<cublasLtHandle_t, Key, Plan>(kPlans);
  return *it;
}

cublasLtHandle_t handle(int device) {
  cublasLtHandle_t& cached = library().handle(device);
  if (!cached) check_blas(cublasLtCreate(&cached), "cublasLtCreate");
  return cached;
}

cudaDataType_t type_of(Dtype t) {
  if (t == Dtype::f64) return CUDA_R_64F;
  if (t == Dtype::f16) return CUDA_R_16F;
  return t == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// The largest power of two, up to 256, that divides the address of every matrix of the batch.
unsigned alignment(const void* data, int64_t step_bytes) {
  const uint64_t bits = uint64_t(reinterpret_cast<uintptr_t>(data)) | uint64_t(step_bytes) | 256;
  return unsigned(bits & ~(bits - 1));
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t what, T value) {
  check_blas(cublasLtMatmulDescSetAttribute(operation, what, &value, sizeof(value)), "operation");
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what,
         T value) {
  check_blas(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value)),
             "preference");
}
template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what, T value) {
  check_blas(cublasLtMatrixLayoutSetAttribute(layout, what, &value, sizeof(value)), "layout");
}

// A matrix that is stored as `rows` rows of `columns`.
Layout layout(Dtype type, int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t step) {
  cublasLtMatrixLayout_t made = nullptr;
  check_blas(
      cublasLtMatrixLayoutCreate(&made, type_of(type), uint64_t(columns), uint64_t(rows), ld),
      "cublasLtMatrixLayoutCreate");
  Layout held(made);
  if (batch > 1) {
    set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(batch));
    set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
  }
  return held;
}

Operation operation(const Key& key, const void* bias) {
  const bool f64 = key.gemm.out == Dtype::f64;
  const bool fast = key.tf32 && key.gemm.in == Dtype::f32;
  cublasLtMatmulDesc_t made = nullptr;
  check_blas(cublasLtMatmulDescCreate(&made,
                                      f64    ? CUBLAS_COMPUTE_64F
                                      : fast ? CUBLAS_COMPUTE_32F_FAST_TF32
                                             : CUBLAS_COMPUTE_32F,
                                      f64 ? CUDA_R_64F : CUDA_R_32F),
             "cublasLtMatmulDescCreate");
  Operation held(made);
  // Its first factor is b.
  set(made, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(key.gemm.tb ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(made, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(key.gemm.ta ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (bias) {
    set(made, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_BIAS));
    set(made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  return held;
}

Preference preference(const Key& key) {
  cublasLtMatmulPreference_t made = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Preference held(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  // The sums of a split K are added in a separate step, in order and in the type of the sums.
  set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(key.align_b));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(key.align_a));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(key.align_y));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(key.align_y));
  return held;
}

Plan make_plan(const Key& key, const void* bias) {
  const Gemm& g = key.gemm;
  Plan plan;
  plan.operation = operation(key, bias);
  plan.a = layout(g.in, g.ta ? g.K : g.M, g.ta ? g.M : g.K, g.lda, g.batch, g.step_a);
  plan.b = layout(g.in, g.tb ? g.N : g.K, g.tb ? g.K : g.N, g.ldb, g.batch, g.step_b);
  plan.y = layout(g.out, g.M, g.N, g.ldy, g.batch, g.step_y);
  const Preference wanted = preference(key);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle(key.device), plan.operation.get(), plan.b.get(), plan.a.get(), plan.y.get(),
      plan.y.get(), wanted.get(), 1, &found, &count);
  // Any other status is a bug here, and must be reported.
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.possible = status == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == status;
  plan.algorithm = found.algo;
  plan.workspace = plan.possible ? found.workspaceSize : 0;
  return plan;
}

}  // namespace

void set_tf32(bool on) { use_tf32 = on; }
bool tf32() { return use_tf32; }

bool gemm(const Gemm& g, const GemmData& data, double alpha, double beta, Device device) {
  constexpr int64_t kMax = int64_t(1) << 31;
  check(g.M < kMax && g.N < kMax && g.K < kMax && g.batch < kMax, "matmul: ", g.batch,
        " products [", g.M, ", ", g.K, "] x [", g.K, ", ", g.N, "] are too large for one call");
  const int64_t in = int64_t(item_size(g.in)), out = int64_t(item_size(g.out));
  const Key key{.gemm = g,
                .align_a = alignment(data.a, g.step_a * in),
                .align_b = alignment(data.b, g.step_b * in),
                .align_y = alignment(data.y, g.step_y * out),
                .bias = data.bias != nullptr,
                .tf32 = tf32() && !g.exact && g.in == Dtype::f32,
                .device = device.index};
  // The epilogue reads the bias in vectors, and does not support f64.
  if (data.bias && (g.out == Dtype::f64 || alignment(data.bias, 0) < 16)) return false;
  auto& lib = library();
  std::lock_guard lock(lib.mutex);
  Plan& plan = lib.plans.get(key, [&] { return make_plan(key, data.bias); });
  if (!plan.possible) return false;
  if (data.bias) set(plan.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, data.bias);
  const Workspace workspace(plan.workspace, device);
  const ProfilerRange range("matmul");
  const float alpha32 = float(alpha), beta32 = float(beta);
  const bool f64 = g.out == Dtype::f64;
  const void *by = f64 ? static_cast<const void*>(&alpha) : &alpha32,
             *old = f64 ? static_cast<const void*>(&beta) : &beta32;
  check_blas(cublasLtMatmul(handle(device.index), plan.operation.get(), by, data.b, plan.b.get(),
                            data.a, plan.a.get(), old, data.y, plan.y.get(), data.y, plan.y.get(),
                            &plan.algorithm, workspace.data(), plan.workspace, stream()),
             "cublasLtMatmul");
  return true;
}

}  // namespace brine::cuda
