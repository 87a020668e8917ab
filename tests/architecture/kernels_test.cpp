// One family name in all locations: the kernels of a section of tensor/kernels/ are implemented,
// called and tested in files with the section's name, in the folder with the header's name.
#include <map>
#include <set>

#include "tests/architecture/sources.h"

namespace brine::tests {
namespace {

struct Kernel {
  std::string name, room, family;  // "gelu_backward", "dense", "elementwise"
};

bool is_word(char c) { return std::isalnum((unsigned char)c) || c == '_'; }

// The word that begins at `at`, white space skipped.
std::string word_at(const std::string& text, size_t at) {
  while (at < text.size() && std::isspace((unsigned char)text[at])) ++at;
  size_t end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(at, end - at);
}

bool begins(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

// The kernels that a header of tensor/kernels/ declares. A family is a section: "// ---- name:
// ...".
std::vector<Kernel> declared(const Source& header) {
  const std::string section = "// ---- ", macro = "BRINE_KERNEL(";
  const size_t slash = header.path.rfind('/') + 1;
  const std::string room = header.path.substr(slash, header.path.rfind('.') - slash);
  std::vector<Kernel> out;
  std::string family;
  for (const std::string& line : header.lines) {
    if (begins(line, section)) family = word_at(line, section.size());
    if (begins(line, macro)) out.push_back({word_at(line, macro.size()), room, family});
  }
  return out;
}

// The contents of the files of one location: function names that are defined, called or mentioned.
using Names = std::map<std::string, std::set<std::string>>;  // path -> names

std::string code_of(const Source& s) {
  std::string out;
  for (const std::string& line : s.lines) out += tests::code_of(line) + "\n";
  return out;
}

// Functions `void name(` at the beginning of a line.
std::set<std::string> defined(const Source& s) {
  std::set<std::string> out;
  for (const std::string& line : s.lines) {
    if (!begins(line, "void ")) continue;
    const std::string name = word_at(line, 5);
    if (line.compare(5 + name.size(), 1, "(") == 0) out.insert(name);
  }
  return out;
}

// Second arguments of BRINE_CALL: the kernels that are called.
std::set<std::string> called(const Source& s) {
  const std::string code = code_of(s), call = "BRINE_CALL(";
  std::set<std::string> out;
  for (size_t at = code.find(call); at != std::string::npos; at = code.find(call, at + 1)) {
    int depth = 0;
    size_t end = at + call.size();
    while (end < code.size() && (depth > 0 || code[end] != ',')) {
      depth += (code[end] == '(') - (code[end] == ')');
      ++end;
    }
    out.insert(word_at(code, end + 1));
  }
  return out;
}

std::set<std::string> mentioned(const Source& s) {
  const std::string code = code_of(s);
  std::set<std::string> out;
  for (size_t at = 0; at < code.size();) {
    const std::string word = is_word(code[at]) ? word_at(code, at) : "";
    if (!word.empty()) out.insert(word);
    at += word.empty() ? 1 : word.size();
  }
  return out;
}

// path is <folder>/<family>[_*]<ending>.
bool is_of(const std::string& path, const std::string& folder, const std::string& family,
           const std::string& ending) {
  if (!begins(path, folder + "/" + family) || path.size() < ending.size()) return false;
  if (path.compare(path.size() - ending.size(), ending.size(), ending) != 0) return false;
  const std::string rest = path.substr(folder.size() + 1 + family.size());
  return rest.size() >= ending.size() && (rest.size() == ending.size() || rest[0] == '_') &&
         rest.find('/') == std::string::npos;
}

struct Location {
  std::string folder, ending;
};

// How tests of the CPU name a kernel: by the op or function through which they call it.
std::string tested_name(const std::string& kernel) {
  static const std::map<std::string, std::string> through = {
      {"count_csr", "build_csr"}, {"fill_csr", "build_csr"},
      {"activation", "gelu"},     {"activation_backward", "gelu"},
      {"map_unary", "exp"},       {"map_binary", "div"},
      {"compare", "less"},        {"reduce", "mean"},
      {"scatter_add", "gather"}};
  if (const auto it = through.find(kernel); it != through.end()) return it->second;
  const std::string backward = "_backward";
  const size_t at = kernel.rfind(backward);
  return at == std::string::npos ? kernel : kernel.substr(0, at);
}

// The ops and kernels of tables, which are proved on the CPU and on a GPU.
const std::string kTables = "tests/ops/";

struct Tree {
  Names definitions, calls, words;
};

Tree read(const std::vector<Source>& all) {
  Tree out;
  for (const Source& s : all) {
    if (begins(s.path, "tensor/cpu/") || begins(s.path, "tensor/cuda/")) {
      out.definitions[s.path] = defined(s);
    } else if (begins(s.path, "autograd/") || begins(s.path, "tensor/")) {
      out.calls[s.path] = called(s);
    } else if (begins(s.path, "tests/cuda/") || begins(s.path, "tests/tensor/") ||
               begins(s.path, "tests/autograd/") || begins(s.path, kTables)) {
      out.words[s.path] = mentioned(s);
    }
  }
  return out;
}

bool found(const Names& names, const std::string& name, const std::string& family,
           const std::vector<Location>& locations) {
  for (const auto& [path, in_file] : names) {
    for (const Location& location : locations) {
      if (in_file.count(name) && is_of(path, location.folder, family, location.ending)) return true;
    }
  }
  return false;
}

// The locations in which a kernel is missing.
Complaints misplaced(const Kernel& k, const Tree& tree) {
  const std::string what = k.room + ".h: " + k.name;
  if (k.family.empty()) return {what + " belongs to no family"};
  Complaints out;
  auto need = [&](const Names& names, const std::string& name, const std::vector<Location>& in) {
    if (found(names, name, k.family, in)) return;
    std::string missing = what + " is not in ";
    for (size_t i = 0; i < in.size(); ++i) {
      missing += (i ? " or " : "") + in[i].folder + "/" + k.family + "*" + in[i].ending;
    }
    out.push_back(missing);
  };
  need(tree.definitions, k.name, {{"tensor/cpu/" + k.room, ".cpp"}});
  need(tree.definitions, k.name, {{"tensor/cuda/" + k.room, ".cu"}});
  need(tree.calls, k.name, {{"autograd/" + k.room, ".cpp"}, {"tensor/functions", ".cpp"}});
  for (const auto& [path, words] : tree.words) {
    const bool own =
        begins(path, kTables) ||
        (is_of(path, "tests/autograd/" + k.room, k.family, "_test.cpp") && words.count("check_op"));
    if (own && words.count(tested_name(k.name))) return out;
  }
  need(tree.words, k.name, {{"tests/cuda/" + k.room, "_test.cpp"}});
  need(tree.words, tested_name(k.name),
       {{"tests/tensor/" + k.room, "_test.cpp"}, {"tests/autograd/" + k.room, "_test.cpp"}});
  return out;
}

TEST_CASE("every kernel has its family's name in all five locations") {
  const std::vector<Source> all = sources();
  const Tree tree = read(all);
  size_t kernels = 0, right = 0;
  std::set<std::string> names, families;
  for (const Source& s : all) {
    if (!begins(s.path, "tensor/kernels/") || s.path == "tensor/kernels/kernel.h") continue;
    for (const Kernel& k : declared(s)) {
      const Complaints complaints = misplaced(k, tree);
      for (const std::string& c : complaints) FAIL_CHECK(c);
      ++kernels;
      right += complaints.empty();
      CHECK_MESSAGE(names.insert(k.name).second, k.name << " is declared twice");
      families.insert(k.room + "/" + k.family);
    }
  }
  CHECK(kernels > 80);  // the headers were found
  MESSAGE(right << " of " << kernels << " kernels of " << families.size()
                << " families have one name in all locations");
}

TEST_CASE("the rule of families detects a violation") {
  const Source header = source_of("tensor/kernels/dense.h",
                                  "// ---- norm: over rows\n"
                                  "BRINE_KERNEL(layernorm, Tensor y)\n"
                                  "BRINE_KERNEL(layernorm_backward, Tensor dx)\n");
  const std::vector<Kernel> kernels = declared(header);
  REQUIRE(kernels.size() == 2);
  CHECK(kernels[1].name == "layernorm_backward");
  CHECK(kernels[1].family == "norm");
  const std::string code = "void layernorm(Tensor y) {}\nvoid layernorm_backward(Tensor dx) {}\n";
  const std::string calls =
      "BRINE_CALL(f(x, y), layernorm, y);\nBRINE_CALL(dx,\n    layernorm_backward, dx);\n";
  std::vector<Source> tree = {source_of("tensor/cpu/dense/norm.cpp", code),
                              source_of("tensor/cuda/dense/norm.cu", code),
                              source_of("autograd/dense/norm.cpp", calls),
                              source_of("tests/cuda/dense/norm_rows_test.cpp", calls),
                              source_of("tests/tensor/dense/norm_test.cpp", "y = layernorm(x);")};
  for (const Kernel& k : kernels) CHECK(misplaced(k, read(tree)).empty());
  const std::vector<std::string> elsewhere = {
      "tensor/cpu/dense/normal.cpp", "tensor/cuda/conv/norm.cu", "nn/norm.cpp",
      "tests/cuda/dense/norm.cpp", "tests/tensor/dense/rows_test.cpp"};
  for (size_t i = 0; i < tree.size(); ++i) {
    std::vector<Source> moved = tree;
    moved[i].path = elsewhere[i];
    for (const Kernel& k : kernels) CHECK(misplaced(k, read(moved)).size() == 1);
  }
  tree[2] = source_of("autograd/dense/norm.cpp", "// BRINE_CALL(x, layernorm, y)");
  CHECK(misplaced(kernels[0], read(tree)).size() == 1);
  const Source ops = source_of("tests/autograd/dense/norm_test.cpp", "check_op(layernorm)");
  CHECK(misplaced(kernels[0],
                  read({tree[0], tree[1], source_of("autograd/dense/norm.cpp", calls), ops}))
            .empty());
  const Source loose = source_of("tensor/kernels/dense.h", "BRINE_KERNEL(copy, Tensor y)");
  CHECK(misplaced(declared(loose)[0], Tree{}).size() == 1);
}

}  // namespace
}  // namespace brine::tests
