// Names of the Hub: which are looked up, what a revision is, what a cache may not do.
#include "data/weights/hub_cache.h"

#include <doctest/doctest.h>

#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;
using data::how_to_fetch;
using data::local_model;

const std::string kOld(40, '1'), kNew(40, 'a');

// A cache with two snapshots of org/net-2.0.
struct Cache {
  test::Scratch scratch;
  fs::path model = scratch / "models--org--net-2.0";

  Cache() {
    for (const std::string& commit : {kOld, kNew}) fs::create_directories(snapshot(commit));
    refer("main", kNew + "\n");
    refer("v1", kOld);
    refer("refs/pr/7", kOld);
    data::set_hub_cache(scratch.path());
  }
  ~Cache() { data::set_hub_cache(""); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  fs::path snapshot(const std::string& commit) const { return model / "snapshots" / commit; }
  void refer(const std::string& name, const std::string& content) const {
    const fs::path file = model / "refs" / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }
};

}  // namespace

TEST_CASE("hub: a name is the snapshot of its reference, or of its commit") {
  const Cache cache;
  CHECK(local_model("org/net-2.0") == cache.snapshot(kNew));
  CHECK(local_model("org/net-2.0@main") == cache.snapshot(kNew));
  CHECK(local_model("org/net-2.0@v1") == cache.snapshot(kOld));
  CHECK(local_model("org/net-2.0@refs/pr/7") == cache.snapshot(kOld));
  CHECK(local_model("org/net-2.0@" + kOld) == cache.snapshot(kOld));
  CHECK(how_to_fetch(cache.snapshot(kNew)).empty());
}

TEST_CASE("hub: what is not there comes back as it was, with the command that fetches it") {
  const Cache cache;
  for (const char* name : {"org/net", "org/net-2.0@v2", "org/net-2.0@1111", "other/net-2.0"}) {
    CHECK(local_model(name) == name);
  }
  const std::string directory = cache.scratch.path();
  CHECK(how_to_fetch("org/net") == ", and it is not in the cache of the Hugging Face Hub, " +
                                       directory + "; `hf download org/net` fetches it");
  CHECK(how_to_fetch("org/net-2.0@v2") ==
        ", and its revision v2 is not in the cache of the Hugging Face Hub, " + directory +
            "; `hf download org/net-2.0 --revision v2` fetches it");
}

TEST_CASE("hub: paths and other texts are not names") {
  const Cache cache;
  fs::create_directories(cache.scratch / "models----x");
  for (const char* path :
       {"", "/", "net", "org/", "/net", "./net", "../net", "org/..", "org/net/x", "org//net",
        "org/net ", "org/n\xc3\xa9t", "org/a--b", "-org/net", "org/net@", "org/net@../main",
        "org/net@/main", "org@v1/net", "org/net@v1@v2"}) {
    INFO(path);
    CHECK(local_model(path) == path);
    CHECK(how_to_fetch(path).empty());
  }
}

TEST_CASE("hub: a path that exists is not a name; without a cache nothing is") {
  const Cache cache;
  struct Inside {  // the working directory of the test program
    fs::path before = fs::current_path();
    explicit Inside(const fs::path& to) { fs::current_path(to); }
    ~Inside() { fs::current_path(before); }
  };
  const test::Scratch here;
  const Inside inside(here.path());
  CHECK(local_model("org/net-2.0") == cache.snapshot(kNew));
  fs::create_directories(here / "org/net-2.0");
  CHECK(local_model("org/net-2.0") == "org/net-2.0");
  fs::remove_all(here / "org");
  data::set_hub_cache("");
  CHECK(local_model("org/net-2.0") == "org/net-2.0");
  CHECK(how_to_fetch("org/net").empty());
}

TEST_CASE("hub: a reference does not lead out of the cache, and may be damaged") {
  const Cache cache;
  fs::create_directories(cache.scratch / "outside");
  for (const std::string& text :
       {std::string("../../outside"), std::string("/"), std::string(), std::string("\n"),
        std::string("."), kNew + "/..", std::string(5000, 'a')}) {
    INFO(text);
    cache.refer("main", text);
    CHECK(local_model("org/net-2.0") == "org/net-2.0");
    CHECK(test::contains(how_to_fetch("org/net-2.0"), "its revision main is not in the cache"));
  }
  fs::remove(cache.model / "refs/main");
  fs::create_directories(cache.model / "refs/main");
  CHECK(local_model("org/net-2.0") == "org/net-2.0");
}

}  // namespace brine::tests
