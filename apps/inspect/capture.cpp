// Captures: tensors are written while their layer is alive, so that a capture needs the memory of
// one layer.
#include "apps/inspect/capture.h"

#include <cstdio>
#include <filesystem>

#include "data/dump/dump.h"
#include "data/hdf5/hdf5_file.h"

namespace brine {

Tensor in_use(const nn::Tap& tap, const std::string& name) {
  Tensor value = tap.get(name).detach();
  const bool by_entry = name == "columns" || (name == "probabilities" && value.rank() == 1);
  if (!by_entry || !tap.has("row_pointers")) return value;
  const Tensor rows = tap.get("row_pointers").to(Device{});
  return value.slice(0, 0, rows.data<int64_t>()[rows.numel() - 1]);
}

namespace {

// The dataset of a Tap entry. The format has other names for some.
std::string dataset_of(const std::string& name) {
  if (name == "scores") return "S";
  if (name == "gates") return "scalers";
  return name == "attention_output" ? "context" : name;
}

class Recorder : public nn::LayerObserver {
 public:
  explicit Recorder(data::Hdf5Writer& file) : file_(file) {}

  void prepare(nn::Tap& tap) const override {
    tap.request("images");
    tap.request(nn::kProbabilities);
  }

  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override {
    char group[32];
    std::snprintf(group, sizeof group, "layers/%02lld/", static_cast<long long>(layer));
    for (const auto& [name, value] : tap.values()) {
      if (!value.defined()) continue;
      file_.write(group + dataset_of(name), in_use(tap, name).to(Device{}));
    }
    file_.write(std::string(group) + "output", output.detach().to(Device{}));
    return {};
  }

 private:
  data::Hdf5Writer& file_;
};

void write_attributes(data::Hdf5Writer& file, nn::LoadedModel& m, const CaptureCall& call) {
  const nn::ModelShape c = m.config.shape();
  file.attribute("/", "format", std::string_view("brine-capture"));
  file.attribute("/", "version", int64_t(1));
  file.attribute("/", "model", std::string_view(call.model));
  file.attribute("/", "model_hash", std::string_view(m.hash()));
  file.attribute("/", "attention", std::string_view(m.config.attention));
  file.attribute("/", "config", std::string_view(nn::config_text(m.config, nullptr)));
  file.attribute("/", "layers", c.layers);
  file.attribute("/", "heads", c.heads);
  file.attribute("/", "head_size", c.head_size());
  file.attribute("/", "hidden", c.hidden_size);
  file.attribute("/", "k", call.options.k);  // 0 = the value of the config
  file.attribute("/", "path", std::string_view(call.options.dense_path ? "dense" : "sparse"));
}

}  // namespace

void capture(nn::LoadedModel& m, const CaptureCall& call, const std::string& out) {
  const nn::ModelShape c = m.config.shape();
  check(!call.ids.empty(), "capture: there are no tokens");
  check(int64_t(call.ids.size()) <= c.max_positions, "capture: ", call.ids.size(),
        " tokens, but the model has ", c.max_positions, " positions");
  for (int32_t id : call.ids) {
    check(id >= 0 && id < c.vocab_size, "capture: token ", id, " is outside the vocabulary of ",
          c.vocab_size);
  }
  check(!std::filesystem::exists(out), out, ": exists already");
  data::Hdf5Writer file(out);
  try {
    write_attributes(file, m, call);
    Tensor ids = Tensor::from(call.ids, {1, int64_t(call.ids.size())});
    file.write("ids", ids);
    NoGrad off;
    Recorder recorder(file);
    file.write("hidden",
               m.model->hidden({.ids = ids, .options = call.options, .observer = &recorder})
                   .detach()
                   .to(Device{}));
    file.close();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(out, ignored);
    throw;
  }
}

}  // namespace brine
