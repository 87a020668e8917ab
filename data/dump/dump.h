// Teacher dumps: what a teacher computed for a list of samples, in a directory of HDF5 shards with
// a manifest. docs/dump-format.md is the schema; dump_writer.h writes, dump_reader.h reads.
#pragma once

#include <string>
#include <vector>

#include "data/dump/teacher_tensors.h"
#include "data/io/file_io.h"

namespace brine::data {

// The newest; dumps that need no more are of version 1 or 2.
inline constexpr int64_t kDumpVersion = 3;

enum class DumpContent : uint8_t {
  none,
  maps,    // the attention itself
  qk,      // the teacher's q and k; attention = softmax(q k^T / sqrt(d)) is computed again
  pooled,  // the mass of each of K columns and two sums a row: all that L_approx needs at that K
};
enum class DumpLogits : uint8_t { none, top, full };
const char* name_of(DumpContent content);
const char* name_of(DumpLogits logits);

// What a dump is: equal in its manifest and in every shard.
struct DumpSpec {
  DumpContent content = DumpContent::qk;
  Dtype dtype = Dtype::f16;  // f32, f16 or bf16: of attention, q, k, context, output, logits
  bool causal = true;
  bool packed = true;  // of causal maps: row t holds t + 1 values, T (T + 1) / 2 for each head
  int64_t layers = 0, heads = 0, head_size = 0, hidden = 0;
  int64_t tokens = 0;  // T, of every sample; shorter ones are padded at the end
  // Samples have lengths of their own and nothing is stored for padding; `tokens` is the longest.
  bool ragged = false;
  int64_t vocab = 0;
  int64_t columns = 0;                 // K of pooled attention, otherwise 0
  bool context = true, output = true;  // which layer tensors are there besides the attention
  DumpLogits logits = DumpLogits::top;
  int64_t top_n = 64;
  int64_t classes = 0;  // logits of a classification head, for each sample; 0: none
  bool stores_tokens = false;
  // Registered tensors of the layers that are stored besides (teacher_tensors.h), in any order.
  std::vector<std::string> tensors = {};
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
  // True for maps whose rows lie packed.
  bool packs_rows() const { return content == DumpContent::maps && causal && packed; }
  // Values of one head's map of t tokens.
  int64_t map_values(int64_t t) const { return packs_rows() ? t * (t + 1) / 2 : t * t; }
  int64_t version() const {
    return content == DumpContent::pooled ? 3 : ragged || classes > 0 ? 2 : 1;
  }
};

// Throws Error(where, ": ...") when a field is missing or two of them disagree.
// `lengths` false: the lengths of a ragged dump are not there yet.
void check_spec(const DumpSpec& spec, const std::string& where, bool lengths = true);
// Throws where spec.tensors has a name that is not registered: a reader passes over such a tensor,
// but nobody can write or check it.
void check_known_tensors(const DumpSpec& spec, const std::string& where);

// The fields in which they differ, "layers 4 and 6, dtype f16 and f32"; empty when equal.
std::string spec_differences(const DumpSpec& a, const DumpSpec& b);

// B samples: the tensors of the table (teacher_tensors.h) that are there, [B, ...], f32 unless the
// reader was asked for what is stored. Of a ragged dump T is the batch's own.
struct DumpBatch {
  std::vector<TensorSet> layers;
  TensorSet tensors;  // those that belong to no layer
  Tensor lengths;     // i64 [B]
  std::vector<int64_t> windows;
  std::vector<int64_t> samples;  // their numbers in the dump; filled by readers
};

// The n largest logits of every row of [B, T, V] (ties: the smaller id first), their ids and the
// log-sum-exp of the row, as the tensors logits, logit_ids and lse of `batch`.
void keep_top_logits(DumpBatch& batch, const Tensor& logits, int64_t n);

struct DumpSize {
  // Bytes of the values before compression; of the longest sample if ragged.
  uint64_t per_sample = 0, total = 0;
  int64_t samples_per_shard = 0, shards = 0;
};
DumpSize dump_size(const DumpSpec& spec, uint64_t shard_bytes = uint64_t(1) << 30);

// One dataset of a shard of `samples` samples.
struct DumpDataset {
  std::string name;
  Dtype dtype;
  Shape shape;  // [samples, ...]; if ragged, [all their tokens, ...]
  // One sample, in pieces of at most 4 MiB where it divides evenly; if ragged, rows of 256 KiB,
  // to be used with a filter only.
  Shape chunk;
};
// `first` is the shard's first sample, whose length counts if ragged.
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
  int64_t samples_per_shard = 0;  // 0: adopted, as its files are
  std::vector<DumpShard> shards;  // in the order of their samples; gaps while it is written

  int64_t stored_samples() const;
  bool complete() const { return stored_samples() == spec.samples; }
};

Path manifest_path(const Path& dir);
// Throws when it is not there, malformed, of a newer version or contradicts itself.
DumpManifest read_manifest(const Path& dir);
void write_manifest(const Path& dir, const DumpManifest& manifest);

class Hdf5Reader;
class Hdf5Writer;
// The spec as attributes of a shard's root, with its first sample and their number.
void write_shard_header(Hdf5Writer& file, const DumpSpec& spec, int64_t first, int64_t samples);
// Reads them back (windows and lengths are left empty); returns the first sample, spec.samples is
// their number.
DumpSpec read_shard_header(const Hdf5Reader& file, int64_t& first);
// A list of one number for each of the shard's samples: "lengths" or "windows".
std::vector<int64_t> read_shard_list(const Hdf5Reader& file, const char* name, int64_t samples);
// Every dataset of the schema is there in the right type and shape. `first` as in dump_datasets().
void check_shard_datasets(const Hdf5Reader& file, const DumpSpec& spec, int64_t first = 0);

// Throws when the dump was made with another teacher, tokenizer or (if it stores windows) corpus;
// the line names both hashes. An empty hash is not compared.
struct DumpSource {
  std::string teacher_hash, tokenizer_hash, corpus_hash;
};
void check_dump_source(const DumpSpec& spec, const Path& dir, const DumpSource& source);

// Makes a dump of HDF5 files that others wrote by the schema, all in one directory: checks every
// value and writes the manifest beside them. An existing manifest is an error.
DumpManifest adopt_dump(const std::vector<Path>& files);

}  // namespace brine::data
