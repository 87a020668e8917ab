// Small dumps for tests: a spec, and what its teacher "computed" for any sample. Nothing here calls
// a kernel, so that forked children may use it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include "data/dump/dump_reader.h"
#include "data/dump/dump_writer.h"
#include "tensor/base/math.h"
#include "tensor/base/random.h"
#include "tests/messages.h"

namespace brine::test {

inline data::DumpSpec small_spec(int64_t samples = 7) {
  data::DumpSpec s{.content = data::DumpContent::maps,
                   .dtype = Dtype::f32,
                   .layers = 2,
                   .heads = 3,
                   .head_size = 4,
                   .key_heads = 1,
                   .hidden = 10,
                   .tokens = 5,
                   .vocab = 11,
                   .value = true,
                   .top_n = 4,
                   .stores_tokens = true,
                   .teacher_hash = std::string(64, 'a'),
                   .tokenizer_hash = std::string(64, 'b'),
                   .corpus_hash = std::string(64, 'c'),
                   .samples = samples,
                   .windows = {}};
  for (int64_t i = 0; i < samples; ++i) s.windows.push_back(3 * i + 1);
  return s;
}

// The same with its attention pooled into 4 columns.
inline data::DumpSpec pooled_spec(int64_t samples = 7) {
  data::DumpSpec s = small_spec(samples);
  s.content = data::DumpContent::pooled;
  s.columns = 4;
  return s;
}

// The same numbers for the same sample, in any batch.
inline float noise(int64_t sample, int64_t field, int64_t i) {
  uint64_t x = uint64_t(sample * 1000003 + field * 7919 + i + 1) * 0x9e3779b97f4a7c15ull;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 32;
  return float(int64_t(x % 20001) - 10000) / 4096.0f;
}

inline Tensor noise_tensor(std::span<const int64_t> samples, int64_t field, Shape shape) {
  Tensor t = Tensor::empty(shape);
  int64_t count = shape.numel() / shape[0];
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t i = 0; i < count; ++i)
      t.data<float>()[b * count + i] = noise(samples[size_t(b)], field, i);
  return t;
}

inline int64_t length_of(const data::DumpSpec& s, int64_t sample) {
  return sample % 3 == 2 ? s.tokens - 1 : s.tokens;
}

inline Tensor maps_of(const data::DumpSpec& s, std::span<const int64_t> samples, int64_t field) {
  Tensor t = noise_tensor(samples, field, {int64_t(samples.size()), s.heads, s.tokens, s.tokens});
  float* row = t.data<float>();
  for (size_t b = 0; b < samples.size(); ++b) {
    for (int64_t r = 0; r < s.heads * s.tokens; ++r, row += s.tokens) {
      int64_t query = r % s.tokens, length = length_of(s, samples[b]);
      auto hidden = [&](int64_t j) { return (s.causal && j > query) || j >= length; };
      double sum = 0;
      for (int64_t j = 0; j < s.tokens; ++j) {
        row[j] = hidden(j) ? 0.0f : std::exp(row[j]);
        sum += row[j];
      }
      for (int64_t j = 0; j < s.tokens; ++j) row[j] = float(row[j] / sum);
    }
  }
  return t;
}

// Masses of the columns and the two sums of every row.
inline TeacherSummary pooled_of(const data::DumpSpec& s, std::span<const int64_t> samples,
                                int64_t field) {
  Tensor maps = maps_of(s, samples, field);
  int64_t n = int64_t(samples.size()), T = s.tokens, K = s.columns;
  TeacherSummary out{Tensor::zeros({n, s.heads, T, K}), Tensor::zeros({n, s.heads, T}),
                     Tensor::zeros({n, s.heads, T})};
  for (int64_t r = 0; r < n * s.heads * T; ++r) {
    int64_t length = length_of(s, samples[size_t(r / (s.heads * T))]);
    int64_t query = r % T, w = s.causal ? std::min(query + 1, length) : length;
    const float* row = maps.data<float>() + r * T;
    for (int64_t c = 0; c < K; ++c) {
      for (int64_t j = math::column_begin(c, w, K); j < math::column_begin(c + 1, w, K); ++j) {
        out.tau.data<float>()[r * K + c] += row[j];
        out.t_log_t.data<float>()[r] += row[j] * std::log(row[j]);
        out.t_square.data<float>()[r] += row[j] * row[j];
      }
    }
  }
  return out;
}

inline data::DumpBatch batch_of(const data::DumpSpec& s, const std::vector<int64_t>& samples) {
  using namespace data;
  int64_t n = int64_t(samples.size());
  DumpBatch batch;
  for (int64_t l = 0; l < s.layers; ++l) {
    TensorSet layer;
    if (s.content == DumpContent::maps) layer["attention"] = maps_of(s, samples, 10 * l);
    if (s.content == DumpContent::qk) {
      layer["query"] = noise_tensor(samples, 10 * l + 1, {n, s.heads, s.tokens, s.head_size});
      layer["key"] = noise_tensor(samples, 10 * l + 2, {n, s.key_heads, s.tokens, s.head_size});
    }
    if (s.value)
      layer["value"] = noise_tensor(samples, 10 * l + 5, {n, s.key_heads, s.tokens, s.head_size});
    if (s.content == DumpContent::pooled) {
      const TeacherSummary pooled = pooled_of(s, samples, 10 * l);
      layer["tau"] = pooled.tau;
      layer["t_log_t"] = pooled.t_log_t;
      layer["t_square"] = pooled.t_square;
    }
    if (s.context)
      layer["attention_output"] =
          noise_tensor(samples, 10 * l + 3, {n, s.tokens, s.heads * s.head_size});
    if (s.output) layer["output"] = noise_tensor(samples, 10 * l + 4, {n, s.tokens, s.hidden});
    batch.layers.push_back(layer);
  }
  if (s.logits != DumpLogits::none) {
    Tensor logits = noise_tensor(samples, 1000, {n, s.tokens, s.vocab});
    if (s.logits == DumpLogits::top) {
      keep_top_logits(batch, logits, s.top_n);
    } else {
      DumpBatch top;
      keep_top_logits(top, logits, 1);
      batch.tensors["logits"] = logits;
      batch.tensors["lse"] = top.tensors["lse"];
    }
  }
  std::vector<int64_t> lengths;
  for (int64_t sample : samples) {
    lengths.push_back(length_of(s, sample));
    if (!s.windows.empty()) batch.windows.push_back(s.windows[size_t(sample)]);
  }
  batch.lengths = Tensor::from(lengths, {n});
  if (s.stores_tokens) {
    Tensor& tokens = batch.tensors["tokens"];
    tokens = Tensor::empty({n, s.tokens}, Dtype::i32);
    for (int64_t i = 0; i < n * s.tokens; ++i)
      tokens.data<int32_t>()[i] =
          int32_t((samples[size_t(i / s.tokens)] * 5 + i % s.tokens) % s.vocab);
  }
  return batch;
}

inline std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(first + i);
  return all;
}

// Adds the missing samples, `step` at a time.
inline void fill_dump(data::DumpWriter& writer, const data::DumpSpec& spec, int64_t step = 2) {
  for (auto run = writer.missing(); run.samples > 0; run = writer.missing())
    writer.put(batch_of(spec, range(run.first, std::min(step, run.samples))));
  writer.finish();
}

// `stored` is what reading back `given` must give under the dump's type.
inline bool same_floats(const Tensor& stored, const Tensor& given, Dtype dtype) {
  if (stored.defined() != given.defined()) return false;
  if (!stored.defined()) return true;
  if (stored.shape() != given.shape() || stored.dtype() != Dtype::f32) return false;
  for (int64_t i = 0; i < stored.numel(); ++i) {
    float x = given.data<float>()[i];
    float wanted = dtype == Dtype::f16 ? float(f16(x)) : dtype == Dtype::bf16 ? float(bf16(x)) : x;
    if (stored.data<float>()[i] != wanted) return false;
  }
  return true;
}

// Of the type that the files have, and the same numbers as the tensor that was widened.
inline bool same_stored(const Tensor& stored, const Tensor& widened, Dtype dtype) {
  if (!stored.defined()) return !widened.defined();
  if (stored.dtype() != dtype || stored.shape() != widened.shape()) return false;
  return stored.to_vector() == widened.to_vector();
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw(), b.raw(), size_t(a.numel()) * item_size(a.dtype())) == 0;
}

// Calls f(name, a's, b's, whether it has the dump's type) for the tensors of two batches with the
// same number of layers.
template <class F>
void each_pair(const data::DumpBatch& a, const data::DumpBatch& b, F f) {
  for (const data::TeacherTensor* row : data::teacher_tensors()) {
    const bool typed = row->type == data::TeacherTensor::Type::as_dump;
    if (!row->of_layer) f(row->name, a.tensors[row->name], b.tensors[row->name], typed);
    for (size_t l = 0; row->of_layer && l < a.layers.size(); ++l)
      f(row->name, a.layers[l][row->name], b.layers[l][row->name], typed);
  }
  f("lengths", a.lengths, b.lengths, false);
}

// What differs between a batch read and the one given; empty when nothing does.
inline std::string batch_differences(const data::DumpSpec& s, const data::DumpBatch& read,
                                     const data::DumpBatch& given) {
  std::string text;
  each_pair(read, given,
            [&](const std::string& name, const Tensor& a, const Tensor& b, bool typed) {
              if (!(typed ? same_floats(a, b, s.dtype) : same_bytes(a, b))) text += name + " ";
            });
  return text + (read.windows == given.windows ? "" : "windows ");
}

// What differs between a batch read as it is stored and the same one in f32, which maps always are.
inline std::string stored_differences(const data::DumpSpec& s, const data::DumpBatch& stored,
                                      const data::DumpBatch& widened) {
  std::string text;
  each_pair(stored, widened,
            [&](const std::string& name, const Tensor& a, const Tensor& b, bool typed) {
              const bool kept = typed && name != "attention";
              if (!(kept ? same_stored(a, b, s.dtype) : same_bytes(a, b))) text += name + " ";
            });
  return text;
}

}  // namespace brine::test
