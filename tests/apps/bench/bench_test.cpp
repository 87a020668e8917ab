// brine bench at its smallest: every suite runs and prints the JSON that is promised.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/bench/parts/block.h"
#include "apps/bench/suites.h"
#include "tensor/cpu/core/onednn.h"
#include "tests/apps/world.h"
#include "tests/paths.h"

namespace brine::tests {

using Json = nlohmann::json;
using namespace std::string_literals;

TEST_CASE("bench: every suite prints valid JSON with the documented keys") {
  for (const std::string suite : {"attention", "breakdown", "train"}) {
    INFO(suite);
    Finished f = run_brine("bench " + suite + " --quick --json --quiet");
    REQUIRE_MESSAGE(f.status == 0, f.error);
    Json out = Json::parse(f.out);
    CHECK(out.at("quick") == true);
    CHECK_FALSE(out.at("cpu").get<std::string>().empty());
    CHECK(out.at("onednn") == onednn::version());
    CHECK(out.at("threads").get<int>() >= 1);
    CHECK(out.at("peak_reserved_bytes").get<int64_t>() > 0);
    REQUIRE(out.at("rows").size() >= (suite == "train" ? 2 : 20));
    for (const Json& row : out.at("rows")) {
      CHECK(row.at("bench") == suite);
      CHECK_FALSE(row.at("name").get<std::string>().empty());
      CHECK_FALSE(row.at("shape").get<std::string>().empty());
      CHECK_FALSE(row.at("unit").get<std::string>().empty());
      for (const char* key : {"ms", "rate", "share"}) {
        CHECK_MESSAGE(row.at(key).is_number(), key);
        CHECK_MESSAGE(row.at(key).get<double>() >= 0, key);
      }
    }
    std::set<std::string> keys, counted;
    for (const Json& row : out.at("rows")) {
      if (row.contains("keys_read")) counted.insert(row.at("name").get<std::string>());
      for (const auto& [key, value] : row.items()) keys.insert(key);
    }
    if (suite == "attention") {
      for (const char* name : {"flash, forward", "blocks, forward", "top, forward"})
        CHECK_MESSAGE(counted.contains(name), name);
      CHECK_FALSE(counted.contains("performer, forward"));
      CHECK(
          (keys.contains("us_per_token") && keys.contains("peak_bytes") && keys.contains("ratio")));
    }
    if (suite == "train") CHECK(keys.contains("system_allocations_after_third_step"));
  }
}

TEST_CASE("bench: the name of the CPU is that of /proc/cpuinfo, also on arm64") {
  CHECK(bench::cpu_model("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14\n\n"
                         "processor\t: 1\nmodel name\t: Other\n") == "AMD EPYC 9B14");
  CHECK(bench::cpu_model("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n"
                         "CPU part\t: 0xd4f\n") == "arm64, implementer 0x41, part 0xd4f");
  CHECK(bench::cpu_model("") == "unknown");
  CHECK(bench::cpu_model(": \nmodel name\t:\n") == "unknown");
}

TEST_CASE("bench: a request runs the suites that it names, without a name it lists them") {
  auto chosen = [](const bench::BenchRequest& request) {
    std::string out;
    for (const bench::Suite* suite : bench::chosen_suites(request)) out += suite->name + " "s;
    return out;
  };
  CHECK(chosen({}).empty());
  const Finished listed = run_brine("bench");
  CHECK(listed.status == 0);
  for (const std::string& name : bench::suite_names())
    CHECK_MESSAGE(contains("\n" + listed.out, "\n  " + name + " "), name);
  CHECK(chosen({.what = {"train", "attention"}}) == "attention train ");
  CHECK(chosen({.what = {"trained"}, .model = "m", .data = "d"}) == "trained ");
  auto refusal = [](const bench::BenchRequest& r) { return message([&] { r.validate(); }); };
  CHECK(refusal({}) == "no error");
  CHECK(refusal({.what = {"trained"}, .model = "m", .data = "d"}) == "no error");
  CHECK(contains(refusal({.what = {"trained"}}), "--model RUN"));
  CHECK(contains(refusal({.data = "d"}), "--data"));
  CHECK(contains(refusal({.model = "m"}), "--data"));
}

TEST_CASE("bench: trained measures a student longer than it was trained, others are refused") {
  const World& w = world();
  Json out = Json::parse(
      w.must("bench trained --quick --json --quiet --model student --data text.txt").out);
  std::set<std::string> names;
  for (const Json& row : out.at("rows")) {
    names.insert(row.at("name"));
    CHECK(row.at("ms").get<double>() > 0);
    CHECK(row.contains("us_per_token"));
  }
  for (const char* block : {"flash, softmax over all keys", "block, its own masks"}) {
    for (const char* pass : {", fwd", ", fwd + bwd"}) CHECK(names.count(join(block, pass)) == 1);
  }
  check_refusal(w.run("bench trained --quick --model teacher --data text.txt"),
                {"needs a causal student with a mask"});
  check_refusal(w.run("bench trained"), {"--model RUN and --data TEXT"});
  check_refusal(w.run("bench train --quick --model student"),
                {"--model has no effect without the suite generate or trained"});
}

TEST_CASE("bench: trained measures students with grouped keys, of columns and of blocks") {
  const World& w = world();
  w.must(
      "train --tokenizer tok --train text.txt --out grouped --steps 1 --batch-size 2 --model-type "
      "llama --vocab-size 300 --hidden-size 32 --num-hidden-layers 2 --num-attention-heads 4 "
      "--num-key-value-heads 2 --intermediate-size 48 --max-position-embeddings 32");
  w.must(World::distill("--steps 1 --k 4 --preset light --out grouped-light", "grouped"));
  for (const char* model :
       {"grouped-light", "grouped --attention blocks --block 4 --tile 4 --attention.k 16"}) {
    CAPTURE(model);
    const Finished f =
        w.must(join("bench trained --quick --json --data text.txt --tokens 32 --model ", model));
    const Json out = Json::parse(f.out);
    CHECK(out.at("failures").empty());
    std::map<std::string, Json> rows;
    for (const Json& row : out.at("rows")) rows[row.at("name")] = row;
    const bool columns = std::string(model) == "grouped-light";
    const Json& block = rows.at("block, its own masks, fwd + bwd");
    CHECK(double(block.at("keys_read")) > (columns ? 3 : 8));
    CHECK(double(block.at("keys_read")) < 16.5);
    CHECK(rows.at("flash, softmax over all keys, fwd").at("keys_read") == 16.5);
    CHECK(contains(f.error, "calibrated on the first 32 tokens") == !columns);
  }
}

TEST_CASE("bench: generate with weights in 16 bits, which no other suite has") {
  const World& w = world();
  const Json out =
      Json::parse(w.must("bench generate --quick --json --quiet --model student --data "
                         "text.txt --tokens 40 --weights bf16")
                      .out);
  CHECK(out.at("rows").size() == 15);
  check_refusal(w.run("bench train --quick --weights bf16"),
                {"--weights has no effect without the suite generate"});
}

TEST_CASE("bench: generate compares a model's own attention with full attention") {
  const World& w = world();
  Json out = Json::parse(
      w.must("bench generate --quick --json --quiet --model student --data text.txt --tokens 40 90")
          .out);
  std::map<std::string, Json> rows;
  for (const Json& row : out.at("rows")) {
    rows[row.at("name").get<std::string>() + " " + row.at("shape").get<std::string>()] = row;
  }
  CHECK(rows.size() == 30);
  for (const char* context : {"context 40", "context 90"}) {
    for (const char* what : {"prompt", "token", "attention of a token"}) {
      CHECK(rows.at(join("flash, ", what, " ", context)).at("ratio") == 1.0);
      CHECK(rows.at(join("sea, ", what, " ", context)).at("ratio").get<double>() > 0);
    }
    auto state = [&](const char* name) {
      const Json& row = rows.at(join(name, ", attention of a token ", context));
      return row.at("state_to_full").get<double>();
    };
    CHECK(state("sea") > 1);
    CHECK(state("flash, cache bf16") == 0.5);
    // Of 40 tokens most are in the first block and in the one that fills.
    CHECK((state("flash, cache q8") < 1) == (context == std::string("context 90")));
    CHECK(state("sea, cache bf16") < state("sea"));
  }
  // A model with full attention has no other rows than those of its caches.
  out = Json::parse(
      w.must("bench generate --quick --json --quiet --model teacher --data text.txt").out);
  CHECK(out.at("rows").size() == 9);
}

TEST_CASE("bench: the lengths and methods of suite attention are the caller's") {
  const Finished f =
      run_brine("bench attention --quick --json --quiet --tokens 48 160 --methods sea flash");
  REQUIRE(f.status == 0);
  std::set<std::string> names, shapes;
  const Json out = Json::parse(f.out);
  for (const Json& row : out.at("rows")) {
    names.insert(row.at("name"));
    shapes.insert(row.at("shape"));
  }
  CHECK(shapes == std::set<std::string>{"[1, 12, 48, 64]", "[1, 12, 160, 64]"});
  for (const char* block : {"flash", "sea paper", "sea light", "sea light, 256 columns"}) {
    CHECK_MESSAGE(names.count(std::string(block) + ", forward"), block);
    CHECK_MESSAGE(names.count(std::string(block) + ", forward + backward"), block);
  }
  CHECK(names.size() == 8);
  CHECK(contains(run_brine("bench attention --quick --methods nope").error, "known: "));
  CHECK(contains(run_brine("bench train --quick --methods sea").error,
                 "--methods has no effect without the suite attention or breakdown"));
  CHECK(contains(
      run_brine("bench train --quick --tokens 64").error,
      "--tokens has no effect without the suite attention, breakdown, generate or trained"));
  CHECK(contains(run_brine("bench breakdown --quick --heads 2").error,
                 "--heads has no effect without the suite attention"));
  for (const auto& [end, why] : {std::pair("--kv-heads 5", "flash: cannot have this shape"),
                                 {"--against sea", "--against sea names 3 blocks"}}) {
    const Finished f = run_brine(join("bench attention --quick --methods flash --forward ", end));
    CHECK(f.status == 1);
    CHECK(contains(f.error, why));
  }
}

TEST_CASE("bench: the sizes and the kind of a block") {
  auto rows = [](const std::string& arguments) {
    const Finished f = run_brine("bench " + arguments + " --quick --json --quiet");
    REQUIRE(f.status == 0);
    return Json::parse(f.out).at("rows");
  };
  const Json heads = rows("attention --methods flash --tokens 64 --heads 3");
  REQUIRE(heads.size() == 2);
  CHECK(heads[0].at("shape") == "[1, 3, 64, 64]");
  CHECK(heads[0].at("heads") == 3);
  // The rate counts what is visible: twice as many products when every token sees all.
  const std::string both = "attention --methods flash --tokens 512";
  auto products = [](const Json& row) { return double(row.at("rate")) * double(row.at("ms")); };
  CHECK(products(rows(both + " --bidirectional")[0]) / products(rows(both)[0]) ==
        doctest::Approx(2 * 512.0 / 513).epsilon(1e-3));
  // The paper's table: one bidirectional head of 128 features.
  const Json paper = rows(
      "attention --bidirectional --heads 1 --head-size 128 --columns 96 --methods \"sea paper\" "
      "--tokens 128 64");
  REQUIRE(paper.size() == 4);
  CHECK(paper[0].at("shape") == "[1, 1, 64, 128]");
  CHECK(paper[2].at("tokens") == 128);
  const Json alone = rows("attention --methods flash --against flash --forward --tokens 64");
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].at("name") == "flash, forward");
  CHECK(double(alone[0].at("times_flash")) > 0);
  for (const Json& part : rows("breakdown --methods flash --tokens 80"))
    CHECK(part.at("tokens") == 80);
}

namespace {

bench::BenchRow named(const char* name) {
  bench::BenchRow row;
  row.name = name;
  return row;
}

// A suite of three parts of which the second throws.
void three_parts(const bench::BenchRequest&, bench::RowSink& rows) {
  rows.attempt("first", "[1]", [&] { rows.add(named("first")); });
  rows.attempt("second", "[131072]", [&] {
    rows.add(named("second, forward"));
    throw Error("no memory for 98,304 bands");
  });
  rows.attempt("third", "[3]", [&] { rows.add(named("third")); });
}

// Rows and failures in their order, on a device that fails for good at the first failure, or works.
struct Order : bench::RowSink {
  explicit Order(bool lost) : lost(lost) {}
  void add(const bench::BenchRow& row) override { said += row.name + "; "; }
  void fail(const bench::BenchFailure& f) override {
    said += "no " + f.name + " " + f.shape + "; ";
  }
  void settle() const override { check(!lost, "an illegal memory access"); }
  bool lost;
  std::string said;
};

}  // namespace

TEST_CASE("bench: what a part of a suite throws is reported, and the other rows are kept") {
  const bench::Suite parts{.name = "parts", .run = three_parts};
  const bench::Suite fine{.name = "fine",
                          .run = [](const auto&, auto& rows) { rows.add(named("row")); }};
  const bench::Suite broken{.name = "broken", .run = [](const auto&, auto& rows) {
                              rows.add(named("before"));
                              throw Error("no text");
                            }};
  bench::Report report(bench::Report::Form::json);
  report.run(fine, {});
  CHECK_FALSE(report.failed());
  report.run(parts, {});
  CHECK(report.failed());
  report.run(broken, {});
  report.run(fine, {});
  const data::Json json = report.json();
  std::string names;
  for (const data::Json& row : json.at("rows")) names += row.at("name").get<std::string>() + "; ";
  CHECK(names == "row; first; second, forward; third; before; row; ");
  CHECK(json.at("failures").dump() ==
        R"([{"bench":"parts","name":"second","shape":"[131072]","error":)"
        R"("no memory for 98,304 bands"},)"
        R"({"bench":"broken","name":"","shape":"","error":"no text"}])");
}

TEST_CASE("bench: parts go on after a failure, and end when the device no longer answers") {
  Order working(false), lost(true);
  three_parts({}, working);
  CHECK(working.said == "first; second, forward; no second [131072]; third; ");
  const std::string why =
      message([&] { lost.attempt("outer", "", [&] { three_parts({}, lost); }); });
  CHECK(contains(why, "the device no longer answers: an illegal memory access"));
  CHECK(lost.said == "first; second, forward; no second [131072]; ");
  // Suites that follow are failures without being run.
  const bench::Suite losing{.name = "losing", .run = [](const auto&, auto&) {
                              throw bench::DeviceLost("the device no longer answers");
                            }};
  const bench::Suite next{.name = "next", .run = three_parts};
  bench::Report report(bench::Report::Form::json);
  report.run(losing, {});
  report.run(next, {});
  CHECK(report.json().at("rows").empty());
  CHECK(report.json().at("failures").size() == 2);
}

TEST_CASE("bench: a table of figures says what failed") {
  Scratch scratch;
  auto write = [&](const std::string& name, const Json& json) {
    scratch.write(name + ".json", json.dump());
  };
  const Json row = {{"name", "sea paper, forward"},
                    {"shape", "[1, 1, 8192, 128]"},
                    {"ms", 1.0},
                    {"us_per_token", 0.1},
                    {"block_bytes_per_token", 9}};
  write("latency", {{"rows", {row}},
                    {"failures",
                     {{{"bench", "attention"},
                       {"name", "sea paper, forward"},
                       {"shape", "[1, 1, 131072, 128]"},
                       {"error", "no memory"}}}}});
  auto made = [&] {
    const std::string to = (scratch / "table").string();
    const int code = std::system(("python3 " + brine::test::source_dir() + "/scripts/gpu-table " +
                                  scratch.path().string() + " > " + to)
                                     .c_str());
    CHECK(WEXITSTATUS(code) == 1);
    return read_all(to);
  };
  std::string table = made();
  CHECK_MESSAGE(contains(table,
                         "one head: under 2 ms | failed: no memory (sea paper, forward, [1, 1, "
                         "131072, 128]) | FAILED |"),
                table);
  CHECK_MESSAGE(
      contains(table,
               "causal, T = 131,072, one head: under 2 ms | not measured (latency-causal) |  |"),
      table);
  // Growth is of all lengths, so that one in the middle must not have failed.
  Json longest = row;
  longest["shape"] = "[1, 1, 131072, 128]";
  write("latency", {{"rows", {row, longest}},
                    {"failures",
                     {{{"bench", "attention"},
                       {"name", "sea paper, forward"},
                       {"shape", "[1, 1, 16384, 128]"},
                       {"error", "no memory"}}}}});
  table = made();
  CHECK_MESSAGE(contains(table,
                         "at most 1.2 x | failed: no memory (sea paper, forward, [1, 1, "
                         "16384, 128]) | FAILED |"),
                table);
}

TEST_CASE("bench: maps fit by what they took at a shorter length; methods without maps always do") {
  auto memory_of = [](const char* method) {
    const nn::AttentionShape shape{.heads = 1, .head_size = 8, .max_positions = 64, .causal = true};
    return bench::MapMemory(*bench::make_block(method, data::Json::object(), shape).attention, 1);
  };
  bench::MapMemory dense = memory_of("dense"), blocks = memory_of("sinkhorn");
  CHECK(dense.fits(16384));  // three maps of 1 GiB
  CHECK_FALSE(dense.fits(32768));
  CHECK_FALSE(blocks.fits(32768));  // nothing was measured
  dense.took(16384, int64_t(2) << 30);
  CHECK_FALSE(dense.fits(32768));
  blocks.took(16384, 100 << 20);
  CHECK(blocks.fits(32768));
  blocks.took(16384, 10 << 20);  // the largest of one length counts
  CHECK(blocks.bytes_at(32768) == 4.0 * (100 << 20));
  CHECK(memory_of("flash").fits(1 << 30));
}

TEST_CASE("bench: a table without --json, every suite without a name, an unknown one refused") {
  Finished f = run_brine("bench train --quick --quiet");
  CHECK(f.status == 0);
  CHECK(f.out.find("encoder layer") != std::string::npos);
  check_refusal(run_brine("bench trai"), {"train"});
}

}  // namespace brine::tests
