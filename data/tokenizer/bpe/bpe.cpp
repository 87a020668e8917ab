// BPE: building the tables, encoding and decoding.
#include "data/tokenizer/bpe/bpe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/bpe/byte_alphabet.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr std::string_view kSpaceCharacter = "\u2581";

}  // namespace

bool BpeModel::is_gpt2() const {
  return pre_tokenizer.is_gpt2() && decoder.byte_level() && !ignore_merges;
}

BpeTokenizer::BpeTokenizer(BpeModel model, const std::string& where) : model_(std::move(model)) {
  build(model_, where);
  for (const std::string& token : spelled()) bytes_.push_back(model_.decoder.bytes_of(token));
  find_bytes(where);
  check_merges(where);
  spaces_lead_ = spaces_lead();
}

void BpeTokenizer::find_bytes(const std::string& where) {
  const bool byte_level = model_.pre_tokenizer.byte_level();
  constexpr const char* kDigits = "0123456789ABCDEF";
  int missing = 0;
  std::string first_missing;
  for (int byte = 0; byte < 256; ++byte) {
    std::string name = {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
    if (byte_level) name = spell_bytes(std::string(1, char(byte)));
    const auto id = id_of(name);
    byte_ids_[byte] = id.value_or(-1);
    if (!id && missing++ == 0) first_missing = join("token '", name, "' of byte ", byte);
  }
  const bool needed = byte_level ? model_.unk.has_value() || missing == 256 : model_.byte_fallback;
  check_format(missing == 0 || !needed, where, ": ", first_missing,
               " is missing from the vocabulary");
  check_format(byte_level || model_.byte_fallback || model_.unk, where,
               ": BPE without ByteLevel, byte_fallback or unk_token is not supported");
}

void BpeTokenizer::check_merges(const std::string& where) {
  merges_.reset(model_.merges.size());
  for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
    auto [left, right] = model_.merges[rank];
    const auto size = int64_t(spelled().size());
    check_format(left >= 0 && left < size && right >= 0 && right < size, where, ": merge ", rank,
                 " has ids outside the vocabulary");
    const std::string whole = spelled()[size_t(left)] + spelled()[size_t(right)];
    const auto id = id_of(whole);
    check_format(id.has_value(), where, ": merge ", rank, " makes '", whole,
                 "', which is missing from the vocabulary");
    merges_.set(left, right, {uint32_t(rank), *id});
  }
}

// Whether the tokens allow cut_at_spaces() without a change of any result.
bool BpeTokenizer::spaces_lead() const {
  if (!model_.byte_fallback || model_.ignore_merges || !id_of(kSpaceCharacter)) return false;
  return std::all_of(spelled().begin(), spelled().end(), [](const std::string& token) {
    size_t at = 0;
    while (token.compare(at, kSpaceCharacter.size(), kSpaceCharacter) == 0)
      at += kSpaceCharacter.size();
    return token.find(kSpaceCharacter, at) == std::string::npos;
  });
}

void BpeTokenizer::cut_at_spaces(std::string_view text, const PreTokenizer::UseWord& use) const {
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    while (text.substr(end).starts_with(kSpaceCharacter)) end += kSpaceCharacter.size();
    end = std::min(text.find(kSpaceCharacter, end), text.size());
    use(text.substr(at, end - at));
  }
}

void BpeTokenizer::encode_piece(const Piece& piece, WordCache& cache,
                                std::vector<int32_t>& out) const {
  const PreTokenizer& pre = model_.pre_tokenizer;
  std::string prepared;
  if (pre.prepares()) prepared = pre.prepare(piece.text, piece.first);
  const std::string_view text = pre.prepares() ? prepared : piece.text;
  const PreTokenizer::UseWord use = [&](std::string_view word) { encode_word(word, cache, out); };
  if (!spaces_lead_) return pre.cut(text, use);
  pre.cut(text, [&](std::string_view word) { cut_at_spaces(word, use); });
}

void BpeTokenizer::encode_word(std::string_view word, WordCache& cache,
                               std::vector<int32_t>& out) const {
  const bool byte_level = model_.pre_tokenizer.byte_level();
  if (word.size() == 1 && byte_level) {
    const int32_t id = byte_ids_[uint8_t(word[0])];
    if (id >= 0) out.push_back(id);
    return;
  }
  const uint64_t hash = WordCache::hash(word);
  if (auto known = cache.find(word, hash); !known.empty()) {
    out.insert(out.end(), known.begin(), known.end());
    return;
  }
  const size_t first = out.size();
  const auto whole = !model_.ignore_merges ? std::nullopt
                     : byte_level          ? id_of(spell_bytes(word))
                                           : id_of(word);
  if (whole) {
    out.push_back(*whole);
  } else {
    std::vector<int32_t> ids;
    spell(word, ids);
    merge_word(merges_, ids, out);
  }
  cache.insert(word, hash, std::span<const int32_t>(out).subspan(first));
}

void BpeTokenizer::spell(std::string_view word, std::vector<int32_t>& out) const {
  auto bytes = [&](std::string_view text) {
    for (char c : text)
      if (const int32_t id = byte_ids_[uint8_t(c)]; id >= 0) out.push_back(id);
  };
  if (model_.pre_tokenizer.byte_level()) return bytes(word);
  for (size_t at = 0, end = 0; at < word.size(); at = end) {
    next_char(word, end);
    const std::string_view character = word.substr(at, end - at);
    if (auto id = id_of(character)) {
      out.push_back(*id);
    } else if (model_.byte_fallback) {
      bytes(character);
    } else {
      out.push_back(*model_.unk);
      end = unknown_end(word, at);
    }
  }
}

size_t BpeTokenizer::unknown_end(std::string_view word, size_t at) const {
  size_t end = at;
  next_char(word, end);
  while (model_.fuse_unk && end < word.size()) {
    size_t next = end;
    next_char(word, next);
    if (id_of(word.substr(end, next - end))) break;
    end = next;
  }
  return end;
}

std::string BpeTokenizer::decoded(int32_t id, bool first) const {
  const std::string& token = token_of(id);
  const bool differs = first && model_.decoder.first_differs();
  return differs ? model_.decoder.first_bytes_of(token) : bytes_[size_t(id)];
}

namespace {

std::string stripped(std::string_view text, std::string_view what, size_t start, size_t stop) {
  for (; start > 0 && text.starts_with(what); --start) text.remove_prefix(what.size());
  for (; stop > 0 && text.ends_with(what); --stop) text.remove_suffix(what.size());
  return std::string(text);
}

std::string text_of(const SortedJson& description, const char* key, const std::string& where) {
  const SortedJson& value = member(description, key);
  check_format(value.is_string(), where, ": '", key, "' must be a text");
  return value.get<std::string>();
}

size_t count_of(const SortedJson& description, const char* key, const std::string& where) {
  const SortedJson& value = member(description, key);
  check_format(value.is_number_unsigned() && value.get<uint64_t>() < 256, where, ": '", key,
               "' must be a number of characters");
  return value.get<size_t>();
}

// The byte of a token like "<0x0A>"; -1 for other tokens.
int fallback_byte(std::string_view token) {
  auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = digit(token[3]), low = digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

Decoder::Decoder(const SortedJson& description, const std::string& where)
    : byte_level_(false), none_(description.is_null()) {
  if (!none_) add(description, where, false);
}

void Decoder::add(const SortedJson& description, const std::string& where, bool inside) {
  check_format(description.is_object() && member(description, "type").is_string(), where,
               ": a decoder must be an object with a 'type'");
  const auto type = description["type"].get<std::string>();
  const std::string object = where + ": decoder " + type;
  auto only = [&](bool possible) {
    check_format(possible && !byte_level_, object, " after another decoder is not supported");
  };
  const bool bytes = std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.kind == Step::Kind::byte_fallback || step.kind == Step::Kind::strip;
  });
  if (type == "Sequence" && !inside) {
    const SortedJson& list = member(description, "decoders");
    check_format(list.is_array(), where,
                 ": decoder of type \"Sequence\" must have a list 'decoders'");
    for (const SortedJson& part : list) add(part, where, true);
  } else if (type == "ByteLevel") {
    only(steps_.empty() && !fused_);
    byte_level_ = true;
  } else if (type == "Metaspace") {
    only(steps_.empty() && !fused_);
    const SortedJson& scheme = member(description, "prepend_scheme");
    drops_first_ =
        scheme.is_null() ? flag(description, "add_prefix_space", true, object) : scheme != "never";
    steps_.push_back({.kind = Step::Kind::metaspace,
                      .from = text_of(description, "replacement", object),
                      .to = " "});
  } else if (type == "Replace") {
    only(!bytes && !fused_);
    const SortedJson& pattern = member(description, "pattern");
    check_format(pattern.is_object() && member(pattern, "String").is_string(), object,
                 ": a 'pattern' that is not a String is not supported");
    steps_.push_back({.kind = Step::Kind::replace,
                      .from = text_of(pattern, "String", object),
                      .to = text_of(description, "content", object)});
  } else if (type == "ByteFallback") {
    only(!bytes && !fused_);
    steps_.push_back({.kind = Step::Kind::byte_fallback});
  } else if (type == "Fuse") {
    only(true);
    fused_ = true;
  } else if (type == "Strip") {
    only(strip_ == 0);
    add_strip(description, object);
  } else {
    throw Error(join(where, ": decoder of type ", json_text(description["type"]),
                     " is not supported; supported are ByteLevel, Metaspace, Replace, "
                     "ByteFallback, Fuse, Strip and a Sequence of those"),
                ErrorKind::format);
  }
  check_format(steps_.empty() || !steps_.back().from.empty() ||
                   steps_.back().kind == Step::Kind::byte_fallback,
               object, ": an empty text");
}

void Decoder::add_strip(const SortedJson& description, const std::string& where) {
  Step step{.kind = Step::Kind::strip, .from = text_of(description, "content", where)};
  step.start = count_of(description, "start", where);
  step.stop = count_of(description, "stop", where);
  if (!fused_) return steps_.push_back(step);
  // The ends of the whole text: only what the first token decides.
  check_format(step.start <= 1 && step.stop == 0, where, ": start = ", step.start,
               ", stop = ", step.stop, " after Fuse is not supported, wanted at most 1 and 0");
  strip_text_ = step.from;
  strip_ = step.start;
}

std::string Decoder::bytes_of(std::string_view token) const {
  if (none_) return " " + std::string(token);
  if (byte_level_) return unspell_bytes(token).value_or(std::string(token));
  std::string out(token);
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::strip) {
      out = stripped(out, step.from, step.start, step.stop);
    } else if (step.kind == Step::Kind::byte_fallback) {
      if (const int byte = fallback_byte(out); byte >= 0) out = std::string(1, char(byte));
    } else {
      out = replaced(out, step.from, step.to);
    }
  }
  return out;
}

std::string Decoder::first_bytes_of(std::string_view token) const {
  if (none_) return std::string(token);
  // Metaspace: the characters for spaces in the first token are left out.
  const std::string shorter =
      drops_first_ ? replaced(token, steps_[0].from, "") : std::string(token);
  return stripped(bytes_of(shorter), strip_text_, strip_, 0);
}

}  // namespace brine::data
