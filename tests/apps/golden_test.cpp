// Every golden file by the code of `brine verify`; a damaged copy must be noticed.
#include "apps/shared/golden.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>

#include "data/hdf5/hdf5_file.h"
#include "tests/paths.h"
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

// A copy whose datasets went through `edit` and whose integer settings went through `set`.
std::string copy(const std::string& from, const fs::path& to,
                 const std::function<void(const std::string&, Tensor&)>& edit,
                 const std::function<int64_t(const std::string&, int64_t)>& set = {}) {
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
    if (in.is_string_attribute("config", name)) {
      out.attribute("config", name, in.string_attribute("config", name));
    } else if (in.is_float_attribute("config", name)) {
      out.attribute("config", name, in.double_attribute("config", name));
    } else {
      std::vector<int64_t> values = in.ints_attribute("config", name);
      if (values.size() != 1) {
        out.attribute("config", name, values);
      } else {
        out.attribute("config", name, set ? set(name, values[0]) : values[0]);
      }
    }
  }
  out.close();
  return to.string();
}

GoldenReport report_of(const std::string& file, Dtype type, bool dense = false) {
  return run_golden(file, type, GoldenTolerance::of(type), dense);
}

void keep(const std::string&, Tensor&) {}

}  // namespace

TEST_CASE("golden files agree: values, losses, gradients, in both types, by both paths") {
  std::vector<std::string> files = golden_files();
  REQUIRE(files.size() == 6);
  for (const std::string& file : files) {
    for (Dtype type : {Dtype::f64, Dtype::f32}) {
      for (bool dense : {false, true}) {
        GoldenReport report = report_of(file, type, dense);
        if (!report.skipped.empty()) MESSAGE(file << " skipped: " << report.skipped);
        CHECK(report.skipped.empty());
        CHECK(report.rows.size() > 30);
        for (const GoldenRow& row : report.rows) {
          CHECK_MESSAGE(row.ok(), file << " " << type << (dense ? " dense: " : " sparse: ")
                                       << row.dataset << " is off by " << row.error << ", allowed "
                                       << row.bound);
        }
      }
    }
  }
}

TEST_CASE("a copy of a golden file agrees like the file itself") {
  test::Scratch scratch;
  std::string same = copy(golden_files()[2], scratch / "same.h5", keep);
  CHECK(report_of(same, Dtype::f64).ok());
}

TEST_CASE("one changed weight is out of tolerance, and the first bad row names the stage") {
  test::Scratch scratch;
  std::string from = golden_files()[2];
  int changed = 0;
  auto nudge = [&](const std::string& name, Tensor& t) {
    if (name != "weights/nu.weight") return;
    t = t.clone();
    t.data<double>()[0] += 1e-3;
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

TEST_CASE("one changed expectation of each kind is noticed") {
  test::Scratch scratch;
  int n = 0;
  for (const char* name : {"output/c_sea", "loss/total", "grad/q", "grad/nu.weight"}) {
    auto nudge = [name](const std::string& dataset, Tensor& t) {
      if (dataset != name) return;
      t = t.clone();
      t.data<double>()[t.numel() - 1] += 1e-3;
    };
    std::string file = copy(golden_files()[2], scratch / (std::to_string(n++) + ".h5"), nudge);
    GoldenReport report = report_of(file, Dtype::f64);
    std::string bad;
    for (const GoldenRow& row : report.rows) bad += row.ok() ? "" : row.dataset + " ";
    CHECK(bad == std::string(name) + " ");
  }
}

TEST_CASE("a case that the block refuses is reported as skipped, with the reason") {
  test::Scratch scratch;
  std::string file =
      copy(golden_files()[2], scratch / "odd.h5", keep,
           [](const std::string& name, int64_t value) { return name == "K" ? value - 1 : value; });
  GoldenReport report = report_of(file, Dtype::f64);
  CHECK(report.rows.empty());
  CHECK(report.skipped.find("is not a multiple of") != std::string::npos);
}

TEST_CASE("a file that is not HDF5 is an error that names it") {
  CHECK_THROWS_WITH_AS(report_of(brine::test::source_dir() + "/VERSION", Dtype::f64),
                       doctest::Contains("/VERSION"), Error);
}

}  // namespace brine::tests
