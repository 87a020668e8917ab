// Corpora: text and lines of JSON; token shards.
#include <nlohmann/json.hpp>

#include "data/codec/checksums.h"
#include "data/corpus/corpus.h"
#include "data/corpus/documents.h"
#include "data/corpus/joined_lines.h"
#include "data/corpus/token_shards.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/bpe/bpe.h"
#include "tensor/base/error.h"
#include "tests/fuzz/readers.h"
#include "tests/fuzz/targets.h"
#include "tests/scratch.h"

namespace brine::fuzz {
namespace {

const data::Tokenizer& small_tokenizer() {
  static const std::unique_ptr<data::Tokenizer> tokenizer = [] {
    const test::Scratch scratch;
    const std::string text = "the cat sat on the mat, and the dog said that the end is near. ";
    return data::train_bpe({scratch.write("text", text + text)}, {.vocab_size = 290});
  }();
  return *tokenizer;
}

// Pieces of a few bytes, so that small inputs are cut; nothing is kept for long.
data::DocumentOptions small_pieces() {
  return {.key = "text", .piece_bytes = 48, .max_uncut = 4096, .max_line = 8192};
}

// Puts documents together again and compares their tokens with those of their pieces.
struct Whole {
  std::string text;
  std::vector<int32_t> tokens;
  bool open = false;

  void put(const data::DocumentPiece& piece) {
    if (piece.begins == open) throw Find("a document begins inside another, or nowhere");
    if (!data::is_utf8(piece.text)) throw Find("a piece is not UTF-8");
    if (piece.begins) {
      text.clear();
      tokens.clear();
    }
    text += piece.text;
    const std::vector<int32_t> ids = small_tokenizer().encode(piece.text);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    open = !piece.ends;
    if (!open && tokens != small_tokenizer().encode(text))
      throw Find("pieces have other tokens than their document");
  }
};

void read_corpus(const std::string& path) {
  Whole whole;
  data::read_documents(path, small_tokenizer(), small_pieces(),
                       [&](const data::DocumentPiece& piece) { whole.put(piece); });
  if (whole.open) throw Find("a document does not end");
}

}  // namespace

void read_text_corpus(Dir dir, std::string_view bytes) {
  const std::string path = (dir / "corpus.txt").string();
  write_input(path, bytes);
  read_corpus(path);
}

void read_joined(Dir dir, std::string_view bytes) {
  const std::string path = (dir / "corpus.txt").string();
  write_input(path, bytes);
  Whole joined;
  data::read_joined_document({path, path}, small_tokenizer(), small_pieces(),
                             [&](const data::DocumentPiece& piece) { joined.put(piece); });
  if (joined.open) throw Find("a document does not end");
  const std::string text = data::read_joined_lines({path, path});
  if (text != joined.text) throw Find("joined lines lose text in pieces");
}

void read_json_lines(Dir dir, std::string_view bytes) {
  const std::string path = (dir / "corpus.jsonl").string();
  write_input(path, bytes);
  read_corpus(path);
}

// The files that a manifest lists, with its sizes; then all of their tokens.
void read_token_shards(Dir dir, std::string_view bytes) {
  const data::Path path = dir / "manifest.json";
  write_input(path, bytes);
  const data::TokenManifest m = data::read_token_manifest(dir);
  if (m.tokens > 4096 || m.documents > 4096) return;
  nlohmann::ordered_json json = parse_ordered_json(bytes);
  auto make = [&](const data::TokenShard& shard, int64_t width, nlohmann::ordered_json& entry) {
    std::string content(size_t(shard.count * width), '\0');
    for (size_t i = 0; i < content.size(); i += size_t(width)) content[i] = bytes[i % bytes.size()];
    if (std::filesystem::exists(dir / shard.name)) throw Find("a shard takes another file's place");
    write_input(dir / shard.name, content);
    entry["sha256"] = data::sha256_hex(content);
  };
  for (size_t i = 0; i < m.shards.size(); ++i) make(m.shards[i], m.width, json["shards"][i]);
  make(m.starts, 8, json["starts"]);
  write_input(path, json_text(json));
  const data::TokenShards shards(dir);
  for (int32_t id : shards.slice(0, shards.size()))
    if (id < 0 || id >= m.vocab_size) throw Find("a token outside the vocabulary");
}

}  // namespace brine::fuzz
