// How a text is cut into the words within which BPE merges: the "pre_tokenizer" of tokenizer.json.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex/regex.h"

namespace brine::data {

class PreTokenizer {
 public:
  using UseWord = std::function<void(std::string_view)>;

  PreTokenizer();  // GPT-2's: ByteLevel with its regular expression
  // From null, ByteLevel, Split, Digits, Metaspace or a Sequence of those. ByteLevel must be the
  // last one, and what adds a space in front, ByteLevel or Metaspace, the first one. Others are an
  // error that starts with `where`.
  PreTokenizer(const nlohmann::json& description, const std::string& where);

  // Whether words are spelled in the byte alphabet.
  bool byte_level() const { return byte_level_; }
  // ByteLevel's: a text is read as if it started with a space.
  bool prefix_space() const { return prefix_space_; }
  // Whether it is GPT-2's, but for the space.
  bool is_gpt2() const;

  // Whether prepare() may change a text.
  bool prepares() const { return prefix_space_ || !space_.empty(); }
  // The text with a space in front, or with Metaspace's character for spaces; `first`: it is the
  // beginning of the whole text.
  std::string prepare(std::string_view text, bool first) const;
  // Calls `use` with the words of a text, in their order, which are parts of its memory.
  void cut(std::string_view text, const UseWord& use) const { cut_from(0, text, use); }

 private:
  // Split: what becomes of a match of its pattern.
  enum class Behavior : uint8_t { isolated, removed, with_previous, with_next };
  struct Step {
    enum class Kind : uint8_t { gpt2, digits, split };
    Kind kind;
    bool individual = true;                  // digits
    Behavior behavior = Behavior::isolated;  // split
    bool invert = false;                     // split: matches are what is between
    TextPattern pattern = {};                // split
  };
  struct Piece {
    size_t begin, end;
    bool match;
  };
  enum class Scheme : uint8_t { first, always, never };

  void add(const nlohmann::json& description, const std::string& where, bool inside);
  void add_split(const nlohmann::json& description, const std::string& where);
  void add_metaspace(const nlohmann::json& description, const std::string& where);
  void add_byte_level(const nlohmann::json& description, const std::string& where);
  void cut_from(size_t step, std::string_view text, const UseWord& use) const;
  void cut_digits(size_t step, std::string_view text, const UseWord& use) const;
  void cut_split(size_t step, std::string_view text, const UseWord& use) const;
  // Calls `use` with the matches and what is between them, in order.
  template <class Use>
  static void pieces_of(const Step& step, std::string_view text, const Use& use);

  std::vector<Step> steps_;
  bool byte_level_ = false, prefix_space_ = false, any_ = false;
  std::string space_;  // Metaspace's character
  Scheme scheme_ = Scheme::always;
};

}  // namespace brine::data
