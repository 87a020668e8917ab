// The graphs of a convolution: forward with bias and ReLU, and the two gradients. Images are
// channels last; cuDNN names their sizes [B, channels, rows, columns].
#include "tensor/cuda/cudnn/graphs.h"

namespace brine::cuda::cudnn {
namespace {

using Sizes = std::vector<int64_t>;

// Strides of channels last, images `step` numbers apart.
Sizes channels_last(const Sizes& sizes, int64_t step) {
  return {step, 1, sizes[3] * sizes[1], sizes[1]};
}
const Node& image(Graph& graph, int64_t number, cudnnDataType_t type, const Sizes& sizes,
                  int64_t step) {
  return graph.tensor(number, type, sizes, channels_last(sizes, step));
}
// Intermediate sums of an image.
const Node& sums_of(Graph& graph, const Sizes& sizes) {
  return graph.inner(CUDNN_DATA_FLOAT, sizes, channels_last(sizes, sizes[1] * sizes[2] * sizes[3]));
}

// cuDNN's names of a pass and its tensors.
struct Pass {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t how, x, w, y, alpha, beta;
};
constexpr Pass kForward{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
constexpr Pass kData{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
constexpr Pass kWeights{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

Descriptor convolution(const FusedConv& c) {
  Descriptor made(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution");
  made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t(2));
  made.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Sizes{c.stride, 1});
  made.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, Sizes{c.dilation, c.dilation});
  made.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Sizes{0, c.margin});
  made.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Sizes{0, c.margin});
  made.finish();
  return made;
}

}  // namespace

Plan plan_of(const FusedConv& c, const Target& target) {
  const cudnnDataType_t half = type_of(c.type), f32 = CUDNN_DATA_FLOAT;
  auto type = [&](ConvPass written) { return c.pass == written ? f32 : half; };
  Graph graph;
  const Node& x =
      image(graph, kImage, type(ConvPass::data), {c.B, c.C, c.rows_in, c.W}, c.rows_in * c.W * c.C);
  const Node& w =
      image(graph, kFilter, type(ConvPass::weights), {c.O, c.C, c.kT, c.kW}, c.kT * c.kW * c.C);
  const Node& y = image(graph, kResult, type(ConvPass::forward), {c.B, c.O, c.rows, c.W}, c.step);
  const Descriptor how = convolution(c);
  // The result of the pass itself is never in memory: the result of a pointwise operation may be
  // f32 on every device, that of a 16-bit convolution may not.
  auto convolve = [&](const Pass& pass, const Node& written) -> const Node& {
    const Node& sums = sums_of(graph, written.sizes);
    Descriptor& op = graph.operation(pass.operation, "convolution");
    op.set(pass.how, how);
    op.set(pass.x, (&written == &x ? sums : x).descriptor);
    op.set(pass.w, (&written == &w ? sums : w).descriptor);
    op.set(pass.y, (&written == &y ? sums : y).descriptor);
    op.set(pass.alpha, 1.0f);
    op.set(pass.beta, 0.0f);
    op.finish();
    return sums;
  };
  if (c.pass == ConvPass::data) {
    graph.pointwise(CUDNN_POINTWISE_IDENTITY, x, f32, {&convolve(kData, x)});
  } else if (c.pass == ConvPass::weights) {
    graph.pointwise(CUDNN_POINTWISE_IDENTITY, w, f32, {&convolve(kWeights, w)});
  } else {
    const Node* sums = &convolve(kForward, y);
    if (c.bias) {
      const Node& bias = graph.tensor(kBias, f32, {1, c.O, 1, 1}, {c.O, 1, c.O, c.O});
      sums = &graph.pointwise(CUDNN_POINTWISE_ADD, c.relu ? sums_of(graph, y.sizes) : y, f32,
                              {sums, &bias});
    }
    if (c.relu) graph.pointwise(CUDNN_POINTWISE_RELU_FWD, y, f32, {sums});
    if (!c.bias && !c.relu) graph.pointwise(CUDNN_POINTWISE_IDENTITY, y, f32, {sums});
  }
  return graph.plan(target, kMaxWorkspace);
}

}  // namespace brine::cuda::cudnn
