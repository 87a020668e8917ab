// Documents in pieces. Text is cut before white space, at positions that no word, token or
// decomposition of characters spans; this is verified on the bytes around the cut, since added
// tokens may include spaces.
#include "data/corpus/documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/corpus/joined_lines.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr int kMaxTrials = 1000;

// Bytes on each side of a cut that are tokenised to verify it: a token that spans it is whole in
// them.
size_t bytes_around(const Tokenizer& tokenizer) {
  constexpr size_t kLeast = 64;
  return std::max(kLeast, tokenizer.longest_token());
}

bool continues(char c) { return (uint8_t(c) & 0xc0) == 0x80; }

// Whether a space ends text[0, at); malformed text is not a space, and is reported with its piece.
bool space_before(std::string_view text, size_t at) {
  size_t start = at - 1;
  while (start > 0 && at - start < 4 && continues(text[start])) --start;
  const std::string_view last = text.substr(start, at - start);
  if (!is_utf8(last)) return false;
  size_t begin = 0;
  return char_class(next_char(last, begin)) == CharClass::kSpace;
}

bool same_tokens(std::string_view text, size_t at, const Tokenizer& tokenizer) {
  const size_t around = bytes_around(tokenizer);
  size_t begin = at - std::min(at, around);
  while (begin < at && continues(text[begin])) ++begin;
  const std::string_view left = text.substr(begin, at - begin);
  if (!is_utf8(left)) return true;
  // The text up to the first character that is malformed or continues beyond this part.
  const std::string_view right = text.substr(at, around);
  const size_t end = std::min(right.size(), find_invalid_utf8(right));
  std::vector<int32_t> halves = tokenizer.encode(left);
  const std::vector<int32_t> second = tokenizer.encode(right.substr(0, end));
  halves.insert(halves.end(), second.begin(), second.end());
  return halves == tokenizer.encode(text.substr(begin, at - begin + end));
}

class DocumentReader {
 public:
  DocumentReader(const Tokenizer& tokenizer, const DocumentOptions& options,
                 const std::function<void(const DocumentPiece&)>& put)
      : tokenizer_(tokenizer), options_(options), put_(put) {}

  void read_text(ByteSource& source, bool may_be_marked) {
    held_.clear();
    bool begins = true, more = true;
    uint64_t base = 0;
    const size_t around = bytes_around(tokenizer_);
    auto put_until = [&](size_t cut) {
      put(std::string_view(held_).substr(0, cut), begins, false, source.name(), base);
      begins = false;
      drop(cut, base);
    };
    while (more) {
      while (held_.size() <= options_.piece_bytes + around && (more = fill(source))) continue;
      if (may_be_marked && begins && base == 0)
        drop(held_.size() - without_mark(held_).size(), base);
      if (!more) break;
      if (const size_t cut = last_cut(held_, options_.piece_bytes, tokenizer_)) {
        put_until(cut);
        continue;
      }
      // There is no cut in a piece: search further.
      while (more && held_.size() < options_.max_uncut) more = fill(source);
      const size_t cut = more ? last_cut(held_, held_.size() - around, tokenizer_) : 0;
      check_format(!more || cut > 0, source.name(), ": ", held_.size(), " bytes from offset ", base,
                   " on have no white space before which the text could be cut");
      if (cut > 0) put_until(cut);
    }
    if (!held_.empty() || !begins) put(held_, begins, true, source.name(), base);
  }

  void read_lines(ByteSource& source) {
    held_.clear();
    int64_t line = 0;
    size_t at = 0, searched = 0;  // the start of the line; no newline before `searched`
    for (bool more = true; more || at < held_.size();) {
      size_t end = held_.find('\n', searched);
      if (end == std::string::npos && more) {
        held_.erase(0, at);
        at = 0;
        searched = held_.size();
        check_format(held_.size() <= options_.max_line, source.name(), ":", line + 1,
                     ": the line is longer than ", options_.max_line, " bytes");
        more = fill(source);
        continue;
      }
      end = std::min(end, held_.size());
      ++line;
      put_line(std::string_view(held_).substr(at, end - at), source.name(), line);
      at = searched = std::min(end + 1, held_.size());
    }
  }

 private:
  bool fill(ByteSource& source) {
    const size_t before = held_.size();
    held_.resize(before + options_.piece_bytes);
    const size_t n = source.read(held_.data() + before, options_.piece_bytes);
    held_.resize(before + n);
    return n > 0;
  }

  void drop(size_t count, uint64_t& base) {
    held_.erase(0, count);
    base += count;
  }

  void put(std::string_view text, bool begins, bool ends, const std::string& where, uint64_t base) {
    refuse_malformed(where, text, base);
    put_({text, begins, ends});
  }

  void put_line(std::string_view line, const std::string& file, int64_t number) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1) line = without_mark(line);
    if (line.find_first_not_of(" \t") == std::string_view::npos) return;
    const std::string where = join(file, ":", number);
    nlohmann::json json;
    try {
      json = brine::parse_json(line, where);
    } catch (const nlohmann::json::exception&) {
    }
    check_format(json.is_object(), where, ": is not a JSON object in UTF-8");
    const auto found = json.find(options_.key);
    check_format(found != json.end(), where, ": key \"", options_.key, "\" is missing");
    check_format(found->is_string(), where, ": key \"", options_.key, "\" is not text");
    put_document(found->get_ref<const std::string&>(), where);
  }

  void put_document(std::string_view text, const std::string& where) {
    if (text.empty()) return;
    bool begins = true;
    while (text.size() > 2 * options_.piece_bytes) {
      size_t cut = last_cut(text, options_.piece_bytes, tokenizer_);
      if (cut == 0) cut = last_cut(text, std::min(text.size() - 4, options_.max_uncut), tokenizer_);
      if (cut == 0 && text.size() <= options_.max_uncut) break;
      check_format(cut > 0, where, ": ", text.size(),
                   " bytes have no white space before which the text could be cut");
      put_({text.substr(0, cut), begins, false});
      begins = false;
      text.remove_prefix(cut);
    }
    put_({text, begins, true});
  }

  const Tokenizer& tokenizer_;
  const DocumentOptions& options_;
  const std::function<void(const DocumentPiece&)>& put_;
  std::string held_;
};

}  // namespace

size_t last_cut(std::string_view text, size_t limit, const Tokenizer& tokenizer) {
  int trials = 0;
  for (size_t at = std::min(limit, text.empty() ? 0 : text.size() - 1); at > 0; --at) {
    if ((text[at] != ' ' && text[at] != '\n') || space_before(text, at)) continue;
    if (same_tokens(text, at, tokenizer)) return at;
    if (++trials == kMaxTrials) break;
  }
  return 0;
}

void read_documents(const Path& path, const Tokenizer& tokenizer, const DocumentOptions& options,
                    const std::function<void(const DocumentPiece&)>& put) {
  const auto source = open_unpacked(path);
  DocumentReader reader(tokenizer, options, put);
  const std::string& name = path.string();
  if (name.ends_with(".jsonl") || name.ends_with(".jsonl.gz"))
    reader.read_lines(*source);
  else
    reader.read_text(*source, true);
}

void read_joined_document(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                          const DocumentOptions& options,
                          const std::function<void(const DocumentPiece&)>& put) {
  JoinedLines lines(files, options.max_line);
  DocumentReader(tokenizer, options, put).read_text(lines, false);
}

}  // namespace brine::data
