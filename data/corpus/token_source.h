// A long list of tokens, in memory or on the disk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace brine::data {

// The methods may be called from several threads at once.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t size() const = 0;
  // Tokens [from, from + out.size()); a range outside [0, size()) is an error.
  virtual void read(int64_t from, std::span<int32_t> out) const = 0;

  std::vector<int32_t> slice(int64_t from, int64_t count) const;

 protected:
  // read() of parts that end at `ends`: calls read_part(part, from, out) for the tokens of each.
  template <class ReadPart>
  static void read_parts(const std::vector<int64_t>& ends, int64_t from, std::span<int32_t> out,
                         const ReadPart& read_part) {
    auto part = size_t(std::upper_bound(ends.begin(), ends.end(), from) - ends.begin());
    for (; !out.empty(); ++part) {
      const int64_t begin = part == 0 ? 0 : ends[part - 1];
      const auto count = size_t(std::min(int64_t(out.size()), ends[part] - from));
      read_part(part, from - begin, out.first(count));
      out = out.subspan(count);
      from += int64_t(count);
    }
  }
};

class TokenList : public TokenSource {
 public:
  explicit TokenList(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  int64_t size() const override { return int64_t(tokens_.size()); }
  void read(int64_t from, std::span<int32_t> out) const override;

 private:
  std::vector<int32_t> tokens_;
};

// Concatenated sources.
class JoinedTokens : public TokenSource {
 public:
  explicit JoinedTokens(std::vector<std::shared_ptr<const TokenSource>> parts);
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(int64_t from, std::span<int32_t> out) const override;

 private:
  std::vector<std::shared_ptr<const TokenSource>> parts_;
  std::vector<int64_t> ends_;
};

}  // namespace brine::data
