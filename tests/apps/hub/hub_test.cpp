// Models by their name on the Hub, in a cache as huggingface_hub lays it out.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

// Copies the files of `directory` to blobs of the cache, with links to them in a snapshot.
void add(const fs::path& cache, const std::string& folder, const fs::path& directory) {
  const fs::path model = cache / folder, snapshot = model / "snapshots" / kCommit;
  for (const fs::path& made : {model / "refs", model / "blobs", snapshot}) {
    fs::create_directories(made);
  }
  std::ofstream(model / "refs" / "main") << kCommit;
  int n = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string blob = "blob" + std::to_string(n++);
    fs::copy_file(entry.path(), model / "blobs" / blob);
    fs::create_symlink("../../blobs/" + blob, snapshot / entry.path().filename());
  }
}

const World& with_cache() {
  static const World& w = [&]() -> const World& {
    const World& made = world();
    made.must("export --checkpoint teacher --out hub-dense --quiet");
    // A student whose base is the teacher's.
    made.must(
        "distill --teacher teacher --data text.txt --steps 1 --batch-size 2 --out hub-frozen "
        "--columns 16 --learning-rate 0 --attention-learning-rate 1e-3 --quiet");
    add(made.path("hub"), "models--acme--dense", made.path("hub-dense"));
    add(made.path("hub"), "models--acme--student", made.path("export"));
    return made;
  }();
  return w;
}

const std::string kOnly = "unset HF_HUB_CACHE HF_HOME XDG_CACHE_HOME; export HOME=$PWD/hub-home ";
const std::string kHub = kOnly + "HF_HUB_CACHE=$PWD/hub; ";

}  // namespace

TEST_CASE("hub: commands take names for models, teachers, tokenizers and bases") {
  const World& w = with_cache();
  auto evaluated = [&](const std::string& model, const std::string& teacher) {
    const Finished f = w.run("eval --json --quiet --data text.txt --max-windows 2 --model " +
                                 model + " --teacher " + teacher,
                             kHub);
    REQUIRE_MESSAGE(f.status == 0, f.error);
    Json json = Json::parse(f.out);
    json.erase("model");
    json.erase("peak_memory");
    return json.at("nll").dump() + json.at("mask_recall").dump();
  };
  CHECK(evaluated("acme/student", "acme/dense@" + kCommit) == evaluated("export", "hub-dense"));
  for (const std::string command :
       {"tokenize --tokenizer acme/dense --out named-shards text.txt", "inspect acme/dense",
        "flops --model acme/student",
        "export --checkpoint hub-frozen --sea-only --base-model acme/dense --out named-base",
        "generate --model named-base --prompt the --tokens 1"}) {
    const Finished f = w.run(command + " --quiet", kHub);
    CHECK_MESSAGE(f.status == 0, command << ": " << f.error);
  }
  CHECK(contains(w.run("inspect acme/student --quiet", kHub).out, kCommit));
}

TEST_CASE("hub: the environment says where the cache is, in the order of huggingface_hub") {
  const World& w = with_cache();
  const fs::path hub = w.path("hub");
  for (const char* folder :
       {"hub-a", "hub-b/hub", "hub-c/huggingface/hub", "hub-home/.cache/huggingface/hub"}) {
    fs::create_directories(fs::path(w.path(folder)).parent_path());
    fs::create_directory_symlink(hub, w.path(folder));
  }
  const std::string inspect = "inspect acme/dense --quiet";
  const std::string a = "HF_HUB_CACHE=$PWD/", b = "HF_HOME=$PWD/", c = "XDG_CACHE_HOME=$PWD/";
  // Each is used where the ones before it are not set or empty, and hides the ones after it.
  auto cache_with = [&](const std::string& set) {
    const Finished f = w.run(inspect, kOnly + set + "; ");
    return f.status == 0
               ? f.out.substr(w.path("").size(), f.out.find("/models--") - w.path("").size())
               : f.error;
  };
  CHECK(cache_with("") == "hub-home/.cache/huggingface/hub");
  CHECK(cache_with(c + "hub-c") == "hub-c/huggingface/hub");
  CHECK(cache_with(c + "hub-c " + b + "hub-b") == "hub-b/hub");
  CHECK(cache_with(c + "hub-c " + b + "hub-b " + a + "hub-a") == "hub-a");
  CHECK(cache_with(c + "hub-c HF_HOME= HF_HUB_CACHE=") == "hub-c/huggingface/hub");
  CHECK(contains(cache_with(a + "nowhere"), "/nowhere; `hf download acme/dense` fetches it"));
}

TEST_CASE("hub: what is not in the cache is one line with the command that fetches it") {
  const World& w = with_cache();
  for (const std::string command :
       {"eval --data text.txt --model acme/other",
        "eval --data text.txt --model export --teacher acme/other",
        "tokenize --tokenizer acme/other --out no text.txt", "inspect acme/other",
        "generate --prompt the --model acme/other", "flops --model acme/other"}) {
    INFO(command);
    const Finished f = w.run(command + " --quiet", kHub);
    CHECK(f.status == 1);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
    check_says(f.error, {"acme/other: no such", "not in the cache of the Hugging Face Hub",
                         w.path("hub"), "`hf download acme/other`"});
  }
  // A directory of that name comes first, whatever is in it.
  fs::create_directories(w.path("acme/dense"));
  check_says(w.run("inspect acme/dense --tensors", kHub).error, {"acme/dense: contains no"});
  fs::remove_all(w.path("acme"));
}

}  // namespace brine::tests
