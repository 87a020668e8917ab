// Tables of positions are recognised by their shapes: only they differ between the two models, by
// the number of new positions.
#include "nn/io/extend.h"

#include <nlohmann/json.hpp>

#include "data/io/human.h"
#include "tensor/device/machine_memory.h"

namespace brine::nn {
namespace {

// Rows `first`.. of from [first + P, C] resampled to those of to [first + Q, C].
void resample_rows(Tensor to, const Tensor& from, int64_t first) {
  const int64_t P = from.dim(0) - first, Q = to.dim(0) - first, C = from.numel() / from.dim(0);
  dispatch_float(from.dtype(), [&]<class T>() {
    const T* x = from.data<T>();
    T* y = to.data<T>();
    std::copy_n(x, first * C, y);
    for (int64_t r = 0; r < Q; ++r) {
      const double at = double(r) * double(P - 1) / double(Q - 1);
      const int64_t below = std::min(int64_t(at), std::max<int64_t>(P - 2, 0));
      const int64_t above = std::min(below + 1, P - 1);
      const double share = at - double(below);
      const T *a = x + (first + below) * C, *b = x + (first + above) * C;
      for (int64_t c = 0; c < C; ++c) {
        y[(first + r) * C + c] = T((1 - share) * double(a[c]) + share * double(b[c]));
      }
    }
  });
}

}  // namespace

ModelConfig extend_config(ModelConfig& config, int64_t positions) {
  ModelConfig longer = from_hf_config(to_hf_config(config), "extend");  // a copy of the settings
  longer.token_settings = config.token_settings;
  longer.family().set_positions(positions);
  return longer;
}

LoadedModel extend_positions(LoadedModel& model, int64_t positions) {
  const int64_t before = model.config.shape().max_positions;
  check(positions > before, "extend: ", model.directory, " has ", before,
        " positions already, requested ", positions);
  LoadedModel out;
  out.directory = model.directory;
  out.config = extend_config(model.config, positions);
  out.model = make_model(out.config, Init{.random = {}, .device = Device::meta});
  std::map<std::string, Shape> wanted;
  double bytes = 0;  // of the model and of the tables that are resampled into it
  for (const auto& [name, tensor] : state_of(*out.model)) {
    wanted[name] = tensor.shape();
    bytes += 2.0 * double(tensor.numel()) * double(item_size(tensor.dtype()));
  }
  const double free = available_memory();
  check_memory(bytes < free, "extend: a model of ", positions, " positions takes ",
               human_bytes(bytes), ", free are ", human_bytes(free));
  out.store = std::make_unique<ParameterStore>(*out.model, ParameterStore::Gradients::later);
  std::vector<NamedTensor> state = state_of(*model.model);
  for (auto& [name, tensor] : state) {
    const Shape shape = wanted.at(name);
    if (tensor.shape() == shape) continue;
    const int64_t first = tensor.dim(0) - before;
    const bool one_axis = tensor.numel() / tensor.dim(0) == shape.numel() / shape[0];
    check(first >= 0 && shape[0] == first + positions && one_axis, "extend: cannot resample '",
          name, "', ", tensor.shape(), " to ", shape);
    Tensor table = Tensor::empty(shape, tensor.dtype());
    resample_rows(table, tensor.detach().to(Device{}).contiguous(), first);
    tensor = table;
  }
  load_state(*out.model, state, model.directory);
  return out;
}

}  // namespace brine::nn
