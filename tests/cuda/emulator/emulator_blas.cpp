// cuBLASLt on the CPU: D = alpha op(A) op(B) + beta C (+ bias along the rows of D), by columns.
//
// It is as strict as the real one: sizes and leading dimensions must agree, buffers must be aligned
// as promised to the algorithm, and an algorithm with a workspace overwrites it.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <bit>
#include <type_traits>

#include "tensor/base/dtype.h"
#include "tensor/device/gpu_software.h"

struct EmulatedBlas {};
struct EmulatedOperation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transpose[2] = {CUBLAS_OP_N, CUBLAS_OP_N};  // of A and B
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct EmulatedLayout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t ld;
  int32_t batch = 1;
  int64_t step = 0;
};
struct EmulatedPreference {
  uint64_t workspace = 0;
  uint32_t schemes = 7;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

namespace {

constexpr int64_t kLongSum = 300;  // from here on the algorithm asks for a workspace
constexpr size_t kWorkspace = 4096;

template <class T>
cublasStatus_t take(T& to, const void* from, size_t bytes) {
  if (!from || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t set(T** to, T* made) {
  *to = made;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t deleted(T* it) {
  delete it;
  return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void* data, uint64_t to) { return reinterpret_cast<uintptr_t>(data) % to == 0; }

uint64_t item_size(cudaDataType type) {
  return type == CUDA_R_64F ? 8 : (type == CUDA_R_32F ? 4 : 2);
}

// The sizes of D and of the sum; false when they do not agree.
struct Sizes {
  uint64_t m, n, k;
  bool agree;
};

Sizes sizes_of(const EmulatedOperation& op, const EmulatedLayout& a, const EmulatedLayout& b,
               const EmulatedLayout& c, const EmulatedLayout& d) {
  const bool ta = op.transpose[0] == CUBLAS_OP_T, tb = op.transpose[1] == CUBLAS_OP_T;
  const Sizes s{ta ? a.columns : a.rows, tb ? b.rows : b.columns, ta ? a.rows : a.columns, true};
  bool agree = (tb ? b.columns : b.rows) == s.k && d.rows == s.m && d.columns == s.n;
  agree = agree && c.rows == d.rows && c.columns == d.columns && c.type == d.type;
  for (const EmulatedLayout* x : {&a, &b, &c, &d}) {
    agree = agree && x->rows > 0 && x->columns > 0 && x->ld >= int64_t(x->rows);
    agree = agree && x->batch == d.batch && x->batch > 0 && x->step >= 0;
  }
  // The matrices of the result must not overlap.
  if (d.batch > 1 && d.step == 0) agree = false;
  return {s.m, s.n, s.k, agree};
}

bool supported(const EmulatedOperation& op, const EmulatedLayout& a, const EmulatedLayout& b,
               const EmulatedLayout& d) {
  if (a.type != b.type) return false;
  if (op.compute == CUBLAS_COMPUTE_64F) {
    return op.scale == CUDA_R_64F && a.type == CUDA_R_64F && d.type == CUDA_R_64F &&
           op.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  }
  const bool fast = op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  return op.scale == CUDA_R_32F && d.type == CUDA_R_32F && (a.type == CUDA_R_32F || !fast) &&
         a.type != CUDA_R_64F;
}

// What an algorithm that reads vectors may count on: the buffer, the leading dimension and the
// batch offset, up to 16 bytes.
uint64_t vector_of(const EmulatedLayout& x, uint32_t promised) {
  const uint64_t bits =
      promised | uint64_t(x.ld) * item_size(x.type) | uint64_t(x.step) * item_size(x.type) | 16;
  return bits & ~(bits - 1);
}

// A number as the tensor cores read it: TF32 has 10 bits of fraction.
float rounded(float x) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000u) & ~0x1fffu);
}

template <class T, class Y>
void multiply(const EmulatedOperation& op, const Sizes& s, Y alpha, const T* A,
              const EmulatedLayout& a, const T* B, const EmulatedLayout& b, Y beta, const Y* C,
              const EmulatedLayout& c, Y* D, const EmulatedLayout& d) {
  const bool ta = op.transpose[0] == CUBLAS_OP_T, tb = op.transpose[1] == CUBLAS_OP_T;
  const bool fast = op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  auto read = [&](T x) {
    if constexpr (std::is_same_v<T, float>) return fast ? rounded(x) : x;
    return Y(x);
  };
  const Y* bias = op.epilogue == CUBLASLT_EPILOGUE_BIAS ? static_cast<const Y*>(op.bias) : nullptr;
  for (int64_t matrix = 0; matrix < d.batch; ++matrix) {
    for (int64_t j = 0; j < int64_t(s.n); ++j) {
      for (int64_t i = 0; i < int64_t(s.m); ++i) {
        Y sum = 0;
        for (int64_t k = 0; k < int64_t(s.k); ++k) {
          const T left = A[matrix * a.step + (ta ? i * a.ld + k : k * a.ld + i)];
          const T right = B[matrix * b.step + (tb ? k * b.ld + j : j * b.ld + k)];
          sum += read(left) * read(right);
        }
        Y value = alpha * sum;
        if (beta != 0) value += beta * C[matrix * c.step + j * c.ld + i];
        D[matrix * d.step + j * d.ld + i] = bias ? value + bias[i] : value;
      }
    }
  }
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "the operation was successful";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
    default:
      return "an unsupported value or parameter was passed";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) { return set(made, new EmulatedBlas); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return set(made, new EmulatedOperation{compute, scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t it) { return deleted(it); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t it,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(it->transpose[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(it->transpose[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(it->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(it->bias, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  return set(made, new EmulatedLayout{type, rows, columns, ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t it) { return deleted(it); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t it,
                                                cublasLtMatrixLayoutAttribute_t what,
                                                const void* value, size_t bytes) {
  return what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? take(it->batch, value, bytes)
                                                    : take(it->step, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return set(made, new EmulatedPreference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t it) {
  return deleted(it);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t it,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes) {
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(it->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(it->schemes, value, bytes);
    default:
      return take(it->alignment[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  *count = 0;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Sizes s = sizes_of(*op, *a, *b, *c, *d);
  if (!s.agree || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(*op, *a, *b, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  // The epilogue reads the bias in vectors.
  const bool biased = op->epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (biased && (!op->bias || !aligned(op->bias, 16))) return CUBLAS_STATUS_NOT_SUPPORTED;
  *found = {};
  const EmulatedLayout* all[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    const uint64_t vector = vector_of(*all[i], preference->alignment[i]);
    if (vector < item_size(all[i]->type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    found->algo.data[i] = vector;
  }
  const bool splits = int64_t(s.k) >= kLongSum && preference->workspace >= kWorkspace &&
                      preference->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  found->workspaceSize = splits ? kWorkspace : 0;
  found->algo.data[4] = found->workspaceSize;
  found->state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void* alpha,
                              const void* A, cublasLtMatrixLayout_t a, const void* B,
                              cublasLtMatrixLayout_t b, const void* beta, const void* C,
                              cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t bytes,
                              cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const int device = emulator::device_of_stream(stream);
  for (const void* buffer : {A, B, C, static_cast<const void*>(D)}) {
    if (emulator::device_of(buffer) != device) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Sizes s = sizes_of(*op, *a, *b, *c, *d);
  if (!s.agree || !algo) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(*op, *a, *b, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const void* buffers[4] = {A, B, C, D};
  for (int i = 0; i < 4; ++i) {
    if (!buffers[i] || !aligned(buffers[i], algo->data[i])) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (op->epilogue == CUBLASLT_EPILOGUE_BIAS && !aligned(op->bias, 16)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (bytes < algo->data[4] || !aligned(workspace, 256)) return CUBLAS_STATUS_INVALID_VALUE;
  ++emulator::work[emulator::current_device()];
  if (emulator::recording()) {
    for (const void* at : {A, B, static_cast<const void*>(D)}) {
      emulator::note_operands(&at, sizeof at);
    }
    emulator::record({"cublasLt", {unsigned(d->batch), 1, 1}, {1, 1, 1}, 0, {}});
    return CUBLAS_STATUS_SUCCESS;
  }
  const emulator::Reach reach;
  if (bytes) std::memset(workspace, 0xff, bytes);
  if (a->type == CUDA_R_64F) {
    multiply(*op, s, *static_cast<const double*>(alpha), static_cast<const double*>(A), *a,
             static_cast<const double*>(B), *b, *static_cast<const double*>(beta),
             static_cast<const double*>(C), *c, static_cast<double*>(D), *d);
  } else if (a->type == CUDA_R_32F) {
    multiply(*op, s, *static_cast<const float*>(alpha), static_cast<const float*>(A), *a,
             static_cast<const float*>(B), *b, *static_cast<const float*>(beta),
             static_cast<const float*>(C), *c, static_cast<float*>(D), *d);
  } else {
    auto multiply_half = [&]<class T>() {
      multiply(*op, s, *static_cast<const float*>(alpha), static_cast<const T*>(A), *a,
               static_cast<const T*>(B), *b, *static_cast<const float*>(beta),
               static_cast<const float*>(C), *c, static_cast<float*>(D), *d);
    };
    a->type == CUDA_R_16F ? multiply_half.template operator()<brine::f16>()
                          : multiply_half.template operator()<brine::bf16>();
  }
  return CUBLAS_STATUS_SUCCESS;
}

namespace brine::cuda {
std::string cublaslt_version() { return "emulated"; }
std::string nvrtc_version() { return "none: an emulated device"; }
}  // namespace brine::cuda
