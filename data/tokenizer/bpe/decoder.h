// From the tokens of BPE back to bytes: the "decoder" of tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace brine::data {

// A text is the bytes of its tokens, one after the other, and at most its start depends on the
// token being the first one: so a text can be shown token by token.
class Decoder {
 public:
  Decoder() = default;  // ByteLevel
  // From null (tokens as they are spelled, with spaces between), ByteLevel, Metaspace, or a
  // Sequence of Replace (of a String), Metaspace, ByteFallback, Fuse and Strip. Others, and an
  // order that `tokenizers` reads differently, are an error that starts with `where`.
  Decoder(const nlohmann::json& description, const std::string& where);

  bool byte_level() const { return byte_level_; }
  // Whether there is none: null.
  bool none() const { return none_; }
  // The bytes of a token that follows others.
  std::string bytes_of(std::string_view token) const;
  // Whether the bytes of a text's first token may be others than bytes_of().
  bool first_differs() const { return none_ || drops_first_ || strip_ > 0; }
  // The bytes of the text's first token.
  std::string first_bytes_of(std::string_view token) const;

 private:
  struct Step {
    enum class Kind : uint8_t { replace, metaspace, byte_fallback, strip };
    Kind kind;
    std::string from = {}, to = {};  // strip: `from`
    size_t start = 0, stop = 0;      // strip: how often, at most
  };
  void add(const nlohmann::json& description, const std::string& where, bool inside);
  void add_strip(const nlohmann::json& description, const std::string& where);

  std::vector<Step> steps_;
  bool byte_level_ = true, none_ = false, fused_ = false, drops_first_ = false;
  std::string strip_text_;  // removed at the start of the whole text, up to strip_ times
  size_t strip_ = 0;
};

}  // namespace brine::data
