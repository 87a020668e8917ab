// A text through a model, and a capture of one.
#include "apps/report/attention.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/terminal/terminal.h"
#include "data/hdf5/hdf5_file.h"
#include "data/io/json.h"
#include "data/io/printable.h"
#include "data/io/utf8.h"
#include "distill/evaluation/tasks/task_report.h"

namespace brine::report {
namespace {

namespace fs = std::filesystem;

std::string settings_of(const nn::ModelConfig& config) {
  data::Schema keys;
  config.method().describe(keys);
  return json_text(keys.to_json());
}

distill::TextPass pass_of(const AttentionCall& call) {
  return {.ids = {},
          .k = call.k,
          .teacher = call.teacher,
          .maps = call.maps,
          .keeps_masks = call.keeps_masks};
}

// One layer of a capture; every tensor is compared with the sizes in the file's attributes, since
// what is read here indexes memory.
class CapturedLayer {
 public:
  CapturedLayer(const data::Hdf5Reader& file, int64_t layer, int64_t heads, int64_t tokens)
      : file_(file), H_(heads), T_(tokens) {
    char group[32];
    std::snprintf(group, sizeof group, "layers/%02lld/", static_cast<long long>(layer));
    group_ = group;
  }

  distill::LayerView view(bool causal) const {
    distill::LayerView out{.causal = causal};
    out.teacher.q = required("q");
    out.teacher.k = required("k");
    const bool fits = out.teacher.q.rank() == 4 && out.teacher.q.dim(0) == 1 &&
                      out.teacher.q.dim(1) == H_ && out.teacher.q.dim(2) == T_ &&
                      out.teacher.k.shape() == out.teacher.q.shape();
    check_format(fits, place("q"), ": ", out.teacher.q.shape(), " and k ", out.teacher.k.shape(),
                 ", wanted [1, ", H_, ", ", T_, ", head size]");
    out.estimate = optional("estimate");
    if (out.estimate.defined()) check_by_column("estimate", out.estimate);
    const Tensor selected = optional("selected", Dtype::u8);
    if (selected.defined() && out.estimate.defined()) {
      check_format(selected.shape() == out.estimate.shape(), place("selected"), ": ",
                   selected.shape(), ", wanted ", out.estimate.shape());
      out.selected = selected;
    }
    add_mask(out);
    for (size_t i = 0; file_.has(place_in(distill::image_name(i))); ++i) {
      const Tensor image = required(distill::image_name(i));
      check_format(
          image.rank() == 4 && image.dim(0) == 1 && image.dim(3) % H_ == 0 && image.numel() > 0,
          place(distill::image_name(i)), ": ", image.shape(), " is not an image of ", H_, " heads");
      out.images.push_back(image);
    }
    return out;
  }

 private:
  std::string place_in(const std::string& name) const { return group_ + name; }
  std::string place(const std::string& name) const { return file_.path() + ": " + group_ + name; }

  Tensor required(const std::string& name) const {
    check_format(file_.has(place_in(name)), place(name), ": is missing");
    const Tensor value = file_.read(place_in(name));
    check_format(is_float(value.dtype()), place(name), ": is ", value.dtype(),
                 ", wanted floating-point numbers");
    return value.to(Dtype::f32).contiguous();
  }
  Tensor optional(const std::string& name) const {
    return file_.has(place_in(name)) ? required(name) : Tensor();
  }
  Tensor optional(const std::string& name, Dtype dtype) const {
    if (!file_.has(place_in(name))) return {};
    const Tensor value = file_.read(place_in(name));
    check_format(value.dtype() == dtype, place(name), ": is ", value.dtype(), ", wanted ", dtype);
    return value.contiguous();
  }
  void check_by_column(const std::string& name, const Tensor& x) const {
    check_format(x.rank() == 4 && x.dim(0) == 1 && x.dim(1) == H_ && x.dim(2) == T_ && x.dim(3) > 0,
                 place(name), ": ", x.shape(), ", wanted [1, ", H_, ", ", T_, ", columns]");
  }

  void add_mask(distill::LayerView& out) const {
    out.mask = {.row_pointers = optional("row_pointers", Dtype::i64),
                .head_offsets = optional("head_offsets", Dtype::i32),
                .columns = optional("columns", Dtype::i32),
                .batch = 1,
                .heads = H_,
                .length = T_,
                .keys = T_};
    if (!out.mask.columns.defined()) return;
    out.probabilities = required("probabilities");
    const Tensor &rows = out.mask.row_pointers, &heads = out.mask.head_offsets;
    check_format(rows.defined() && rows.numel() == T_ + 1, place("row_pointers"),
                 ": do not have one number for each of ", T_, " tokens and one more");
    check_format(heads.defined() && heads.numel() == T_ * (H_ + 1), place("head_offsets"),
                 ": do not have ", H_ + 1, " numbers for each of ", T_, " tokens");
    const int64_t entries = out.mask.columns.numel();
    const bool by_entry = out.probabilities.rank() == 1;
    check_format(out.probabilities.numel() == (by_entry ? entries : H_ * T_ * T_),
                 place("probabilities"), ": ", out.probabilities.shape(), " for ", entries,
                 " entries of the mask");
    const int64_t* row = rows.data<int64_t>();
    const int32_t* offsets = heads.data<int32_t>();
    const int32_t* columns = out.mask.columns.data<int32_t>();
    for (int64_t t = 0; t < T_; ++t) {
      const int32_t* begins = offsets + t * (H_ + 1);
      bool good = row[t] >= 0 && row[t] <= row[t + 1] && row[t + 1] <= entries && begins[0] == 0 &&
                  begins[H_] == row[t + 1] - row[t];
      for (int64_t h = 0; good && h < H_; ++h) {
        good = begins[h] <= begins[h + 1] && begins[h + 1] <= begins[H_];
        for (int64_t e = begins[h]; good && e < begins[h + 1]; ++e) {
          const int64_t key = columns[row[t] + e] - h * T_;
          good = key >= 0 && key < out.keys_of(t);
        }
      }
      check_format(good, file_.path(), ": ", group_, " the mask of query ", t, " is damaged");
    }
  }

  const data::Hdf5Reader& file_;
  int64_t H_, T_;
  std::string group_;
};

std::unique_ptr<data::Tokenizer> tokenizer_for(const std::string& chosen,
                                               const std::string& model) {
  const std::string place = !chosen.empty()     ? chosen
                            : fs::exists(model) ? nn::tokenizer_place(model)
                                                : "";
  return place.empty() ? nullptr : data::load_tokenizer(place);
}

nn::ModelConfig config_of(const data::Hdf5Reader& file) {
  for (const char* name : {"format", "config", "attention", "model"}) {
    check_format(file.has_attribute("/", name) && file.is_string_attribute("/", name), file.path(),
                 ": is not a capture of brine inspect (it has no attribute ", name, ")");
  }
  check_format(file.string_attribute("/", "format") == "brine-capture", file.path(),
               ": is not a capture of brine inspect");
  return nn::from_hf_config(parse_ordered_json(file.string_attribute("/", "config"), file.path()),
                            file.path());
}

Tensor ids_of(const data::Hdf5Reader& file) {
  const bool fits = file.has("ids") && file.info("ids").dtype == Dtype::i32 &&
                    file.info("ids").shape.rank() == 2 && file.info("ids").shape[0] == 1 &&
                    file.info("ids").shape[1] > 0;
  check_format(fits, file.path(), ": has no ids of one text");
  return file.read("ids");
}

// A text without a query that sees more than k keys has no recall: 0 would say that all is lost.
void drop_without_rows(std::vector<distill::Recall>& layers) {
  const bool none = std::all_of(layers.begin(), layers.end(),
                                [](const distill::Recall& layer) { return layer.rows == 0; });
  if (none) layers.clear();
}

}  // namespace

CaptureSize size_of_capture(const std::string& path) {
  const data::Hdf5Reader file(path);
  const nn::ModelShape shape = config_of(file).shape();
  return {.layers = shape.layers, .heads = shape.heads, .tokens = ids_of(file).dim(1)};
}

std::vector<std::string> token_texts(const data::Tokenizer* tokenizer,
                                     const std::vector<int32_t>& ids) {
  std::vector<std::string> out;
  out.reserve(ids.size());
  for (const int32_t id : ids) {
    if (!tokenizer || id < 0 || id >= tokenizer->vocab_size()) {
      out.push_back(std::to_string(id));
      continue;
    }
    const std::string text = tokenizer->decode_next(id);
    out.push_back(data::is_utf8(text) ? text : data::shown(text));
  }
  return out;
}

Attention attention_of(nn::LoadedModel& m, const std::string& name, const std::vector<int32_t>& ids,
                       const AttentionCall& call) {
  const nn::ModelShape shape = m.config.shape();
  const bool self = call.teacher.empty() || call.teacher == distill::kSelf;
  const std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_for("", m.directory);
  Attention out{.name = name,
                .method = m.config.attention,
                .teacher = self ? "the model's own dense attention" : call.teacher,
                .source = m.directory,
                .layers = shape.layers,
                .heads = shape.heads,
                .k = distill::kept_keys_of(m.config, call.k).value_or(0),
                .settings = settings_of(m.config),
                .ids = ids,
                .tokens = token_texts(tokenizer.get(), ids),
                .text = {}};
  distill::TextPass pass = pass_of(call);
  pass.ids = ids;
  out.text = distill::attend_to_text(m, pass);
  out.sparse = m.model->attention_traits().sparse;
  drop_without_rows(out.text.recall);
  return out;
}

Attention attention_of(const ModelInput& capture, const AttentionCall& call,
                       const std::string& tokenizer_path) {
  const data::Hdf5Reader file(capture.path);
  const nn::ModelConfig config = config_of(file);
  const nn::ModelShape shape = config.shape();
  const Tensor ids = ids_of(file);
  const int64_t T = ids.dim(1);
  const int64_t k = file.has_attribute("/", "k") ? file.int_attribute("/", "k") : 0;
  Attention out{.name = capture.name,
                .method = config.attention,
                .teacher = "the model's own dense attention",
                .source = capture.path,
                .layers = shape.layers,
                .heads = shape.heads,
                .k = distill::kept_keys_of(config, k).value_or(0),
                .settings = settings_of(config),
                .ids = std::vector<int32_t>(ids.data<int32_t>(), ids.data<int32_t>() + T),
                .tokens = {},
                .text = {}};
  const auto tokenizer = tokenizer_for(tokenizer_path, file.string_attribute("/", "model"));
  out.tokens = token_texts(tokenizer.get(), out.ids);
  const distill::TextPass pass = pass_of(call);
  distill::LayerCollector collector(pass);
  int64_t columns = 0;
  std::vector<distill::Recall> recall;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const distill::LayerView view = CapturedLayer(file, layer, shape.heads, T).view(shape.causal);
    if (layer == 0) {
      out.sparse = view.has_mask();
      columns = view.columns();
      if (out.sparse) recall.resize(size_t(shape.layers));
    }
    check_format(view.has_mask() == out.sparse && view.columns() == columns, file.path(),
                 ": layer ", layer, " and layer 0 do not have the same parts: a mask, ",
                 "an estimate of as many columns");
    collector.add(layer, view);
    if (!view.has_mask()) continue;
    const distill::MaskBudget settings = distill::mask_budget(config, {.k = k});
    recall[size_t(layer)] = distill::attention_recall(view.teacher, view.mask, settings.columns,
                                                      {.causal = shape.causal}, settings.select);
  }
  out.text = collector.take(std::move(recall));
  drop_without_rows(out.text.recall);
  return out;
}

}  // namespace brine::report
