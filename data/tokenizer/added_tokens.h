// Tokens that are searched for in a text before any other processing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brine::data {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = true;
  bool normalized = false;  // searched for in the normalized text, after those that are not
  bool lstrip = false, rstrip = false;  // includes the white space on that side
};

// Finds the leftmost added token, and among several the longest.
class AddedTokenFinder {
 public:
  struct Found {
    size_t at, end;  // with the white space that the token includes
    int32_t id;      // -1: none, and at = end = the size of the text
  };
  // Searches for `content`, which is the token's text or its normalized form; finish() follows.
  void add(const AddedToken& token, std::string content);
  void finish();
  Found next(std::string_view text, size_t from) const;

 private:
  struct Pattern {
    std::string content;
    int32_t id;
    bool lstrip, rstrip;
  };
  std::vector<Pattern> patterns_;                         // longest first
  std::array<std::vector<uint32_t>, 256> by_first_byte_;  // into patterns_, in their order
  int only_byte_ = -1;                                    // the common first byte of all, if there
                                                          // is one
};

}  // namespace brine::data
