// Descriptors, graphs and the choice of a plan.
#include "tensor/cuda/cudnn/graph.h"

#include <utility>

namespace brine::cuda::cudnn {
namespace {

// Of a device's many engines the first few that the heuristics propose.
constexpr int64_t kProposals = 16;

std::vector<int64_t> packed(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

Descriptor tensor_descriptor(int64_t number, cudnnDataType_t type,
                             const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                             bool inner, bool by_value) {
  constexpr int64_t kAlignment = 16;
  Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes);
  made.set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, inner);
  made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value);
  made.finish();
  return made;
}

// Whether an engine's sums have the same bits every time, and are not rounded more than products of
// 16 bits.
bool is_exact(const Descriptor& engine) {
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
  for (int64_t i = 0; i < count; ++i) {
    if (notes[i] != CUDNN_NUMERICAL_NOTE_TENSOR_CORE &&
        notes[i] != CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP) {
      return false;
    }
  }
  return true;
}

}  // namespace

void check_status(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char words[512] = "";
  cudnnGetLastErrorString(words, sizeof(words));
  check(false, "cudnn: ", what, ": ", cudnnGetErrorString(status), words[0] ? ": " : "", words);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type, const char* name) : name_(name) {
  check_status(cudnnBackendCreateDescriptor(type, &it_), name);
}
Descriptor::~Descriptor() {
  if (it_) cudnnBackendDestroyDescriptor(it_);
}
Descriptor::Descriptor(Descriptor&& other) noexcept
    : it_(std::exchange(other.it_, nullptr)), name_(other.name_) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(it_, other.it_);
  std::swap(name_, other.name_);
  return *this;
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void* values) {
  check_status(cudnnBackendSetAttribute(it_, name, type, count, values), name_);
}
void Descriptor::finish() { check_status(cudnnBackendFinalize(it_), name_); }

int64_t Descriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        int64_t room, void* values) const {
  int64_t count = 0;
  check_status(cudnnBackendGetAttribute(it_, name, type, room, &count, values), name_);
  return count;
}

Descriptor described_device(const std::string& json) {
  Descriptor made(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "device");
  made.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, int64_t(json.size()) + 1,
           json.c_str());
  made.finish();
  return made;
}

cudnnDataType_t type_of(Dtype type) {
  check(type == Dtype::f32 || type == Dtype::bf16 || type == Dtype::f16, "cudnn: no type for ",
        type);
  if (type == Dtype::f32) return CUDNN_DATA_FLOAT;
  return type == Dtype::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

const Node& Graph::keep(Descriptor descriptor, const std::vector<int64_t>& sizes) {
  return tensors_.emplace_back(Node{std::move(descriptor), sizes});
}
const Node& Graph::tensor(int64_t number, cudnnDataType_t type, const std::vector<int64_t>& sizes,
                          const std::vector<int64_t>& strides) {
  return keep(tensor_descriptor(number, type, sizes, strides, false, false), sizes);
}
const Node& Graph::scalar(int64_t number, cudnnDataType_t type) {
  const std::vector<int64_t> one(4, 1);
  return keep(tensor_descriptor(number, type, one, one, false, true), one);
}
const Node& Graph::inner(cudnnDataType_t type, const std::vector<int64_t>& sizes) {
  return keep(tensor_descriptor(inner_++, type, sizes, packed(sizes), true, false), sizes);
}

Descriptor& Graph::operation(cudnnBackendDescriptorType_t type, const char* name) {
  return operations_.emplace_back(type, name);
}

const Node& Graph::pointwise(cudnnPointwiseMode_t mode, const Node& y, cudnnDataType_t math,
                             std::initializer_list<const Node*> inputs, int64_t axis) {
  constexpr cudnnBackendAttributeName_t kInputs[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                     CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                     CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
  how.set(CUDNN_ATTR_POINTWISE_MODE, mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, math);
  if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  how.finish();
  Descriptor& made = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise");
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  for (size_t i = 0; i < inputs.size(); ++i) {
    made.set(kInputs[i], inputs.begin()[i]->descriptor);
  }
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor);
  made.finish();
  return y;
}

const Node& Graph::reduce(cudnnReduceTensorOp_t how, const Node& y, const Node& x) {
  Descriptor reduction(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction");
  reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, how);
  reduction.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  reduction.finish();
  Descriptor& made = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction");
  made.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
  made.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor);
  made.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor);
  made.finish();
  return y;
}

const Node& Graph::multiply(const Node& y, const Node& a, const Node& b, const Sizes& sizes) {
  Descriptor matmul(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "matmul");
  matmul.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  if (sizes.columns) matmul.set(CUDNN_ATTR_MATMUL_PADDING_VALUE, 0.0);
  matmul.finish();
  Descriptor& made = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul");
  made.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
  made.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor);
  made.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor);
  made.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, y.descriptor);
  auto limit = [&](cudnnBackendAttributeName_t name, const Node* size) {
    if (size) made.set(name, size->descriptor);
  };
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, sizes.rows);
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, sizes.columns);
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, sizes.depth);
  made.finish();
  return y;
}

Plan Graph::plan(const Target& target, int64_t max_workspace) const {
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph");
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const Descriptor& operation : operations_) operations.push_back(operation.get());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            int64_t(operations.size()), operations.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  graph.finish();

  std::string refusals;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics");
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
    if (target.described) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.described);
    try {
      heuristics.finish();
    } catch (const Error& refusal) {
      refusals = refusal.what();
      continue;
    }
    std::vector<Descriptor> proposals;
    std::vector<cudnnBackendDescriptor_t> raw;
    for (int64_t i = 0; i < kProposals; ++i) {
      raw.push_back(proposals.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "proposal").get());
    }
    const int64_t count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, kProposals, raw.data());
    for (int64_t i = 0; i < count && i < kProposals; ++i) {
      try {
        Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
        cudnnBackendDescriptor_t of = engine.get();
        proposals[size_t(i)].get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                 &of);
        if (!is_exact(engine)) {
          refusals = "cudnn: none of its engines is deterministic";
          continue;
        }
        Plan made{Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan")};
        made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, proposals[size_t(i)]);
        if (target.handle) made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
        if (target.described) {
          made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.described);
        }
        made.plan.finish();
        made.plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                      &made.workspace);
        if (made.workspace <= max_workspace) return made;
        refusals = "cudnn: all of its engines need too much memory";
      } catch (const Error& refusal) {
        refusals = refusal.what();
      }
    }
  }
  check(false, refusals.empty() ? "cudnn: has no engine for this graph" : refusals);
  return {Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan")};
}

bool run(cudnnHandle_t handle, const Plan& plan, const std::vector<Binding>& bindings,
         void* workspace) {
  std::vector<int64_t> numbers;
  std::vector<void*> data;
  for (const Binding& binding : bindings) {
    numbers.push_back(binding.number);
    data.push_back(const_cast<void*>(binding.data));
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack");
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, numbers);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, int64_t(data.size()),
           data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finish();
  const cudnnStatus_t status = cudnnBackendExecute(handle, plan.plan.get(), pack.get());
  // All codes of "not supported" are in one range of a thousand.
  if (int(status) / 1000 == int(CUDNN_STATUS_NOT_SUPPORTED) / 1000) return false;
  check_status(status, "run");
  return true;
}

}  // namespace brine::cuda::cudnn
