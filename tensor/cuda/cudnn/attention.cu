// The graph of softmax attention: the operations that cuDNN can fuse into one kernel, in the order
// that it recognises.
#include "tensor/cuda/cudnn/graphs.h"

namespace brine::cuda::cudnn {
namespace {

constexpr cudnnDataType_t kF32 = CUDNN_DATA_FLOAT, kInt = CUDNN_DATA_INT32,
                          kBool = CUDNN_DATA_BOOLEAN;

// Masking of scores: the index of a score's row or column, and the value that replaces hidden
// scores.
struct Masks {
  Graph& graph;
  const Node& hidden;

  const Node& index(const Node& scores, int64_t axis) const {
    return graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, graph.inner(kInt, scores.sizes), kInt,
                           {&scores}, axis);
  }
  const Node& compare(cudnnPointwiseMode_t mode, const Node& a, const Node& b) const {
    return graph.pointwise(mode, graph.inner(kBool, a.sizes), kBool, {&a, &b});
  }
  const Node& keep(const Node& scores, const Node& where) const {
    return graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, graph.inner(kF32, scores.sizes), kF32,
                           {&scores, &hidden, &where});
  }
  // The mask of rows and columns below the lengths.
  const Node& within(const Node& scores, const Node& rows, const Node& keys) const {
    const Node &row = index(scores, 2), &column = index(scores, 3);
    const Node& below = compare(CUDNN_POINTWISE_CMP_LT, row, rows);
    const Node& left = compare(CUDNN_POINTWISE_CMP_LT, column, keys);
    return keep(scores, compare(CUDNN_POINTWISE_LOGICAL_AND, below, left));
  }
  const Node& causal(const Node& scores) const {
    const Node &row = index(scores, 2), &column = index(scores, 3);
    return keep(scores, compare(CUDNN_POINTWISE_CMP_GE, row, column));
  }
};

// softmax of scores along their rows, in `type`; the logarithm of the sums is written to lse.
const Node& softmax(Graph& graph, const Node& scores, const Node& lse, cudnnDataType_t type) {
  const std::vector<int64_t>& rows = lse.sizes;
  const Node& row_max = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, graph.inner(kF32, rows), scores);
  const Node& below = graph.pointwise(CUDNN_POINTWISE_SUB, graph.inner(kF32, scores.sizes), kF32,
                                      {&scores, &row_max});
  const Node& shares =
      graph.pointwise(CUDNN_POINTWISE_EXP, graph.inner(kF32, scores.sizes), kF32, {&below});
  const Node& sum = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, graph.inner(kF32, rows), shares);
  const Node& log = graph.pointwise(CUDNN_POINTWISE_LOG, graph.inner(kF32, rows), kF32, {&sum});
  graph.pointwise(CUDNN_POINTWISE_ADD, lse, kF32, {&row_max, &log});
  return graph.pointwise(CUDNN_POINTWISE_DIV, graph.inner(type, scores.sizes), kF32,
                         {&shares, &sum});
}

}  // namespace

Plan plan_of(const FusedAttention& a, const Target& target) {
  const cudnnDataType_t type = type_of(a.type);
  const int64_t head = a.T * a.d, C = a.H * a.d;
  const std::vector<int64_t> rows{a.B, a.H, a.T, a.d}, packed{a.H * head, head, a.d, 1};
  Graph graph;
  const Node& q = graph.tensor(kQ, type, rows, packed);
  const Node& k = graph.tensor(kK, type, {a.B, a.H, a.d, a.T}, {a.H * head, head, 1, a.d});
  const Node& v = graph.tensor(kV, type, rows, packed);
  const Node& y = graph.tensor(kY, type, rows, {a.T * C, a.d, C, 1});
  const Node& lse = graph.tensor(kLse, kF32, {a.B, a.H, a.T, 1}, {a.H * a.T, a.T, 1, 1});
  const Node& scale = graph.scalar(kScale, kF32);
  // The same numbers twice: cuDNN distinguishes the lengths of queries and keys by their tensors.
  auto lengths = [&](int64_t number) -> const Node* {
    return a.padded ? &graph.tensor(number, kInt, {a.B, 1, 1, 1}, {1, 1, 1, 1}) : nullptr;
  };
  const Node *tokens = lengths(kRows), *keys = lengths(kKeys);
  const std::vector<int64_t> map{a.B, a.H, a.T, a.T};
  const Node* scores =
      &graph.multiply(graph.inner(kF32, map), q, k, {.rows = tokens, .columns = keys});
  scores = &graph.pointwise(CUDNN_POINTWISE_MUL, graph.inner(kF32, map), kF32, {scores, &scale});
  if (a.padded || a.causal) {
    const Masks masks{graph, graph.scalar(kHidden, kF32)};
    if (a.padded) scores = &masks.within(*scores, *tokens, *keys);
    if (a.causal) scores = &masks.causal(*scores);
  }
  const Node& shares = softmax(graph, *scores, lse, type);
  graph.multiply(y, shares, v, {.rows = tokens, .depth = keys});
  return graph.plan(target, kMaxWorkspace);
}

}  // namespace brine::cuda::cudnn
