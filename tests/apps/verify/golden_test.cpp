// Every golden file by the code of `brine verify`; a damaged copy must be detected.
#include "apps/verify/verify.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "data/hdf5/hdf5_file.h"
#include "tests/apps/world.h"
#include "tests/paths.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> golden_files() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(brine::test::source_dir() + "/tests/golden")) {
    if (entry.path().extension() == ".h5") out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string golden_file(const std::string& name) {
  return brine::test::source_dir() + "/tests/golden/" + name + ".h5";
}

// A copy whose datasets went through `edit` and whose settings went through `set` (integers) and
// `set_real`, with the settings that `add` writes.
std::string copy(const std::string& from, const fs::path& to,
                 const std::function<void(const std::string&, Tensor&)>& edit,
                 const std::function<int64_t(const std::string&, int64_t)>& set = {},
                 const std::function<void(data::Hdf5Writer&)>& add = {},
                 const std::function<double(const std::string&, double)>& set_real = {}) {
  data::Hdf5Reader in(from);
  data::Hdf5Writer out(to.string());
  const std::vector<std::string> names = in.datasets();
  for (const std::string& name : names) {
    Tensor t = in.read(name);
    edit(name, t);
    out.write(name, t);
  }
  if (!std::count(names.begin(), names.end(), "config")) out.group("config");
  for (const std::string& name : in.attributes("config")) {
    // A reader refuses an attribute of another type.
    auto copied = [](auto copy) {
      try {
        copy();
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    copied([&] { out.attribute("config", name, in.string_attribute("config", name)); }) ||
        copied([&] {
          const double value = in.double_attribute("config", name);
          out.attribute("config", name, set_real ? set_real(name, value) : value);
        }) ||
        copied([&] {
          const std::vector<int64_t> values = in.ints_attribute("config", name);
          if (values.size() != 1) return out.attribute("config", name, values);
          out.attribute("config", name, set ? set(name, values[0]) : values[0]);
        });
  }
  if (add) add(out);
  out.close();
  return to.string();
}

GoldenReport report_of(const std::string& file, Dtype type, bool dense = false) {
  return run_golden(file, type, GoldenTolerance::of(type), dense);
}

void keep_tensor(const std::string&, Tensor&) {}

}  // namespace

TEST_CASE("golden files agree: values, losses, gradients, in both types, by both paths") {
  std::vector<std::string> files = golden_files();
  REQUIRE(files.size() == 15);
  for (const std::string& file : files) {
    for (Dtype type : {Dtype::f64, Dtype::f32}) {
      for (bool dense : {false, true}) {
        GoldenReport report = report_of(file, type, dense);
        if (!report.skipped.empty()) MESSAGE(file << " skipped: " << report.skipped);
        CHECK(report.skipped.empty());
        const bool blocks = file.find("/blocks_") != std::string::npos;
        CHECK(report.rows.size() > (blocks ? 6 : 30));
        for (const GoldenRow& row : report.rows) {
          CHECK_MESSAGE(row.ok(), file << " " << type << (dense ? " dense: " : " sparse: ")
                                       << row.dataset << " is off by " << row.error << ", allowed "
                                       << row.bound);
        }
      }
    }
  }
}

TEST_CASE("one changed weight is out of tolerance, and the first bad row names the stage") {
  test::Scratch scratch;
  std::string from = golden_file("causal_paper_t12");
  int changed = 0;
  auto nudge = [&](const std::string& name, Tensor& t) {
    if (name != "weights/nu.weight") return;
    t = t.clone();
    t.data<double>()[0] += 0.1;
    ++changed;
  };
  std::string file = copy(from, scratch / "changed.h5", nudge);
  REQUIRE(changed == 1);
  for (Dtype type : {Dtype::f64, Dtype::f32}) {
    GoldenReport report = report_of(file, type);
    CHECK_FALSE(report.ok());
    auto first = std::find_if(report.rows.begin(), report.rows.end(),
                              [](const GoldenRow& row) { return !row.ok(); });
    REQUIRE(first != report.rows.end());
    CHECK(first->dataset == "intermediate/S");
  }
}

TEST_CASE("one changed expectation of each kind is detected") {
  test::Scratch scratch;
  int n = 0;
  for (const char* name : {"output/c_sea", "loss/total", "grad/q", "grad/nu.weight"}) {
    auto nudge = [name](const std::string& dataset, Tensor& t) {
      if (dataset != name) return;
      t = t.clone();
      t.data<double>()[t.numel() - 1] += 1e-3;
    };
    std::string file =
        copy(golden_file("causal_paper_t12"), scratch / (std::to_string(n++) + ".h5"), nudge);
    GoldenReport report = report_of(file, Dtype::f64);
    std::string bad;
    for (const GoldenRow& row : report.rows) bad += row.ok() ? "" : row.dataset + " ";
    CHECK(bad == std::string(name) + " ");
  }
}

TEST_CASE("golden: candidates beyond all keys, a NaN in the file, a size that is not the inputs'") {
  test::Scratch scratch;
  const std::string from = golden_file("blocks_codes_t44");
  auto with = [&](const char* key, int64_t value) {
    return copy(from, scratch / (std::string(key) + ".h5"), keep_tensor,
                [=](const std::string& name, int64_t old) { return name == key ? value : old; });
  };
  const GoldenReport many = report_of(with("candidates", 300), Dtype::f64);
  CHECK(many.rows.size() > 6);
  CHECK_FALSE(many.rows[0].ok());  // the file's are four
  CHECK_REFUSES(report_of(with("H", 3), Dtype::f64), "inputs/q is [1, 2, 44, 4]", "[1, 3, 44, 4]");
  CHECK_REFUSES(report_of(with("d", 0), Dtype::f64), "d = 0, must be at least 1");
  for (const char* name : {"output/c_sea", "loss/cotangent"}) {
    const std::string file =
        copy(from, scratch / (std::string(name, 4) + ".h5"), [=](const std::string& at, Tensor& t) {
          if (at == name) t = Tensor::full(t.shape(), NAN, t.dtype());
        });
    CHECK_FALSE(report_of(file, Dtype::f64).ok());
  }
}

TEST_CASE("a case that the block refuses is reported as skipped, with the reason") {
  test::Scratch scratch;
  std::string file =
      copy(golden_file("causal_paper_t12"), scratch / "odd.h5", keep_tensor,
           [](const std::string& name, int64_t value) { return name == "K" ? value - 1 : value; });
  GoldenReport report = report_of(file, Dtype::f64);
  CHECK(report.rows.empty());
  CHECK(report.skipped.find("is not a multiple of") != std::string::npos);
}

TEST_CASE("golden: sequences are packed by the mask, and a moved hole is detected") {
  test::Scratch scratch;
  for (const char* name : {"bidirectional_holes_t17", "causal_holes_t16"}) {
    const std::string from = golden_file(name);
    const std::vector<double> valid = data::Hdf5Reader(from).read("inputs/valid").to_vector();
    CHECK(valid[0] == 0);  // padding on the left
    // As many tokens, at other positions: with right padding alone nothing would be detected.
    auto mirror = [](const std::string& dataset, Tensor& t) {
      if (dataset != "inputs/valid") return;
      t = t.clone();
      for (int64_t b = 0; b < t.dim(0); ++b)
        std::reverse(t.data<uint8_t>() + b * t.dim(1), t.data<uint8_t>() + (b + 1) * t.dim(1));
    };
    const std::string moved = copy(from, scratch / (std::string(name) + ".h5"), mirror);
    CHECK_FALSE(report_of(moved, Dtype::f64).ok());
    // The values at padding do not matter.
    int changed = 0;
    auto noise = [&](const std::string& dataset, Tensor& t) {
      if (dataset != "inputs/q" && dataset != "inputs/k" && dataset != "inputs/v") return;
      t = t.clone();
      const int64_t rows = t.dim(1) * t.dim(2), T = t.dim(2), d = t.dim(3);
      for (int64_t r = 0; r < t.dim(0) * rows; ++r) {
        if (valid[size_t(r / rows * T + r % T)] != 0) continue;
        for (int64_t i = 0; i < d; ++i) t.data<double>()[r * d + i] = 1e3;
        ++changed;
      }
    };
    const std::string noisy = copy(from, scratch / (std::string(name) + "-noisy.h5"), noise);
    CHECK(changed > 0);
    CHECK(report_of(noisy, Dtype::f64).ok());
  }
}

TEST_CASE(
    "golden: a file with a feature that this program lacks is skipped by the feature's name") {
  test::Scratch scratch;
  auto set = [](const char* which, int64_t value) {
    return [=](const std::string& name, int64_t old) { return name == which ? value : old; };
  };
  const std::string from = golden_file("causal_paper_t12");
  const GoldenReport unknown =
      report_of(copy(from, scratch / "unknown.h5", keep_tensor, set("prior", 3)), Dtype::f64);
  CHECK(unknown.skipped == "prior = 3 is not known to this program");
  CHECK_FALSE(unknown.ok());
  int n = 0;
  auto with = [&](const char* name, int64_t value) {
    auto add = [&](data::Hdf5Writer& file) { file.attribute("config", name, value); };
    return report_of(copy(from, scratch / (std::to_string(n++) + ".h5"), keep_tensor, {}, add),
                     Dtype::f64)
        .skipped;
  };
  CHECK(with("twirl", 0) == "twirl is not known to this program");
  CHECK(with("rotary", 0).empty());
  CHECK(with("kv_heads", 2).empty());
}

TEST_CASE("golden: settings that a block does not use are not judged") {
  test::Scratch scratch;
  int n = 0;
  auto agrees = [&](const char* name, const std::map<std::string, double>& settings) {
    CAPTURE(name);
    const std::string from = golden_file(name);
    const data::Hdf5Reader in(from);
    auto set = [&](const std::string& key, auto old) {
      const auto found = settings.find(key);
      return found == settings.end() ? old : decltype(old)(found->second);
    };
    auto add = [&](data::Hdf5Writer& file) {
      for (const auto& [key, value] : settings)
        if (!in.has_attribute("config", key)) file.attribute("config", key, int64_t(value));
    };
    const GoldenReport report =
        report_of(copy(
                      from, scratch / (std::to_string(n++) + ".h5"), keep_tensor,
                      [&](const std::string& key, int64_t old) { return set(key, old); }, add,
                      [&](const std::string& key, double old) { return set(key, old); }),
                  Dtype::f64);
    CHECK(report.skipped == "");
    CHECK(report.ok());
  };
  // No learned prior: none, the Performer's, with grouped heads or an encoder.
  for (const char* name :
       {"causal_per_query_t20", "causal_paper_t12", "bidirectional_paper_t16", "causal_paper_t37"})
    agrees(name, {{"prior_features", 0}});
  agrees("bidirectional_capped_t24", {{"prior_features", 0}, {"layer_norm_eps", 0}});
  // Neither decoder nor Performer.
  agrees("causal_light_t34", {{"feature_divisor", 0}, {"layer_norm_eps", 0}});
}

TEST_CASE("verify counts runs, and without a tolerance a run in f32 does not pass") {
  std::ostringstream out;
  Verification what{.golden = {golden_file("causal_paper_t12")}};
  VerifyCounts counts = verify(what, true, out);
  CHECK(counts.compared == 2);
  CHECK(counts.passed == 2);
  CHECK(counts.skipped == 0);
  what.atol = what.rtol = 0;
  counts = verify(what, true, out);
  CHECK(counts.compared == 2);
  CHECK(counts.passed == 0);
  CHECK(contains(out.str(), "out of tolerance"));
}

TEST_CASE("verify names the file in every line and fails where nothing was compared") {
  const World& w = world();
  auto set = [](const std::string& name, int64_t old) { return name == "prior" ? 3 : old; };
  copy(golden_file("causal_paper_t12"), fs::path(w.path("unknown.h5")), keep_tensor, set);
  check_refusal(w.run("verify unknown.h5"), {"brine verify", "compared", "2", "skipped"});
  const std::string good = golden_file("causal_paper_t12");
  const Finished some = w.run("verify " + good + " unknown.h5");
  CHECK(some.status == 0);
  CHECK(some.out.find("unknown.h5 f64: skipped: prior = 3 is not known") != std::string::npos);
  CHECK(some.out.find("2 of 2 ok, 2 skipped\n") != std::string::npos);
  std::istringstream lines(some.out);
  int64_t named = 0, all = 0;
  for (std::string line; std::getline(lines, line); ++all)
    named += line.starts_with(good + " f") || line.starts_with("unknown.h5 f");
  CHECK(named == all - 1);  // the last line is the sum
  auto nudge = [](const std::string& dataset, Tensor& t) {
    if (dataset == "loss/total") t = Tensor::full(t.shape(), 7, t.dtype());
  };
  copy(good, fs::path(w.path("wrong.h5")), nudge);
  const Finished wrong = w.run("verify wrong.h5 --dtype f64 --quiet");
  CHECK(wrong.status == 1);
  CHECK(wrong.out.find("wrong.h5 f64: loss/total") != std::string::npos);
}

TEST_CASE("a file that is not HDF5 is an error that names it") {
  CHECK_REFUSES(report_of(brine::test::source_dir() + "/VERSION", Dtype::f64), "/VERSION");
}

}  // namespace brine::tests
