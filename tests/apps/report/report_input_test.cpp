// What brine report reads: captures, flags that do not fit.
#include "apps/report/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/figure/colours.h"
#include "data/hdf5/hdf5_file.h"
#include "tests/apps/report/page.h"
#include "tests/apps/world.h"
#include "tests/skip.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::json;

// A capture with changes: change(name, tensor) gives what is written in place of each tensor; an
// undefined one is left out. Returns the path of `copy`.
template <class Change>
std::string changed_capture(const std::string& original, const std::string& copy, Change change) {
  const std::string path = world().path(copy);
  fs::remove(path);
  const data::Hdf5Reader whole(world().path(original));
  data::Hdf5Writer out(path);
  for (const std::string& name : whole.attributes("/")) {
    if (whole.is_string_attribute("/", name)) {
      out.attribute("/", name, std::string_view(whole.string_attribute("/", name)));
    } else {
      out.attribute("/", name, whole.int_attribute("/", name));
    }
  }
  for (const std::string& name : whole.datasets()) {
    const Tensor value = change(name, whole.read(name).clone());
    if (value.defined()) out.write(name, value);
  }
  out.close();
  return path;
}

}  // namespace

TEST_CASE("report: a capture gives the maps of the pass that it recorded") {
  const World& w = world();
  fs::remove(w.path("capture.h5"));
  w.must(std::string("inspect student --capture capture.h5 ") + kText);
  const Json from_file = page_data(written("capture.h5")).at("attention")[0];
  const Json from_model = page_data(written(std::string("student ") + kText)).at("attention")[0];
  for (const char* key : {"maps", "recall", "tokens", "words", "texts", "heat", "method", "k"}) {
    CAPTURE(key);
    CHECK(from_file.at(key) == from_model.at(key));
  }
  check_says(refusal(std::string("capture.h5 ") + kText), {"text", "model"});
  check_says(refusal(std::string("capture.h5 student ") + kText), {"capture", "own text"});
}

TEST_CASE("report: a damaged capture or log, and what is none of its inputs, are one line each") {
  const World& w = world();
  fs::remove(w.path("damaged.h5"));
  w.must(std::string("inspect student --capture damaged.h5 ") + kText);
  const std::string bytes = read_all(w.path("damaged.h5"));
  w.write("short.h5", bytes.substr(0, bytes.size() / 2));
  check_says(refusal("short.h5"), {"short.h5"});
  // A mask whose entries lead outside the map.
  for (const char* broken : {"columns", "head_offsets", "row_pointers", "probabilities"}) {
    CAPTURE(broken);
    const std::string path = changed_capture(
        "damaged.h5", std::string("broken-") + broken + ".h5",
        [&](const std::string& name, Tensor value) {
          if (name != std::string("layers/01/") + broken) return value;
          if (value.dtype() == Dtype::i32) value.data<int32_t>()[value.numel() - 1] += 1000;
          if (value.dtype() == Dtype::i64) value.data<int64_t>()[1] = -5;
          return value.dtype() == Dtype::f32 ? value.slice(0, 0, value.dim(0) - 1) : value;
        });
    const std::string said = refusal(path);
    CHECK(contains(said, path));
    CHECK(contains(said, "layers/01/"));
  }
  fs::create_directories(w.path("bad-log"));
  w.write("bad-log/log.jsonl", "{\"type\":\"step\",\"step\":1}\nnot a line\n");
  check_says(refusal("bad-log"), {"bad-log/log.jsonl:2", "JSON"});
  check_says(refusal("text.txt"), {"text.txt", "capture"});
  check_says(refusal("tok"), {"tok", "run"});
  check_says(refusal("nowhere"), {"nowhere"});
  w.write("sweep-bad.tsv", "k\tquery_skip\tperplexity\n4\t1\n");
  check_says(refusal("sweep-bad.tsv"), {"sweep-bad.tsv:2", "2 cells"});
}

TEST_CASE("report: a capture whose layers differ in their parts, offsets beyond the mask") {
  const World& w = world();
  fs::remove(w.path("parts.h5"));
  w.must(std::string("inspect student --capture parts.h5 ") + kText);
  const std::string no_mask =
      changed_capture("parts.h5", "no-mask.h5", [](const std::string& name, Tensor value) {
        return name == "layers/01/columns" ? Tensor() : value;
      });
  check_says(refusal(no_mask), {"no-mask.h5", "layer 1", "mask"});
  const std::string no_estimate =
      changed_capture("parts.h5", "no-estimate.h5", [](const std::string& name, Tensor value) {
        return name == "layers/01/estimate" ? Tensor() : value;
      });
  check_says(refusal(no_estimate), {"no-estimate.h5", "layer 1", "estimate"});
  const std::string beyond =
      changed_capture("parts.h5", "beyond.h5", [](const std::string& name, Tensor value) {
        if (name == "layers/01/head_offsets") value.data<int32_t>()[1] += 1000000;
        return value;
      });
  check_says(refusal(beyond), {"beyond.h5", "layers/01/", "query 0"});
}

TEST_CASE("report: a text whose queries see at most k keys has no recall of zero") {
  const std::string html = written("student --text 'the'");
  const Json data = page_data(html);
  const Json& a = data.at("attention")[0];
  CHECK(a.at("tokens").get<int>() <= 4);  // k of this student
  CHECK(a.count("recall") == 0);
}

TEST_CASE("report: flags without what they choose from are refused, cells are rounded to a side") {
  check_says(refusal("student --layers 1"), {"--layers", "text"});
  check_says(refusal("student --cells 8"), {"--cells", "text"});
  check_says(refusal(std::string("student --tokenizer tok ") + kText), {"--tokenizer", "captures"});
  const Json a = page_data(written(std::string("student --cells 10 ") + kText)).at("attention")[0];
  CHECK(a.at("cells") == 8);
  // Full attention is compared with no teacher.
  const Json dense =
      page_data(written(std::string("teacher --teacher teacher ") + kText)).at("attention")[0];
  CHECK(dense.at("teacher") == "the model's own dense attention");
  // A command that can be pasted.
  const Json quoted = page_data(written("student --text 'it'\\''s <b>'"));
  CHECK(contains(quoted.at("command").get<std::string>(), "--text 'it'\\''s <b>'"));
}

TEST_CASE("report: flags without a text are refused, full attention has no recall") {
  const Json dense = page_data(written(std::string("teacher ") + kText));
  CHECK(dense.at("attention")[0].count("recall") == 0);
  check_says(refusal("teacher --window 1"), {"--window", "without a text"});
}

TEST_CASE("report: an empty text is refused in one line") {
  check_says(refusal("student --text ''"), {"--text", "empty"});
  check_says(refusal("student --tokens ''"), {"--tokens", "empty"});
  check_says(refusal("student --data ''"), {"--data", "empty"});
  const Finished f = world().run("inspect student --capture empty.h5 --text ''");
  CHECK(f.status == 1);
  check_says(f.error, {"--text", "empty"});
}

}  // namespace brine::tests
