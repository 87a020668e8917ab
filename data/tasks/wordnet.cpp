// The glosses of WordNet, from the files data.noun, data.verb, data.adj and data.adv.
#include <filesystem>

#include "data/codec/checksums.h"
#include "data/io/utf8.h"
#include "data/tasks/task_readers.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

std::string_view trim(std::string_view text) {
  size_t from = text.find_first_not_of(' '), to = text.find_last_not_of(' ');
  return from == std::string_view::npos ? std::string_view() : text.substr(from, to - from + 1);
}

// A gloss is a definition and, from "; \"" on, usage examples.
std::string_view definition_of(std::string_view gloss) {
  return gloss.substr(0, gloss.find("; \""));
}

const char* split_of(std::string_view gloss) {
  uint32_t draw = crc32c(definition_of(gloss)) % 20;
  return draw == 0 ? "dev" : draw == 1 ? "test" : "train";
}

// "OFFSET FILE TYPE ... | GLOSS", where the offset is that of the line in the file.
void read_synset(std::string_view line, uint64_t offset, const std::string& where,
                 const std::string& split, TaskExamples& out) {
  uint64_t stated = 0, number = 0;
  check_format(line.size() > 14 && line[8] == ' ' && line[11] == ' ' && line[13] == ' ' &&
                   parse_number(line.substr(0, 8), stated) &&
                   parse_number(line.substr(9, 2), number),
               where, ": does not start like a synset (\"OFFSET FILE TYPE\")");
  check_format(stated == offset, where, ": synset offset ", stated, " at byte ", offset);
  check_format(number < out.labels.size(), where, ": lexicographer file ", number, ", there are ",
               out.labels.size());
  size_t bar = line.find(" | ");
  check_format(bar != std::string_view::npos, where, ": synset without a gloss");
  std::string_view gloss = trim(line.substr(bar + 3));
  check_format(!gloss.empty(), where, ": the gloss is empty");
  if (split_of(gloss) != split) return;
  out.rows.push_back({.first = std::string(gloss), .target = double(number)});
}

}  // namespace

std::vector<std::string> wordnet_files() {
  return {"adj.all",          "adj.pert",           "adv.all",
          "noun.Tops",        "noun.act",           "noun.animal",
          "noun.artifact",    "noun.attribute",     "noun.body",
          "noun.cognition",   "noun.communication", "noun.event",
          "noun.feeling",     "noun.food",          "noun.group",
          "noun.location",    "noun.motive",        "noun.object",
          "noun.person",      "noun.phenomenon",    "noun.plant",
          "noun.possession",  "noun.process",       "noun.quantity",
          "noun.relation",    "noun.shape",         "noun.state",
          "noun.substance",   "noun.time",          "verb.body",
          "verb.change",      "verb.cognition",     "verb.communication",
          "verb.competition", "verb.consumption",   "verb.contact",
          "verb.creation",    "verb.emotion",       "verb.motion",
          "verb.perception",  "verb.possession",    "verb.social",
          "verb.stative",     "verb.weather",       "adj.ppl"};
}

TaskExamples read_wordnet(const Task& task, const Path& dir, const TaskSplit& split) {
  check_found(std::filesystem::is_directory(dir), dir.string(),
              ": no WordNet there; Debian's package is wordnet-base");
  TaskExamples out{.labels = task.labels, .rows = {}};
  for (const char* name : {"data.noun", "data.verb", "data.adj", "data.adv"}) {
    std::string file = (dir / name).string(), text = read_text(file);
    int64_t number = 0;
    for (std::string_view rest = text; !rest.empty();) {
      const size_t at = text.size() - rest.size();
      const std::string_view line = take_part(rest, '\n');
      ++number;
      // The licence is at the beginning, with indented lines.
      if (!line.starts_with("  ")) {
        read_synset(line, at, join(file, ":", number), split.name, out);
      }
    }
  }
  return out;
}

}  // namespace brine::data
