// Which keys each query kept, and with what mass, as lines of JSON: for programs that act on it.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "data/io/file_io.h"
#include "distill/maps/layer_view.h"

namespace brine::distill {

struct ImportanceRequest {
  int64_t most = 0;  // keys of each query, those with the largest masses; 0: all that it kept
  std::set<int64_t> layers = {}, heads = {};  // only these; empty: all
};

// The first line of the file has "format" ("brine-importance"), "version" (1), what `head` has, and
// "tokens", the text of each. Then one line for each layer, head and query, in this order:
//   {"layer", "head", "query", "kept", "teacher", "keys": [...], "mass": [...]}
// `kept` is how many keys it kept, `teacher` the teacher's mass on these (the row's mask recall);
// keys are positions by falling mass, of equal masses the earlier first. The file is complete after
// finish(); without it nothing is left.
class ImportanceFile {
 public:
  ImportanceFile(const data::Path& path, const data::Json& head,
                 const std::vector<std::string>& tokens);
  // What importance_lines() made of the next layer.
  void add(const std::string& lines) { file_.write(lines); }
  void finish() { file_.commit(); }

 private:
  data::AtomicFile file_;
};

// The lines of a layer; throws if it has no mask.
std::string importance_lines(const ImportanceRequest& request, int64_t layer,
                             const LayerView& view);

}  // namespace brine::distill
