// Recognises a path by what it contains, never by its name, and describes it.
#include "apps/inspect/inspect.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/terminal/terminal.h"
#include "data/checkpoint/checkpoint.h"
#include "data/codec/checksums.h"
#include "data/corpus/corpus.h"
#include "data/corpus/token_shards.h"
#include "data/dump/dump.h"
#include "data/gguf/gguf_file.h"
#include "data/io/human.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/tokenizer.h"
#include "data/weights/hub_cache.h"
#include "distill/log/log.h"
#include "nn/io/model_io.h"

namespace brine {
namespace fs = std::filesystem;
namespace {

std::string bytes_text(uint64_t bytes) { return human_bytes(double(bytes)); }

// Throws when a shard is missing or has another size; with `verify` also another checksum.
void check_shard(const std::string& path, const data::DumpShard& shard, bool verify) {
  const fs::path file = fs::path(path) / shard.name;
  std::error_code error;
  const uint64_t size = fs::file_size(file, error);
  check(!error, path, ": shard ", shard.name, ": is missing");
  check(size == shard.bytes, path, ": shard ", shard.name, ": has ", size, " bytes, wanted ",
        shard.bytes);
  check(!verify || data::sha256_file(file.string()) == shard.sha256, path, ": shard ", shard.name,
        ": is damaged: its checksum differs");
}

std::string describe_dump(const std::string& path, bool verify) {
  const data::DumpManifest m = data::read_manifest(path);
  const data::DumpSpec& s = m.spec;
  std::ostringstream out;
  out << path << ": teacher dump, "
      << (m.complete() ? "complete" : join("UNFINISHED: ", m.stored_samples(), " of ", s.samples))
      << "\n";
  out << "  samples    " << s.samples << " of " << (s.ragged ? "up to " : "") << s.tokens
      << " tokens"
      << (s.windows.empty() ? ""
          : s.ragged        ? ", by text of a task"
                            : ", by corpus window")
      << "\n"
      << "  content    " << data::name_of(s.content)
      << (s.columns ? join(" into ", s.columns, " columns") : "") << " in " << s.dtype
      << (s.packs_rows() ? ", rows packed" : "") << (s.causal ? ", causal" : ", not causal") << "\n"
      << "  layers     " << s.layers << ", " << s.heads << " heads of " << s.head_size
      << ", hidden " << s.hidden << (s.value ? ", values" : "") << (s.context ? ", context" : "")
      << (s.output ? ", output" : "") << "\n"
      << "  logits     " << data::name_of(s.logits);
  if (s.logits == data::DumpLogits::top) out << " " << s.top_n;
  if (s.classes) out << ", of " << s.classes << " classes";
  out << " of " << s.vocab << (s.stores_tokens ? ", with tokens" : "") << "\n"
      << "  teacher    " << s.teacher_hash << "\n  tokenizer  " << s.tokenizer_hash
      << "\n  corpus     " << s.corpus_hash << "\n";
  uint64_t total = 0;
  for (const data::DumpShard& shard : m.shards) total += shard.bytes;
  out << "  shards     " << m.shards.size() << ", " << bytes_text(total) << "\n";
  for (const data::DumpShard& shard : m.shards) {
    check_shard(path, shard, verify);
    out << "    " << shard.name << "  samples " << shard.first << " to "
        << shard.first + shard.samples - 1 << ", " << bytes_text(shard.bytes)
        << (verify ? ", checksum good" : "") << "\n";
  }
  return out.str();
}

std::string describe_shards(const std::string& path, bool verify) {
  const data::TokenManifest m = data::read_token_manifest(path);
  if (verify) data::TokenShards checked(path, data::Hashing::all);
  std::ostringstream out;
  out << path << ": token shards" << (verify ? ", every checksum good" : "") << "\n"
      << "  tokens     " << m.tokens << " of " << 8 * m.width << " bits, vocabulary "
      << m.vocab_size << "\n  documents  " << m.documents;
  if (m.separator) out << ", each followed by token " << *m.separator;
  if (m.joining == data::Joining::lines) out << ", the lines of the sources joined";
  out << "\n  tokenizer  " << m.tokenizer_hash << "\n  sources    " << m.sources.size() << "\n"
      << "  shards     " << m.shards.size() << ", " << bytes_text(uint64_t(m.tokens * m.width))
      << "\n";
  return out.str();
}

// Parameters of each learning-rate group, with the number of their elements.
void describe_model(std::ostream& out, const std::string& path, bool tensors) {
  nn::LoadedModel m = nn::load_model(path, {.map = true});
  log_detail(path, ": loaded in ", human_seconds(m.seconds));
  const nn::ModelShape c = m.config.shape();
  out << (c.causal ? "  decoder    " : "  encoder    ") << c.layers << " layers of "
      << c.hidden_size << ", " << c.heads << " heads, MLP " << c.inner_size << ", "
      << c.max_positions << " positions, vocabulary " << c.vocab_size << "\n";
  data::Schema settings;
  m.config.describe_attention(settings);
  out << "  attention  " << m.config.attention << "\n";
  const data::Json chosen = settings.to_json()["attention"];
  for (const auto& [key, value] : chosen.items()) {
    if (key != "method") out << "    " << key << " = " << json_text(value) << "\n";
  }
  std::map<std::string, int64_t> groups;
  for (const auto& p : m.model->named_parameters()) {
    groups[data::name_of(p.group, nn::kParameterGroups)] += p.parameter->value.numel();
  }
  out << "  parameters " << nn::parameter_count(*m.model) << "\n";
  for (const auto& [group, count] : groups) out << "    " << group << " " << count << "\n";
  out << "  hash       " << m.hash() << "\n";
  if (!tensors) return;
  for (const NamedTensor& t : nn::tensors_of(*m.model)) {
    out << "    " << t.name << " " << t.tensor.dtype() << " " << t.tensor.shape() << "\n";
  }
}

std::string describe_model_at(const std::string& path, bool tensors) {
  std::ostringstream out;
  out << path << ": model\n";
  describe_model(out, path, tensors);
  return out.str();
}

std::string describe_tokenizer(const std::string& path) {
  std::unique_ptr<data::Tokenizer> t = data::load_tokenizer(path);
  std::ostringstream out;
  out << path << ": tokenizer\n  vocabulary " << t->vocab_size() << "\n";
  const data::SpecialIds ids = t->special();
  auto special = [&](const char* name, const std::optional<int32_t>& id) {
    if (id) out << "  " << name << "        " << *id << " " << t->token_of(*id) << "\n";
  };
  special("bos", ids.bos);
  special("eos", ids.eos);
  special("pad", ids.pad);
  special("unk", ids.unk);
  for (const std::string& note : t->notes()) out << "  note       " << note << "\n";
  out << "  hash       " << t->hash() << "\n";
  return out.str();
}

std::string describe_checkpoint(const std::string& path, bool tensors) {
  const data::CheckpointManifest m = data::read_checkpoint_manifest(path);
  const std::optional<std::string> defect = data::checkpoint_defect(path);
  std::ostringstream out;
  out << path << ": checkpoint of step " << m.step << " by " << m.program << ", "
      << (defect ? "DAMAGED: " + *defect : "good") << "\n";
  for (const auto& file : m.files) {
    out << "    " << file.name << "  " << bytes_text(file.bytes) << "\n";
  }
  check(!defect, path, ": is a damaged checkpoint: ", defect.value_or(""));
  if (fs::exists(fs::path(path) / "config.json")) describe_model(out, path, tensors);
  return out.str();
}

// The last step and the last evaluation in a log.
void describe_log(std::ostream& out, const fs::path& log) {
  std::ifstream in(log);
  std::string line, step, evaluation;
  while (std::getline(in, line)) {
    const data::Json json = parse_json_or_discard(line);
    const std::optional<distill::LogLine> type = distill::type_of(json);
    auto shown = [&](const char* key) {
      if (!json.contains(key)) return std::string();
      // JSON has no word for such a number.
      return join(" ", key, " ", json[key].is_null() ? "not finite" : json_text(json[key]));
    };
    if (type == distill::LogLine::step) {
      step = "at" + shown("step") + "," + shown("loss") + shown("task_nll");
    } else if (type == distill::LogLine::evaluation) {
      evaluation = "at" + shown("step") + ",";
      for (const auto& [key, value] : json.items()) {  // of a task its metrics
        if (key.starts_with("valid_") && key != "valid_nll") evaluation += shown(key.c_str());
      }
    }
  }
  if (!step.empty()) out << "  log ends   " << step << "\n";
  if (!evaluation.empty()) out << "  evaluated  " << evaluation << "\n";
}

std::string describe_run(const std::string& path, bool tensors) {
  std::ostringstream out;
  const std::vector<data::Checkpoint> checkpoints = data::list_checkpoints(path);
  out << path << ": run with " << checkpoints.size() << " checkpoint"
      << (checkpoints.size() == 1 ? "" : "s") << "\n";
  std::string newest;
  for (const data::Checkpoint& c : checkpoints) {
    const std::optional<std::string> defect = data::checkpoint_defect(c.path);
    out << "    " << c.path.filename().string() << "  " << (defect ? "DAMAGED: " + *defect : "good")
        << "\n";
    if (!defect && newest.empty()) newest = c.path.string();
  }
  const fs::path dir(path);
  if (fs::exists(dir / "config.toml")) out << "  settings   config.toml\n";
  if (fs::exists(dir / "log.jsonl")) describe_log(out, dir / "log.jsonl");
  if (!newest.empty() && fs::exists(fs::path(newest) / "config.json")) {
    describe_model(out, newest, tensors);
  }
  return out.str();
}

// Without control characters: a few bytes of another kind of file may be UTF-8.
bool is_text(const std::string& path) {
  constexpr size_t kLooked = 4096;
  const std::string head = data::read_start(path, kLooked);
  const bool plain = std::all_of(head.begin(), head.end(), [](unsigned char c) {
    return c >= 0x20 || c == '\t' || c == '\n' || c == '\r' || c == '\f';
  });
  return plain && !head.starts_with("version https://git-lfs") &&
         data::is_utf8(data::read_file(path));
}

// A text in UTF-8; with a tokenizer's directory its tokens and the hash that a dump of it records.
std::string describe_text(const std::string& path, const std::string& tokenizer) {
  const std::string text = data::read_text(path);
  std::string out = join(path, ": text in UTF-8, ", human_bytes(double(text.size())),
                         "\n  SHA-256     ", data::sha256_hex(text), "\n");
  if (tokenizer.empty()) return out + "  --tokenizer DIR prints its tokens and corpus_hash\n";
  const std::unique_ptr<data::Tokenizer> t = data::load_tokenizer(tokenizer);
  const data::TokenCorpus corpus = data::load_corpus({path}, *t, 2);
  return join(out, "  tokens      ", corpus.tokens->size(), "\n  corpus_hash ", corpus.hash(),
              "\n");
}

std::string describe_file(const std::string& path, const InspectOptions& options) {
  if (!options.tokenizer.empty()) return describe_text(path, options.tokenizer);
  if (data::is_gguf(path)) return describe_model_at(path, options.tensors);
  std::ifstream in(path, std::ios::binary);
  check(in.good(), path, ": cannot be read");
  char first = 0;
  in >> first;
  if (first == '{') return describe_tokenizer(path);
  check(first != 0 && is_text(path), path,
        ": neither a GGUF file, a tokenizer.json nor text; of a model or dump name the directory");
  return describe_text(path, {});
}

// The "format" of a directory's manifest.json, "" when there is none.
std::string manifest_format(const fs::path& dir) {
  const fs::path file = dir / "manifest.json";
  if (!fs::exists(file)) return "";
  const data::Json json = parse_json_or_discard(data::read_file(file), file.string());
  check(!json.is_discarded(), file.string(), ": not JSON");
  const bool has = json.is_object() && json.contains("format") && json["format"].is_string();
  return has ? json["format"].get<std::string>() : "";
}

}  // namespace

std::string inspect(const std::string& target, const InspectOptions& options) {
  const std::string path = data::local_model(target);
  check(fs::exists(path), path, ": no such file or directory", data::how_to_fetch(path));
  if (!fs::is_directory(path)) return describe_file(path, options);
  check(options.tokenizer.empty(), path, ": is a directory; --tokenizer is for a text file");
  const fs::path dir(path);
  const std::string format = manifest_format(dir);
  if (format == "brine-dump") return describe_dump(path, options.verify);
  if (format == "brine checkpoint") return describe_checkpoint(path, options.tensors);
  if (format == "brine-tokens") return describe_shards(path, options.verify);
  check(format.empty(), path, ": manifest.json has the unknown format \"", format, "\"");
  if (!data::list_checkpoints(dir).empty() || fs::exists(dir / "log.jsonl")) {
    return describe_run(path, options.tensors);
  }
  if (fs::exists(dir / "config.json") || fs::exists(dir / "adapter_config.json")) {
    return describe_model_at(path, options.tensors);
  }
  check(fs::exists(dir / "tokenizer.json") || fs::exists(dir / "vocab.json") ||
            fs::exists(dir / "vocab.txt"),
        path, ": contains no dump, run, checkpoint, model, token shards or tokenizer");
  return describe_tokenizer(path);
}

}  // namespace brine
