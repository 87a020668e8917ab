// Saving a generation to a file and continuing it.
#include <chrono>
#include <optional>

#include "nn/generate/generation.h"
#include "nn/io/model_io.h"

namespace brine::nn {
namespace {

constexpr const char* kFormat = "brine-generation-1";

std::string prefix_of(size_t i) { return join("sequences.", i, "."); }

// As --cache names it.
std::string cache_of(const GenerationRequest& r) {
  if (r.coded) return "q8";
  return r.cache ? r.cache == Dtype::f32 ? "exact" : join(*r.cache) : "f32";
}

const std::string& meta(const data::Safetensors& file, const std::string& key) {
  auto it = file.metadata().find(key);
  check(it != file.metadata().end(), file.path().string(), ": no ", key,
        " in its header; not a state of brine generate");
  return it->second;
}

}  // namespace

void Generation::save(const data::Path& path, const std::string& model_hash) const {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& s = sequences_[i];
    check(!finished_[i].empty(), "generate: save() before run(), or without keep_states");
    tensors.push_back({prefix_of(i) + "ids", Tensor::from(s.ids, {int64_t(s.ids.size())})});
    tensors.push_back({prefix_of(i) + "drawn", Tensor::from(std::vector<int64_t>{s.drawn}, {1})});
    for (const NamedTensor& t : finished_[i]) {
      tensors.push_back({prefix_of(i) + t.name, t.tensor});
    }
  }
  data::save_safetensors(path, tensors,
                         {{"format", kFormat},
                          {"sha256", tensor_hash(tensors)},
                          {"model", model_hash},
                          {"attention", model_.attention_name()},
                          {"sequences", std::to_string(sequences_.size())},
                          {"query_skip", std::to_string(request_.options.query_skip)},
                          {"cache", cache_of(request_)}});
}

void Generation::load(const data::Path& path, const std::string& model_hash,
                      const std::vector<std::vector<int32_t>>& more,
                      const std::function<bool(const GenerationMemory&)>& before) {
  const auto begin = std::chrono::steady_clock::now();
  const data::Safetensors file(path);
  const std::string name = path.string();
  check(meta(file, "format") == kFormat, name, ": format '", meta(file, "format"), "', wanted ",
        kFormat);
  check(meta(file, "model") == model_hash, name,
        ": written by a model with other weights or attention (", meta(file, "model").substr(0, 12),
        ", this one is ", model_hash.substr(0, 12), ")");
  const auto method = file.metadata().find("attention");
  if (method != file.metadata().end())  // earlier versions wrote none
    check(method->second == model_.attention_name(), name, ": decoded with attention '",
          method->second, "', now it is '", model_.attention_name(), "'");
  const std::string skip = std::to_string(request_.options.query_skip);
  check(meta(file, "query_skip") == skip, name, ": decoded with --query-skip ",
        meta(file, "query_skip"), ", now it is ", skip);
  check(meta(file, "cache") == cache_of(request_), name, ": its cache is in ", meta(file, "cache"),
        ", now it would be in ", cache_of(request_), "; --cache ", meta(file, "cache"),
        " continues it");
  check(meta(file, "sha256") == tensor_hash(file), name, ": content does not match its checksum");
  size_t count = 0;
  while (file.contains(prefix_of(count) + "ids")) ++count;
  check(count > 0 && meta(file, "sequences") == std::to_string(count), name, ": holds ", count,
        " sequences of ", meta(file, "sequences"));
  check(more.empty() || more.size() == count, "generate: ", more.size(), " prompts for the ", count,
        " sequences of ", name);
  const int64_t positions = model_.shape().max_positions;
  for (size_t i = 0; i < count; ++i) {
    const Tensor ids = file.tensor(prefix_of(i) + "ids"),
                 drawn = file.tensor(prefix_of(i) + "drawn");
    check(ids.dtype() == Dtype::i32 && ids.rank() == 1 && drawn.dtype() == Dtype::i64 &&
              drawn.shape() == Shape{1} && drawn.data<int64_t>()[0] >= 0 &&
              drawn.data<int64_t>()[0] <= ids.numel(),
          name, ": sequence ", i, " is damaged");
    Sequence s;
    s.ids.assign(ids.data<int32_t>(), ids.data<int32_t>() + ids.numel());
    if (!more.empty()) s.ids.insert(s.ids.end(), more[i].begin(), more[i].end());
    for (int32_t id : s.ids) {
      check(id >= 0 && id < model_.shape().vocab_size, name, ": token ", id,
            " is outside the vocabulary");
    }
    check(int64_t(s.ids.size()) < positions, "generate: sequence ", i, " of ", name, " has ",
          s.ids.size(), " tokens, the model ", positions, " positions");
    s.prompt_tokens = int64_t(s.ids.size());
    s.drawn = drawn.data<int64_t>()[0];
    s.text = TextStream(request_.stops);
    sequences_.push_back(std::move(s));
  }
  // Sequences have different numbers of tokens to process: of several each is processed separately.
  const bool several = count > 1;
  if (before) {
    size_t longest = 0;
    for (const Sequence& s : sequences_) longest = std::max(longest, s.ids.size());
    GenerationMemory memory = memory_of(model_, request_, int64_t(count), int64_t(longest));
    if (several) memory.state += 2 * memory.state / int64_t(count);
    if (!before(memory)) return;
  }
  make_room();
  for (size_t i = 0; i < count; ++i) {
    std::vector<NamedTensor> layer_tensors;
    for (const data::SafetensorsEntry& e : file.entries()) {
      const std::string prefix = prefix_of(i) + "layers.";
      if (e.name.rfind(prefix, 0) != 0) continue;
      layer_tensors.push_back({e.name.substr(prefix_of(i).size()), file.tensor(e.name)});
    }
    std::optional<ModelState> separate;
    if (several)
      separate.emplace(model_, StateRequest{.capacity = state_->capacity(),
                                            .cache = request_.cache,
                                            .coded = request_.coded,
                                            .options = request_.options});
    ModelState& alone = several ? *separate : *state_;
    alone.restore(0, layer_tensors, name);
    const std::vector<int32_t>& ids = sequences_[i].ids;
    check(alone.length(0) < int64_t(ids.size()), name, ": sequence ", i, " holds ", alone.length(0),
          " tokens of ", ids.size());
    const std::vector<int32_t> rest(ids.begin() + alone.length(0), ids.end());
    hidden_[i] =
        prefill(model_, alone, 0, Tensor::from(rest, {int64_t(rest.size())}), request_.part);
    if (several) state_->restore(int64_t(i), alone.saved(0), name);
  }
  prompt_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void take_calibration(const LoadedModel& m, const data::Path& path) {
  const data::Safetensors file(path);
  for (int64_t i = 0; i < m.config.shape().layers; ++i) {
    for (const auto& b : m.model->attention(i).named_buffers()) {
      const std::string name = join(prefix_of(0), "layers.", i, ".", b.path);
      const Tensor& value = b.buffer->value;
      if (!file.contains(name)) continue;
      const Tensor saved = file.tensor(name);
      check(saved.numel() == value.numel() && saved.dtype() == value.dtype(), path.string(), ": ",
            name, " is ", saved.dtype(), " ", saved.shape(), ", the model's ", value.shape());
      copy_into(value, saved.view(value.shape()));
    }
  }
  m.uncalibrated = false;
}

}  // namespace brine::nn
