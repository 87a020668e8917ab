// Teacher dumps: the tensors that a teacher computed for a list of samples, in a directory of HDF5
// shards with a manifest. docs/formats.md is the schema; dump_writer.h writes, dump_reader.h
// reads.
#pragma once

#include <string>
#include <vector>

#include "data/config/named.h"
#include "data/dump/teacher_tensors.h"
#include "data/io/file_io.h"

namespace brine::data {

inline constexpr int64_t kDumpVersion = 4;

enum class DumpContent : uint8_t {
  none,
  maps,    // the attention itself
  qk,      // the teacher's q and k; attention = softmax(q k^T / sqrt(d)) is recomputed
  pooled,  // the mass of each of K columns and two sums per row: everything that L_approx needs at
           // that K
};
inline constexpr Named<DumpContent> kDumpContents[] = {{DumpContent::qk, "qk"},
                                                       {DumpContent::maps, "maps"},
                                                       {DumpContent::pooled, "pooled"},
                                                       {DumpContent::none, "none"}};
enum class DumpLogits : uint8_t { none, top, full };
inline constexpr Named<DumpLogits> kDumpLogits[] = {
    {DumpLogits::top, "top"}, {DumpLogits::full, "full"}, {DumpLogits::none, "none"}};
inline const char* name_of(DumpContent content) { return name_of(content, kDumpContents); }
inline const char* name_of(DumpLogits logits) { return name_of(logits, kDumpLogits); }
inline constexpr Named<Dtype> kDumpTypes[] = {
    {Dtype::f32, "f32"}, {Dtype::f16, "f16"}, {Dtype::bf16, "bf16"}};

// Instead of a hash that is unknown to the writer of a dump; nothing is compared with it.
inline constexpr char kNoHash[] = "none";

// The specification of a dump: the same in its manifest and in every shard.
struct DumpSpec {
  DumpContent content = DumpContent::qk;
  Dtype dtype = Dtype::f16;  // f32, f16 or bf16: of attention, q, k, context, output, logits
  bool causal = true;
  bool packed = true;  // for causal maps: row t has t + 1 values, T (T + 1) / 2 for each head
  int64_t layers = 0, heads = 0, head_size = 0;
  int64_t key_heads = 0;  // G of keys and values, divides heads: head h reads group h G / H
  int64_t hidden = 0;     // C of the layers' outputs, which need not be heads x head_size
  int64_t tokens = 0;     // T, of every sample; shorter ones are padded at the end
  // Samples have individual lengths and padding is not stored; `tokens` is the longest.
  bool ragged = false;
  int64_t vocab = 0;
  int64_t columns = 0;  // K of pooled attention, otherwise 0
  // Which layer tensors there are in addition to the attention.
  bool value = false, context = true, output = true;
  DumpLogits logits = DumpLogits::top;
  int64_t top_n = 64;
  int64_t classes = 0;  // logits of a classification head, for each sample; 0: none
  bool stores_tokens = false;
  // The numbers of the dumped layers in the model, ascending, where not all of them are dumped.
  std::vector<int64_t> model_layers = {};
  // SHA-256 in hex of the teacher's weights, of its tokenizer and of the corpus ("none" allowed
  // for the last when there are no windows).
  std::string teacher_hash, tokenizer_hash, corpus_hash = "none";
  int64_t samples = 0;
  // The corpus window, or the number of the task's text, of each sample; empty: none stored.
  std::vector<int64_t> windows = {};
  std::vector<int64_t> lengths = {};  // of each sample if ragged, otherwise empty

  // Whether the tensors of a part are stored (teacher_tensors.h).
  bool has(std::string_view part) const;
  bool has_windows() const { return !windows.empty(); }
  // True for maps whose rows are packed.
  bool packs_rows() const { return content == DumpContent::maps && causal && packed; }
  // Values of one head's map of t tokens.
  int64_t map_values(int64_t t) const { return packs_rows() ? t * (t + 1) / 2 : t * t; }
};

// Throws Error(where, ": ...") when a field is missing or two fields are inconsistent. `lengths`
// false: the lengths of a ragged dump are not known yet.
void check_spec(const DumpSpec& spec, const std::string& where, bool lengths = true);
// The fields that differ, "layers 4 and 6, dtype f16 and f32"; empty when equal.
std::string spec_differences(const DumpSpec& a, const DumpSpec& b);

// B samples: the available tensors of the table (teacher_tensors.h), [B, ...], f32 unless the
// stored type was requested. In a ragged dump T is the longest of the batch.
struct DumpBatch {
  std::vector<TensorSet> layers;
  TensorSet tensors;  // tensors without a layer
  Tensor lengths;     // i64 [B]
  std::vector<int64_t> windows;
  std::vector<int64_t> samples;  // their numbers in the dump; set by readers
};

// The n largest logits of every row of [B, T, V] (ties: the smaller id first), their ids and the
// log-sum-exp of the row, as the tensors logits, logit_ids and lse of `batch`.
void keep_top_logits(DumpBatch& batch, const Tensor& logits, int64_t n);

struct DumpSize {
  // Bytes of the values before compression; for the longest sample if ragged.
  uint64_t per_sample = 0, total = 0;
  int64_t samples_per_shard = 0, shards = 0;
};
DumpSize dump_size(const DumpSpec& spec, uint64_t shard_bytes = uint64_t(1) << 30);

// One dataset of a shard of `samples` samples.
struct DumpDataset {
  std::string name;
  Dtype dtype;
  Shape shape;  // [samples, ...]; if ragged, [all their tokens, ...]
  // One sample, in pieces of at most 4 MiB if it divides evenly; if ragged, rows of 256 KiB, used
  // only with a filter.
  Shape chunk;
};
// `first` is the shard's first sample, whose length matters if ragged.
std::vector<DumpDataset> dump_datasets(const DumpSpec& spec, int64_t samples, int64_t first = 0);
std::string layer_dataset(int64_t layer, const char* name);

struct DumpShard {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
  int64_t first = 0, samples = 0;
};

struct DumpManifest {
  DumpSpec spec;
  int64_t samples_per_shard = 0;
  std::vector<DumpShard> shards;  // in the order of their samples; with gaps while it is written

  int64_t stored_samples() const;
  bool complete() const { return stored_samples() == spec.samples; }
};

Path manifest_path(const Path& dir);
// Throws when it is missing, malformed, of another version or inconsistent.
DumpManifest read_manifest(const Path& dir);
void write_manifest(const Path& dir, const DumpManifest& manifest);

class Hdf5Reader;
class Hdf5Writer;
// The spec as attributes of a shard's root, with its first sample and their number.
void write_shard_header(Hdf5Writer& file, const DumpSpec& spec, int64_t first, int64_t samples);
// Reads them back (windows and lengths stay empty); returns the first sample; spec.samples is the
// number of samples.
DumpSpec read_shard_header(const Hdf5Reader& file, int64_t& first);
// Checks that every dataset of the schema exists with the correct type and shape. `first` as in
// dump_datasets().
void check_shard_datasets(const Hdf5Reader& file, const DumpSpec& spec, int64_t first = 0);

// Throws when the dump was made with another teacher, tokenizer or (if it stores windows) corpus;
// the error names both hashes. An empty hash is not compared.
struct DumpSource {
  std::string teacher_hash, tokenizer_hash, corpus_hash;
};
void check_dump_source(const DumpSpec& spec, const Path& dir, const DumpSource& source);

}  // namespace brine::data
