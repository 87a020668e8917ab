// The specification of a dump: its fields, its sizes, its datasets.
#include "data/dump/dump.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "data/config/schema_text.h"
#include "data/dump/dump_fields.h"
#include "tensor/functions/top_logits.h"

namespace brine::data {
namespace {

constexpr int64_t kChunkBytes = int64_t(4) << 20;
constexpr int64_t kRaggedChunkBytes = int64_t(256) << 10;

bool is_hash(const std::string& text) {
  auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == 64 && std::all_of(text.begin(), text.end(), hex);
}

// One sample per chunk, cut along axis 1 into equal pieces from 4 MiB on.
Shape chunk_of(const Shape& shape, Dtype dtype) {
  Shape chunk = shape;
  chunk[0] = 1;
  if (shape.rank() < 2) {
    chunk[0] = shape[0];
    return chunk;
  }
  int64_t bytes = chunk.numel() * int64_t(item_size(dtype));
  int64_t wanted = std::min((bytes + kChunkBytes - 1) / kChunkBytes, shape[1]);
  for (int64_t pieces = wanted; pieces <= std::min(shape[1], 8 * wanted); ++pieces) {
    if (shape[1] % pieces == 0) {
      chunk[1] = shape[1] / pieces;
      break;
    }
  }
  return chunk;
}

// A number of rows of tokens: a sample has several of them.
Shape ragged_chunk(const Shape& shape, Dtype dtype) {
  Shape chunk = shape;
  int64_t row = shape.numel() / shape[0] * int64_t(item_size(dtype));
  chunk[0] = std::clamp<int64_t>(kRaggedChunkBytes / row, 1, shape[0]);
  return chunk;
}

// Sums over the samples of a shard of a ragged dump: of tokens, and of the values of a map.
struct RaggedSize {
  int64_t tokens = 0, map = 0;
};
RaggedSize ragged_size(const DumpSpec& s, int64_t first, int64_t n) {
  RaggedSize size;
  for (int64_t i = first; i < first + n; ++i) {
    size.tokens += s.lengths[size_t(i)];
    size.map += s.map_values(s.lengths[size_t(i)]);
  }
  return size;
}

// A spec of one sample of the greatest length.
DumpSpec longest_sample(DumpSpec s) {
  if (s.ragged) s.lengths = {s.tokens};
  return s;
}

uint64_t bytes_of(const std::vector<DumpDataset>& datasets) {
  uint64_t bytes = 0;
  for (const DumpDataset& d : datasets) bytes += uint64_t(d.shape.numel()) * item_size(d.dtype);
  return bytes;
}

void check_lengths(const DumpSpec& s, const std::string& where) {
  check_format(int64_t(s.lengths.size()) == (s.ragged ? s.samples : 0), where, ": has ",
               s.lengths.size(), " lengths for ", s.ragged ? s.samples : 0,
               " samples with individual lengths");
  for (int64_t length : s.lengths)
    check_format(length >= 1 && length <= s.tokens, where, ": length ", length, " is not in 1 to ",
                 s.tokens);
}

}  // namespace

bool DumpSpec::has(std::string_view part) const {
  auto& all = teacher_tensors();
  return std::any_of(all.begin(), all.end(), [&](const TeacherTensor* tensor) {
    return tensor->part == part && tensor->stored_in(*this);
  });
}

void check_spec(const DumpSpec& s, const std::string& where, bool lengths) {
  check_format(s.dtype == Dtype::f32 || s.dtype == Dtype::f16 || s.dtype == Dtype::bf16, where,
               ": dtype is ", s.dtype, ", must be f32, f16 or bf16");
  auto in_range = [&](const char* name, int64_t value, int64_t lowest) {
    check_format(value >= lowest && value <= (int64_t(1) << 31), where, ": ", name, " is ", value,
                 ", must be from ", lowest, " to 2^31");
  };
  in_range("layers", s.layers, 1);
  in_range("heads", s.heads, 1);
  in_range("head_size", s.head_size, 1);
  in_range("key_heads", s.key_heads, 1);
  in_range("hidden", s.hidden, 1);
  in_range("tokens", s.tokens, 1);
  in_range("vocab", s.vocab, 1);
  in_range("samples", s.samples, 1);
  if (s.content == DumpContent::pooled) {
    in_range("columns", s.columns, 1);
  } else {
    check_format(s.columns == 0, where, ": columns is ", s.columns, ", but the content is ",
                 name_of(s.content), ", not pooled");
  }
  check_format(s.heads % s.key_heads == 0, where, ": ", s.key_heads,
               " heads of keys do not divide ", s.heads, " heads");
  check_format(s.layers <= 10000, where, ": layers is ", s.layers, ", at most 10000 are possible");
  check_format(s.model_layers.empty() || int64_t(s.model_layers.size()) == s.layers, where,
               ": model_layers has ", s.model_layers.size(), " numbers for ", s.layers, " layers");
  for (size_t i = 0; i < s.model_layers.size(); ++i) {
    check_format(s.model_layers[i] >= (i ? s.model_layers[i - 1] + 1 : 0), where,
                 ": model_layers are not ascending numbers");
  }
  if (s.logits == DumpLogits::top)
    check_format(s.top_n >= 1 && s.top_n <= s.vocab, where, ": top_n is ", s.top_n,
                 ", must be from 1 to ", s.vocab, ", the vocabulary");
  for (const auto& [name, hash] :
       {std::pair{"teacher_hash", &s.teacher_hash}, {"tokenizer_hash", &s.tokenizer_hash}}) {
    check_format(is_hash(*hash) || *hash == kNoHash, where, ": ", name, " is neither ", kNoHash,
                 " nor a SHA-256 of 64 lower-case digits");
  }
  check_format(is_hash(s.corpus_hash) ||
                   (s.corpus_hash == kNoHash && (s.windows.empty() || s.stores_tokens)),
               where,
               ": corpus_hash is not a SHA-256 of 64 lower-case digits (\"none\" only with "
               "tokens or without windows)");
  check_format(s.windows.empty() || int64_t(s.windows.size()) == s.samples, where, ": has ",
               s.windows.size(), " windows for ", s.samples, " samples");
  for (int64_t w : s.windows) check_format(w >= 0, where, ": window ", w, " is negative");
  check_format(s.classes >= 0 && s.classes <= (int64_t(1) << 31), where, ": classes is ",
               s.classes);
  // No product of sizes may exceed the range of a 64-bit number.
  double widest = std::max({double(s.heads) * double(s.tokens) * double(s.tokens),
                            double(s.heads) * double(s.tokens) * double(s.head_size),
                            double(s.heads) * double(s.tokens) * double(s.columns),
                            double(s.tokens) * double(s.hidden), double(s.tokens) * double(s.vocab),
                            double(s.classes)});
  check_format(widest * double(s.layers) * double(s.samples) < 1e17, where,
               ": the sizes are impossibly large");
  if (lengths) check_lengths(s, where);
}

std::string spec_differences(const DumpSpec& a, const DumpSpec& b) {
  std::string text;
  auto differ = [&](const std::string& name, const auto& in_a, const auto& in_b) {
    if (in_a != in_b) text += (text.empty() ? "" : ", ") + join(name, " ", in_a, " and ", in_b);
  };
  auto of_a = spec_fields(a), of_b = spec_fields(b);
  for (size_t i = 0; i < of_a.size(); ++i)
    differ(of_a[i].name, of_a[i].as_text(), of_b[i].as_text());
  differ("samples", a.samples, b.samples);
  if (text.empty() && a.windows != b.windows) text = "the list of windows";
  if (text.empty() && a.lengths != b.lengths) text = "the list of lengths";
  return text;
}

std::string layer_dataset(int64_t layer, const char* name) {
  char text[64];
  std::snprintf(text, sizeof text, "layers/%02d/%s", int(layer), name);
  return text;
}

std::vector<DumpDataset> dump_datasets(const DumpSpec& s, int64_t n, int64_t first) {
  std::vector<DumpDataset> all;
  RaggedSize sum;
  if (s.ragged) sum = ragged_size(s, first, n);
  auto add = [&](const std::string& name, Dtype dtype, const Shape& shape) {
    all.push_back({name, dtype, shape, chunk_of(shape, dtype)});
  };
  auto add_tensor = [&](const TeacherTensor& tensor, int64_t layer) {
    const std::string name = tensor.path(layer);
    const Dtype dtype = tensor.dtype(s);
    Shape shape = tensor.padded(s, n, s.tokens);
    if (tensor.is_map()) {
      if (s.ragged) {
        shape = {s.heads * sum.map};
      } else if (s.packs_rows()) {
        shape = {n, s.heads, s.map_values(s.tokens)};
      }
    } else if (s.ragged && tensor.has_tokens()) {  // one row for each token of each head
      Shape rows{tensor.by_head() ? shape[1] * sum.tokens : sum.tokens};
      for (int i = tensor.by_head() ? 3 : 2; i < shape.rank(); ++i) rows.push_back(shape[i]);
      all.push_back({name, dtype, rows, ragged_chunk(rows, dtype)});
      return;
    }
    add(name, dtype, shape);
  };
  for (int64_t l = 0; l < s.layers; ++l) {
    for (const TeacherTensor* tensor : teacher_tensors())
      if (tensor->of_layer && tensor->stored_in(s)) add_tensor(*tensor, l);
  }
  for (const TeacherTensor* tensor : teacher_tensors())
    if (!tensor->of_layer && tensor->stored_in(s)) add_tensor(*tensor, 0);
  if (s.has_windows()) add("windows", Dtype::i64, {n});
  add("lengths", Dtype::i64, {n});
  return all;
}

DumpSize dump_size(const DumpSpec& spec, uint64_t shard_bytes) {
  check_spec(spec, "dump");
  DumpSize size;
  size.per_sample = bytes_of(dump_datasets(longest_sample(spec), 1));
  size.total = spec.ragged ? bytes_of(dump_datasets(spec, spec.samples))
                           : size.per_sample * uint64_t(spec.samples);
  size.samples_per_shard =
      std::clamp<int64_t>(int64_t(shard_bytes / size.per_sample), 1, spec.samples);
  size.shards = (spec.samples + size.samples_per_shard - 1) / size.samples_per_shard;
  return size;
}

void check_dump_source(const DumpSpec& spec, const Path& dir, const DumpSource& source) {
  auto compare = [&](const char* what, const std::string& in_dump, const std::string& given) {
    check_format(given.empty() || in_dump == kNoHash || in_dump == given, dir.string(),
                 ": the dump was made with the ", what, " ", in_dump, ", but the given one is ",
                 given);
  };
  compare("teacher", spec.teacher_hash, source.teacher_hash);
  compare("tokenizer", spec.tokenizer_hash, source.tokenizer_hash);
  if (spec.has_windows()) compare("corpus", spec.corpus_hash, source.corpus_hash);
}

void keep_top_logits(DumpBatch& batch, const Tensor& logits, int64_t n) {
  check(logits.defined() && logits.rank() == 3 && logits.dtype() == Dtype::f32,
        "keep_top_logits: the logits must be f32 [B, T, V]");
  int64_t vocab = logits.dim(2);
  check(n >= 1 && n <= vocab, "keep_top_logits: ", n, " of ", vocab, " logits");
  const int64_t B = logits.dim(0), T = logits.dim(1);
  const TopLogits top = largest_logits(logits, n);
  batch.tensors["logits"] = top.values.view({B, T, n});
  batch.tensors["logit_ids"] = top.ids.view({B, T, n});
  batch.tensors["lse"] = top.lse.view({B, T});
  const float* lse = top.lse.data<float>();
  for (int64_t r = 0; r < B * T; ++r)
    check(std::isfinite(lse[r]), "keep_top_logits: row ", r, " of the logits is not finite");
}

}  // namespace brine::data
