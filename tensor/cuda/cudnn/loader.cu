// cuDNN, loaded at its first use. Each function here forwards to the library function of that name;
// their arguments are described in cudnn_graph.h.
#include <cudnn_graph.h>

#include "tensor/cuda/cudnn/library.h"

namespace brine::cuda::cudnn {
namespace {

// Attention of 9.10.0 and 9.10.1 is known to be wrong, and older versions are untested.
constexpr size_t kOldest = 91002;

std::string name_of_version(size_t version) {
  return join(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

const Found& library() {
  static const Found found = [] {
    const std::string name = join("libcudnn.so.", CUDNN_MAJOR);
    Found it{.library = SharedLibrary("cuda", name)};
    if (!it.library.found()) {
      it.why_not = join("none: ", it.library.why());
      return it;
    }
    const size_t version = it.library.function<decltype(cudnnGetVersion)>("cudnnGetVersion")();
    it.version = name_of_version(version);
    if (version < kOldest) {
      it.why_not = join(it.version, ", not used: older than ", name_of_version(kOldest));
    }
    return it;
  }();
  return found;
}

}  // namespace brine::cuda::cudnn

#define BRINE_FORWARD(name, ...)                                             \
  static auto* const theirs =                                                \
      brine::cuda::cudnn::library().library.function<decltype(name)>(#name); \
  return theirs(__VA_ARGS__)

extern "C" {

const char* cudnnGetErrorString(cudnnStatus_t status) {
  BRINE_FORWARD(cudnnGetErrorString, status);
}
void cudnnGetLastErrorString(char* message, size_t room) {
  BRINE_FORWARD(cudnnGetLastErrorString, message, room);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { BRINE_FORWARD(cudnnCreate, handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  BRINE_FORWARD(cudnnSetStream, handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  BRINE_FORWARD(cudnnBackendCreateDescriptor, type, made);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  BRINE_FORWARD(cudnnBackendDestroyDescriptor, descriptor);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  BRINE_FORWARD(cudnnBackendFinalize, descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  BRINE_FORWARD(cudnnBackendSetAttribute, descriptor, name, type, count, values);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room,
                                       int64_t* count, void* values) {
  BRINE_FORWARD(cudnnBackendGetAttribute, descriptor, name, type, room, count, values);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  BRINE_FORWARD(cudnnBackendExecute, handle, plan, pack);
}

}  // extern "C"
