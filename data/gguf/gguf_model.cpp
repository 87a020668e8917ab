// Reading a GGUF file's weights in the order of Hugging Face's checkpoints.
#include "data/gguf/gguf_model.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "data/io/printable.h"
#include "tensor/base/parallel.h"

namespace brine::data {
namespace {

constexpr int64_t kValuesAtOnce = 1 << 16;  // that a thread dequantises
constexpr int64_t kRowsAtOnce = 32;         // that are transposed together

// The row in the file that becomes row `row`: of each head, row 2 i + j is feature i + j d / 2.
int64_t row_in_file(int64_t row, int64_t head_size) {
  const int64_t head = row / head_size, feature = row % head_size, half = head_size / 2;
  return head * head_size + 2 * (feature % half) + feature / half;
}

}  // namespace

GgufModel::GgufModel(const Path& path)
    : WeightFile(path),
      header_(path, file()),
      architecture_(gguf_architecture(path.string(),
                                      header_.metadata.required_string("general.architecture"))),
      heads_(gguf_heads(header_.metadata, architecture_.name)) {
  for (const GgufTensor& t : header_.tensors) {
    facts_.tensors.insert(t.name);
    if (t.name == "token_embd.weight") facts_.vocabulary = t.shape.front();
  }
  check_format(facts_.vocabulary > 0, path.string(), ": has no tensor 'token_embd.weight'");
  facts_.tied = true;
  for (const GgufTensor& t : header_.tensors) add_tensor(t);
  sort_entries();
}

void GgufModel::add_tensor(const GgufTensor& t) {
  if (t.name == "rope_freqs.weight") return read_rope_factors(t);
  if (t.name == "output.weight") {
    if (repeats_embedding(t)) return;
    facts_.tied = false;
  }
  const HfName to = hf_name(architecture_, t.name);
  WeightInfo info{to.name, t.type->name, t.shape, file().data() + t.begin, t.size};
  const std::string where = join(path().string(), ": tensor '", shown(t.name), "'");
  if (to.layout == GgufLayout::transposed) {
    check_format(t.shape.size() == 2, where, ": has ", t.shape.size(), " axes, wanted 2");
    std::swap(info.shape[0], info.shape[1]);
  } else if (to.layout != GgufLayout::same) {
    const int64_t heads = to.layout == GgufLayout::query_pairs ? heads_.queries : heads_.keys;
    const uint64_t size = t.shape.front() / uint64_t(heads);
    check_format(t.shape.size() <= 2 && t.shape.front() % uint64_t(heads) == 0 && size % 2 == 0,
                 where, ": ", t.shape.front(), " rows are not ", heads,
                 " heads of an even number of features");
  }
  const bool fresh = stored_.emplace(to.name, Stored{t.type, to.layout}).second;
  check_format(fresh, where, ": another tensor is '", shown(to.name), "', too");
  add(std::move(info));
}

void GgufModel::read_rope_factors(const GgufTensor& t) {
  const std::string where = join(path().string(), ": tensor '", t.name, "'");
  check_format(t.type->dtype == Dtype::f32 && !t.type->dequantise && t.shape.size() == 1 &&
                   int64_t(t.shape[0]) == heads_.size / 2,
               where, ": has ", t.shape[0], " values of type ", t.type->name, ", wanted ",
               heads_.size / 2, " of F32");
  facts_.rope_factors.resize(t.shape[0]);
  std::memcpy(facts_.rope_factors.data(), file().data() + t.begin, t.size);
}

bool GgufModel::repeats_embedding(const GgufTensor& head) const {
  const auto embedding = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                                      [](auto& t) { return t.name == "token_embd.weight"; });
  return head.type == embedding->type && head.shape == embedding->shape &&
         std::memcmp(file().data() + head.begin, file().data() + embedding->begin, head.size) == 0;
}

Json GgufModel::config() const { return gguf_config(header_.metadata, architecture_, facts_); }

Dtype GgufModel::dtype_of(const WeightInfo& e) const { return stored_.at(e.name).type->dtype; }

bool GgufModel::in_order(const WeightInfo& e) const {
  const Stored& stored = stored_.at(e.name);
  return !stored.type->dequantise && stored.layout == GgufLayout::same;
}

void GgufModel::gather(const WeightInfo& e, const Tensor& to) const {
  const Stored& stored = stored_.at(e.name);
  if (stored.layout == GgufLayout::transposed) {
    gather_columns(e, stored, to);
  } else {
    gather_rows(e, stored, to);
  }
}

void GgufModel::gather_rows(const WeightInfo& e, const Stored& stored, const Tensor& to) const {
  const bool pairs = stored.layout != GgufLayout::same;
  const bool bias = e.shape.size() == 1;
  // A row of the file; one value of a bias in pairs, which is then not quantised.
  const int64_t n = bias && pairs ? 1 : int64_t(e.shape.back()), rows = to.numel() / n;
  check_format(n % stored.type->values == 0, path().string(), ": tensor '", shown(e.name),
               "' is a bias of type ", stored.type->name, ", which is not supported");
  const int64_t heads = stored.layout == GgufLayout::key_pairs ? heads_.keys : heads_.queries;
  const uint64_t bytes = uint64_t(n) / stored.type->values * stored.type->bytes;
  const size_t width = item_size(to.dtype());
  parallel_for(rows, std::max<int64_t>(1, kValuesAtOnce / n), [&](int64_t begin, int64_t end) {
    std::vector<float> values(to.dtype() == Dtype::f32 ? 0 : size_t(n));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = pairs ? row_in_file(row, rows / heads) : row;
      unsigned char* out = to.raw() + size_t(row * n) * width;
      float* y = values.empty() ? reinterpret_cast<float*>(out) : values.data();
      read_gguf_row(*stored.type, e.bytes + uint64_t(from) * bytes, n, y);
      if (!values.empty())
        convert_values(out, to.dtype(), reinterpret_cast<unsigned char*>(y), Dtype::f32, n);
    }
  });
}

void GgufModel::gather_columns(const WeightInfo& e, const Stored& stored, const Tensor& to) const {
  const int64_t n = int64_t(e.shape[0]), rows = int64_t(e.shape[1]);  // of a row, in the file
  const uint64_t bytes = uint64_t(n) / stored.type->values * stored.type->bytes;
  const size_t width = item_size(to.dtype());
  parallel_for(rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    std::vector<float> values(size_t(count * n)), column(static_cast<size_t>(count));
    for (int64_t r = 0; r < count; ++r) {
      read_gguf_row(*stored.type, e.bytes + uint64_t(begin + r) * bytes, n, &values[size_t(r * n)]);
    }
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < count; ++r) column[size_t(r)] = values[size_t(r * n + c)];
      convert_values(to.raw() + size_t(c * rows + begin) * width, to.dtype(),
                     reinterpret_cast<unsigned char*>(column.data()), Dtype::f32, count);
    }
  });
}

}  // namespace brine::data
