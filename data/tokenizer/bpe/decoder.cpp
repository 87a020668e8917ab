// The steps of decoding.
#include "data/tokenizer/bpe/decoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/tokenizer/bpe/byte_alphabet.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t next = 0; (next = text.find(from, at)) != std::string_view::npos;) {
    out.append(text, at, next - at).append(to);
    at = next + from.size();
  }
  return out.append(text, at);
}

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
