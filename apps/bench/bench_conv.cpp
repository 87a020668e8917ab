// Convolutions of SEA's decoder compared with oneDNN called directly, including the weight
// gradient.
#include "apps/bench/bench.h"
#include "tensor/cpu/core/onednn.h"
#include "tensor/kernels/conv.h"

namespace brine::bench {
namespace {

using onednn::Pass;

struct Layer {
  const char* name;
  int64_t columns, in, out, dilation;
};

// The direct call uses the better of two layouts, channels last and oneDNN's own; the conversion of
// activations to the latter is not counted.
void bench_layer(RowSink& rows, const Layer& l, int64_t T) {
  const int64_t B = sized(8, 1), W = l.columns;
  const Convolution conf{.dilation = l.dilation};
  Tensor x = ramp({B, T + 2 * l.dilation, W, l.in}), w = ramp({l.out, l.in, 3, 3});
  Tensor b = ramp({l.out}), y = Tensor::empty({B, T, W, l.out}), dy = ramp({B, T, W, l.out});
  Tensor dx = Tensor::like(x), dw = Tensor::zeros_like(w), db = Tensor::zeros_like(b);
  onednn::ImageConvolution image{.rows = T,
                                 .columns = W,
                                 .in = l.in,
                                 .out = l.out,
                                 .kernel_t = 3,
                                 .kernel_w = 3,
                                 .dilation = l.dilation};
  const std::pair<Pass, const char*> passes[] = {{Pass::forward, " forward"},
                                                 {Pass::data_gradient, " data gradient"},
                                                 {Pass::weight_gradient, " weight gradient"}};
  for (const auto& each : passes) {
    const Pass pass = each.first;
    const char* name = each.second;
    image.bias = pass != Pass::data_gradient;
    auto plain = onednn::convolution_direct(image, B, pass, false);
    auto own_layout = onednn::convolution_direct(image, B, pass, true);
    const double other = median_time(own_layout, 0.2), nhwc = median_time(plain, 0.2);
    auto [own, direct] = median_times(
        [&] {
          if (pass == Pass::forward) {
            BRINE_CALL(y, conv2d, y, x, w, b, conf);
          } else if (pass == Pass::data_gradient) {
            BRINE_CALL(y, conv2d_backward, dx, {}, {}, dy, x, w, {}, conf);
          } else {
            BRINE_CALL(y, conv2d_backward, {}, dw, db, dy, x, w, {}, conf);
          }
        },
        other < nhwc ? own_layout : plain);
    const double work = 18 * double(B * T * W) * double(l.in * l.out), rate = work / own / 1e6;
    rows.add({join(l.name, name), join(B, "x", T, "x", W, " ", l.in, "->", l.out), own, rate,
              "GFLOP/s", rate / peak_flops(), own / direct});
  }
}

}  // namespace

void bench_conv(RowSink& rows) {
  const Layer layers[] = {{"lean H 12", 16, 24, 24, 2},
                          {"lean H 8", 16, 16, 16, 2},
                          {"paper H 12", 32, 48, 48, 1},
                          {"paper H 8", 32, 32, 32, 1}};
  for (const Layer& l : layers) {
    for (int64_t T : {sized(512, 16), sized(2048, 32)})
      rows.attempt(l.name, join(T, " rows"), [&] { bench_layer(rows, l, T); });
  }
}

}  // namespace brine::bench
