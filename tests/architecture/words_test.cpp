// The words of comments, messages and documents: phrases that CONTRIBUTING.md replaces by plain
// ones.
#include <cctype>
#include <regex>

#include "tests/architecture/sources.h"

namespace brine::tests {
namespace {

struct Phrase {
  std::string start;       // in lower case, at the beginning of a word
  std::regex rest;         // what follows it
  std::string suggestion;  // what to write instead
  std::string not_after;   // no complaint after this word
};

Phrase phrase(const std::string& start, const std::string& suggestion,
              const std::string& rest = "\\b", const std::string& not_after = "") {
  return {start, std::regex(rest), suggestion, not_after};
}

const std::vector<Phrase>& phrases() {
  const std::string noun =
      "(?!longer\\b|more\\b|less\\b|better\\b|faster\\b|other\\b|such\\b)[a-z]";
  const std::string place = " (in|on|at|behind|outside|under|between|there|apart|packed|next)\\b";
  static const std::vector<Phrase> all = {
      phrase("is no ", "\"is not a\"", noun, "there"),
      phrase("are no ", "\"are not\"", noun, "there"),
      phrase("there twice", "\"duplicate\""),
      phrase("beside", "\"next to\""),
      phrase("wants", "\"needs\", \"requires\", \"expects\""),
      phrase("lies", "\"is in\"", place),
      phrase("stands", "\"is in\"", place),
      phrase("holds", "\"contains\", \"has\"",
             " (no|a|an|the|one|all|what|only|its|more|every|another)\\b"),
      phrase("dwells", "\"is in\""),
      phrase("heed", "\"use\"", "(s|ed)?\\b"),
      phrase("foretell", "\"predict\"", ""),
      phrase("whoever", "\"the caller\", or the name"),
      phrase("nobody", "\"no caller\", \"no thread\", \"nothing\""),
      phrase("somebody", "\"a caller\", \"another thread\""),
      phrase("one's own", "\"its own\""),
      phrase("of ours", "\"Brine's\""),
      phrase("of old", "\"earlier\""),
      phrase("by heart", "\"memorised\""),
      phrase("and the like", "the names"),
      phrase("at hand", "\"available\""),
      phrase("all the same", "\"still\""),
      phrase("told apart", "\"distinguished\""),
      phrase("mended", "\"fixed\""),
      phrase("(method ", "\"docs/method.md section\"", "[0-9]"),
  };
  return all;
}

bool word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Comments and string contents of a line of C++: what code_of() removes. '|' separates them where
// code was, so that only literals next to each other, of two lines too, are one text.
std::string words_of_code(const std::string& line) {
  std::string out;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote) {
      if (c == '\\') {
        ++i;
        out += ' ';
      } else if (c == quote) {
        quote = 0;
      } else if (quote == '"') {
        out += c;
      }
      continue;
    }
    if (line.compare(i, 2, "//") == 0) {
      return out + line.substr(line.find_first_not_of('/', i) == std::string::npos
                                   ? line.size()
                                   : line.find_first_not_of('/', i));
    }
    const bool separates_digits = c == '\'' && i > 0 && std::isalnum((unsigned char)line[i - 1]);
    if (c == '"' || (c == '\'' && !separates_digits)) {
      quote = c;
    } else if (c != ' ' && (out.empty() || out.back() != '|')) {
      out += '|';
    }
  }
  return out;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Line by line the prose of a file: of a source its comments and strings, of a document everything
// outside code blocks and outside the table of words, of a script its comments.
std::vector<std::string> prose(const Source& s) {
  static const std::regex source("\\.(h|cpp|cu|cuh|inc)$");
  const bool is_page = ends_with(s.path, ".md"), is_source = std::regex_search(s.path, source);
  std::vector<std::string> out;
  bool in_code = false;
  for (const std::string& line : s.lines) {
    std::string text;
    if (is_page) {
      if (line.rfind("```", 0) == 0) in_code = !in_code;
      if (!in_code && line.rfind("| \"", 0) != 0) text = line;
    } else if (is_source) {
      text = words_of_code(line);
    } else if (const size_t hash = line.find('#'); hash != std::string::npos) {
      text = line.substr(hash + 1);
    }
    out.push_back(text);
  }
  return out;
}

bool follows(const std::string& text, size_t at, const std::string& word) {
  return !word.empty() && at > word.size() &&
         text.compare(at - word.size() - 1, word.size(), word) == 0;
}

Complaints dialect(const Source& s) {
  std::string text;
  std::vector<size_t> starts;  // of each line in the text
  for (const std::string& line : prose(s)) {
    starts.push_back(text.size());
    for (char c : line + " ") {
      if (c != ' ' || (!text.empty() && text.back() != ' ')) text += c;
    }
  }
  for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));
  Complaints out;
  for (const Phrase& p : phrases()) {
    for (size_t at = text.find(p.start); at != std::string::npos; at = text.find(p.start, at + 1)) {
      if (at > 0 && word_character(text[at - 1])) continue;
      const auto rest = text.cbegin() + int64_t(at + p.start.size());
      constexpr auto here =
          std::regex_constants::match_continuous | std::regex_constants::match_prev_avail;
      std::smatch found;
      if (!std::regex_search(rest, text.cend(), found, p.rest, here)) continue;
      if (follows(text, at, p.not_after)) continue;
      const size_t line =
          size_t(std::upper_bound(starts.begin(), starts.end(), at) - starts.begin());
      out.push_back(place(s, line - 1) + ": \"" + p.start + found.str() + "\" -> " + p.suggestion);
    }
  }
  return out;
}

// Documents, scripts and build files, which sources() does not list.
std::vector<Source> documents() {
  namespace fs = std::filesystem;
  const fs::path root = brine::test::source_dir();
  std::vector<Source> out;
  auto add = [&](const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    out.push_back(source_of(fs::relative(file, root).string(), text.str()));
  };
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (ends_with(name, ".md") || name == "CMakeLists.txt") add(entry.path());
  }
  std::vector<std::string> all = folders();
  all.insert(all.end(), {"docs", "cmake", "scripts", "configs"});
  for (const std::string& folder : all) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string path = fs::relative(entry.path(), root).string();
      const bool is_test_data = path.rfind("tests/golden/", 0) == 0 ||
                                path.rfind("tests/fuzz/seeds/", 0) == 0 ||
                                path.rfind("tests/fuzz/finds/", 0) == 0;
      const std::string end = entry.path().extension().string();
      const bool text = end == ".md" || end == ".cmake" || end == ".py" || end == ".toml" ||
                        entry.path().filename() == "CMakeLists.txt" ||
                        (folder == "scripts" && end.empty());
      if (entry.is_regular_file() && text && !is_test_data) add(entry.path());
    }
  }
  return out;
}

TEST_CASE("comments, messages and documents use the words of the field") {
  std::vector<Source> all = sources(), pages = documents();
  CHECK(pages.size() > 30);  // the tree was found
  all.insert(all.end(), pages.begin(), pages.end());
  for (const Source& s : all) {
    if (s.path == "tests/architecture/words_test.cpp") continue;  // the list itself
    for (const std::string& complaint : dialect(s)) FAIL_CHECK(complaint);
  }
}

TEST_CASE("the rule of words detects a phrase and names file, line and replacement") {
  CHECK(dialect(source_of("nn/a.cpp", "int a;\nint b;  // Beside a.\n")) ==
        Complaints{"nn/a.cpp:2: \"beside\" -> \"next to\""});
  CHECK(dialect(source_of("nn/a.cpp", "check(ok, \"the loss is no scalar\");")).size() == 1);
  CHECK(dialect(source_of("nn/a.cpp", "// The loss is\n// no scalar.")).size() == 1);
  CHECK(dialect(source_of("nn/a.cpp", "check(ok, \"the loss is \"\n  \"no scalar\");")).size() ==
        1);
  CHECK(dialect(source_of("nn/a.cpp", "print(\"the loss is \", \"no scalar\");")).empty());
  CHECK(dialect(source_of("nn/a.cpp", "// There is no loss, and it is no longer needed.")).empty());
  CHECK(dialect(source_of("nn/a.cpp", "bool wants = holds(a);")).empty());
  CHECK(dialect(source_of("nn/a.cpp", "// besides, wants_grad() is true")).empty());
  CHECK(dialect(source_of("nn/a.cpp", "// Adds a row (method 1.2).")).size() == 1);
  CHECK(dialect(source_of("docs/a.md", "A shard\nholds the rows.\n```\nholds the rows\n```\n"))
            .size() == 1);
  CHECK(dialect(source_of("CONTRIBUTING.md", "| \"heeds\" | \"uses\" |")).empty());
  CHECK(dialect(source_of("scripts/a", "lies=in  # where it lies in memory")).size() == 1);
}

}  // namespace
}  // namespace brine::tests
