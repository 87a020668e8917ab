// Rooms, the folders inside a top-level folder: their includes have no cycle, and a class has one
// definition.
#include <functional>
#include <map>
#include <regex>
#include <set>

#include "tests/architecture/sources.h"

namespace brine::tests {
namespace {

// The folder below `folder` that a file is in: of "distill", "distill/runs" for
// "distill/runs/stages/attention_stage.h", and "distill" for its file "distill/trainer.h".
std::string room_of(const std::string& path, const std::string& folder) {
  const size_t end = path.find('/', folder.size() + 1);
  return end == std::string::npos ? folder : path.substr(0, end);
}

bool is_in(const std::string& path, const std::string& folder) {
  return path.rfind(folder + "/", 0) == 0;
}

using Arrows = std::map<std::string, std::set<std::string>>;

// The includes between the rooms of a folder. The files of a top-level folder are a room of it;
// those of an inner one are the interface of its rooms, and do not count.
Arrows arrows_of(const std::vector<Source>& sources, const std::string& folder) {
  static const std::regex include("\\s*#\\s*include \"([^\"]+)\".*");
  Arrows out;
  const bool inner = folder.find('/') != std::string::npos;
  for (const Source& s : sources) {
    if (!is_in(s.path, folder)) continue;
    const std::string from = room_of(s.path, folder);
    for (const std::string& line : s.lines) {
      std::smatch m;
      if (!std::regex_match(line, m, include) || !is_in(m[1].str(), folder)) continue;
      const std::string to = room_of(m[1].str(), folder);
      if (from != to && !(inner && (from == folder || to == folder))) out[from].insert(to);
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

// Every folder with sources below it: "distill", "distill/runs", "distill/runs/stages"...
std::set<std::string> all_folders(const std::vector<Source>& sources) {
  std::set<std::string> out;
  for (const Source& s : sources) {
    for (size_t at = s.path.find('/'); at != std::string::npos; at = s.path.find('/', at + 1)) {
      out.insert(s.path.substr(0, at));
    }
  }
  return out;
}

TEST_CASE("the includes between the rooms of a folder have no cycle") {
  const std::vector<Source> all = sources();
  size_t checked = 0;
  for (const std::string& folder : all_folders(all)) {
    if (folder == "tests" || is_in(folder, "tests")) continue;
    CHECK(cycle_of(arrows_of(all, folder)) == "");
    ++checked;
  }
  CHECK(checked > 50);
  const std::vector<Source> circle = {source_of("data/a/x.h", "#include \"data/b/y.h\"\n"),
                                      source_of("data/b/y.h", "#include \"data/c/z.h\"\n"),
                                      source_of("data/c/z.h", "#include \"data/a/w.h\"\n")};
  CHECK(cycle_of(arrows_of(circle, "data")) == "data/a -> data/b -> data/c -> data/a");
  const std::vector<Source> inner = {source_of("data/a/b/x.h", "#include \"data/a/c/y.h\"\n"),
                                     source_of("data/a/c/y.h", "#include \"data/a/b/x.h\"\n"),
                                     source_of("data/a/z.h", "#include \"data/a/b/x.h\"\n"),
                                     source_of("data/a/b/w.h", "#include \"data/a/z.h\"\n")};
  CHECK(cycle_of(arrows_of(inner, "data")) == "");
  CHECK(cycle_of(arrows_of(inner, "data/a")) == "data/a/b -> data/a/c -> data/a/b");
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
