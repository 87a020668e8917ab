// Descriptions of files, which are recognised by their first bytes, never by their names.
#include "apps/inspect/inspect_file.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "data/codec/sha256.h"
#include "data/corpus/corpus.h"
#include "data/dump/dump.h"
#include "data/gguf/gguf_file.h"
#include "data/hdf5/hdf5_file.h"
#include "data/io/file_io.h"
#include "data/io/human.h"
#include "data/io/printable.h"
#include "data/io/utf8.h"
#include "data/safetensors/safetensors.h"
#include "data/tokenizer/tokenizer.h"
#include "data/torch/torch_file.h"

namespace brine {
namespace {

// An attribute of any type as text.
std::string attribute_text(const data::Hdf5Reader& file, const std::string& object,
                           const std::string& name) {
  if (file.is_string_attribute(object, name)) return file.string_attribute(object, name);
  std::ostringstream out;
  if (file.is_float_attribute(object, name)) {
    for (double x : file.doubles_attribute(object, name)) out << (out.tellp() ? " " : "") << x;
  } else {
    for (int64_t x : file.ints_attribute(object, name)) out << (out.tellp() ? " " : "") << x;
  }
  return out.str();
}

std::string describe_hdf5(const std::string& path) {
  const data::Hdf5Reader file(path);
  std::ostringstream out;
  const bool has_format =
      file.has_attribute("/", "format") && file.is_string_attribute("/", "format");
  const std::string format = has_format ? file.string_attribute("/", "format") : "";
  if (format == "brine-dump") {
    int64_t first = 0;
    data::DumpSpec spec = data::read_shard_header(file, first);
    if (spec.ragged) spec.lengths = data::read_shard_list(file, "lengths", spec.samples);
    data::check_spec(spec, path);
    data::check_shard_datasets(file, spec);
    out << path << ": shard of a teacher dump, samples " << first << " to "
        << first + spec.samples - 1 << "\n";
  } else {
    out << path << ": HDF5 file\n";
  }
  for (const std::string& name : file.attributes("/"))
    out << "  " << name << " = " << attribute_text(file, "/", name) << "\n";
  for (const std::string& name : file.datasets()) {
    const data::Hdf5Info info = file.info(name);
    out << "    " << name << " " << info.dtype << " " << info.shape << ", "
        << human_bytes(double(info.stored_bytes)) << "\n";
  }
  return out.str();
}

void list_tensor(std::ostream& out, const std::string& name, const std::string& dtype,
                 const std::vector<uint64_t>& shape) {
  out << "    " << data::shown(name) << " " << dtype << " [";
  for (size_t i = 0; i < shape.size(); ++i) out << (i ? ", " : "") << shape[i];
  out << "]\n";
}

// "PATH: a KIND, 3 tensors, 1.2 MiB".
std::string title(const std::string& path, const std::string& kind, size_t tensors,
                  uint64_t bytes) {
  return join(path, ": ", kind, ", ", tensors, " tensors, ", human_bytes(double(bytes)), "\n");
}

std::string describe_weights(const data::WeightFile& file, const std::string& kind,
                             const data::StringMap& metadata = {}) {
  std::ostringstream out;
  uint64_t bytes = 0;
  for (const auto& e : file.entries()) bytes += e.size;
  out << title(file.path().string(), kind, file.entries().size(), bytes);
  for (const auto& [key, value] : metadata) out << "  " << key << " = " << value << "\n";
  for (const auto& e : file.entries()) list_tensor(out, e.name, e.dtype, e.shape);
  return out.str();
}

std::string describe_safetensors(const std::string& path) {
  const data::Safetensors file{data::Path(path)};
  return describe_weights(file, "safetensors file", file.metadata());
}

// The tensors under the names of the file, which may be of an architecture that Brine does not
// have.
std::string describe_gguf(const std::string& path) {
  const data::MappedFile file{data::Path(path)};
  const data::GgufHeader header(path, file);
  std::ostringstream out;
  uint64_t bytes = 0;
  std::map<std::string, int64_t> types;
  for (const data::GgufTensor& t : header.tensors) {
    bytes += t.size;
    ++types[t.type->name];
  }
  out << title(path, join("GGUF file of version ", header.version), header.tensors.size(), bytes);
  for (const auto& [type, count] : types) out << "  " << count << " of type " << type << "\n";
  for (const auto& [key, value] : header.metadata.values()) {
    out << "  " << data::shown(key) << " = " << header.metadata.text(value) << "\n";
  }
  for (const data::GgufTensor& t : header.tensors) list_tensor(out, t.name, t.type->name, t.shape);
  return out.str();
}

// No other kind of file, and without control characters: a few bytes of a damaged one may be UTF-8.
bool is_text(const std::string& path) {
  constexpr size_t kLooked = 4096;
  std::ifstream in(path, std::ios::binary);
  std::string head(kLooked, '\0');
  in.read(head.data(), std::streamsize(head.size()));
  head.resize(size_t(in.gcount()));
  const bool plain = std::all_of(head.begin(), head.end(), [](unsigned char c) {
    return c >= 0x20 || c == '\t' || c == '\n' || c == '\r' || c == '\f';
  });
  return plain && !head.starts_with("version https://git-lfs") &&
         data::is_utf8(data::read_file(path));
}

}  // namespace

std::string inspect_text(const std::string& path, const std::string& tokenizer) {
  const std::string text = data::read_text(path);
  std::string out = join(path, ": text in UTF-8, ", human_bytes(double(text.size())),
                         "\n  SHA-256     ", data::sha256_hex(text), "\n");
  if (tokenizer.empty()) return out + "  --tokenizer DIR prints its tokens and corpus_hash\n";
  const std::unique_ptr<data::Tokenizer> t = data::load_tokenizer(tokenizer);
  const data::TokenCorpus corpus = data::load_corpus({path}, *t, 2);
  return join(out, "  tokens      ", corpus.tokens->size(), "\n  corpus_hash ", corpus.hash(),
              "\n");
}

std::string inspect_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  check(in.good(), path, ": cannot be read");
  char head[9] = {};
  in.read(head, sizeof head);
  const std::string start(head, size_t(in.gcount()));
  if (start.rfind("\x89HDF\r\n\x1a\n", 0) == 0) return describe_hdf5(path);
  if (start.size() == 9 && start[8] == '{' && start[7] == 0 && start[6] == 0) {
    return describe_safetensors(path);
  }
  if (data::is_gguf(path)) return describe_gguf(path);
  if (data::is_zip(path)) return describe_weights(data::TorchFile(path), "PyTorch state dict");
  const size_t first = start.find_first_not_of(" \t\r\n");
  const bool json = first != std::string::npos && start[first] == '{';
  if (!json && first != std::string::npos && is_text(path)) return inspect_text(path);
  check(json, path,
        ": neither HDF5 nor safetensors, GGUF, a PyTorch state dict, a tokenizer.json or text");
  std::unique_ptr<data::Tokenizer> t = data::load_tokenizer(path);
  return join(path, ": tokenizer\n  vocabulary ", t->vocab_size(), "\n  hash       ", t->hash(),
              "\n");
}

}  // namespace brine
