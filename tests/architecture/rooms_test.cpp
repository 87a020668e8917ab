// Rooms, the folders inside a top-level folder: their includes have no cycle, and a class has one
// definition.
#include <functional>
#include <map>
#include <regex>
#include <set>

#include "tests/architecture/sources.h"

namespace brine::tests {
namespace {

// "distill/runs" of "distill/runs/stages/conversion.h"; "distill" of "distill/trainer.h".
std::string room_of(const std::string& path) {
  const size_t first = path.find('/'), second = path.find('/', first + 1);
  return path.substr(0, second == std::string::npos ? first : second);
}

using Arrows = std::map<std::string, std::set<std::string>>;

Arrows arrows_of(const std::vector<Source>& sources) {
  static const std::regex include("\\s*#\\s*include \"([^\"]+)\".*");
  Arrows out;
  for (const Source& s : sources) {
    for (const std::string& line : s.lines) {
      std::smatch m;
      if (!std::regex_match(line, m, include)) continue;
      const std::string to = m[1].str();
      if (to.rfind(s.folder() + "/", 0) != 0 || room_of(to) == room_of(s.path)) continue;
      out[room_of(s.path)].insert(room_of(to));
    }
  }
  return out;
}

// A cycle as "a -> b -> a"; empty when there is none.
std::string cycle_of(const Arrows& arrows) {
  std::set<std::string> done;
  std::vector<std::string> way;
  std::string found;
  const std::function<void(const std::string&)> visit = [&](const std::string& room) {
    if (done.count(room) || !found.empty()) return;
    const auto at = std::find(way.begin(), way.end(), room);
    if (at != way.end()) {
      for (auto i = at; i != way.end(); ++i) found += *i + " -> ";
      found += room;
      return;
    }
    way.push_back(room);
    if (arrows.count(room)) {
      for (const std::string& next : arrows.at(room)) visit(next);
    }
    way.pop_back();
    done.insert(room);
  };
  for (const auto& [room, next] : arrows) visit(room);
  return found;
}

TEST_CASE("the includes between the rooms of a folder have no cycle") {
  std::vector<Source> all = sources();
  for (const std::string& folder : folders()) {
    if (folder == "tests" || folder == "tensor") continue;
    std::vector<Source> of_folder;
    std::copy_if(all.begin(), all.end(), std::back_inserter(of_folder),
                 [&](const Source& s) { return s.folder() == folder; });
    CHECK(cycle_of(arrows_of(of_folder)) == "");
  }
  const std::vector<Source> circle = {source_of("data/a/x.h", "#include \"data/b/y.h\"\n"),
                                      source_of("data/b/y.h", "#include \"data/c/z.h\"\n"),
                                      source_of("data/c/z.h", "#include \"data/a/w.h\"\n")};
  CHECK(cycle_of(arrows_of(circle)) == "data/a -> data/b -> data/c -> data/a");
}

// Definitions of classes by "namespace::name" outside of other classes, which begin in the first
// column; in headers, where every source may see them.
std::map<std::string, std::set<std::string>> classes_of(const std::vector<Source>& sources) {
  static const std::regex space("namespace ([a-z_:]+) \\{.*"),
      defined("(?:class|struct|enum class) ([A-Za-z0-9_]+)(?: final)?(?: :.*)? ?\\{?.*");
  std::map<std::string, std::set<std::string>> out;
  for (const Source& s : sources) {
    const bool header = s.path.ends_with(".h") || s.path.ends_with(".cuh");
    if (!header || s.folder() == "tests") continue;
    std::string in;
    for (const std::string& line : s.lines) {
      std::smatch m;
      if (std::regex_match(line, m, space)) in = m[1];
      const std::string code = line.substr(0, line.find(" //"));
      if (code.find(';') != std::string::npos || !std::regex_match(code, m, defined)) continue;
      out[in + "::" + m[1].str()].insert(s.path);
    }
  }
  return out;
}

TEST_CASE("a class is defined once in a namespace") {
  const auto found = classes_of(sources());
  CHECK(found.size() > 500);
  for (const auto& [name, files] : found) {
    std::string all;
    for (const std::string& file : files) all += " " + file;
    CHECK_MESSAGE(files.size() == 1, name, " is defined in", all);
  }
  const std::string text = "namespace brine {\nstruct X {\n};\n}\n";
  CHECK(classes_of({source_of("nn/a.h", text), source_of("nn/b.h", text)})["brine::X"].size() == 2);
}

}  // namespace
}  // namespace brine::tests
