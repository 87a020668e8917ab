// Runs the cases and the golden files.
#include "apps/selftest/selftest.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "apps/selftest/cases.h"
#include "apps/selftest/golden_files.h"
#include "apps/verify/golden.h"
#include "data/io/file_io.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/allocator.h"

namespace brine::selftest {
namespace {

// The largest difference of two results of one shape, of the largest number; infinite where one is
// not a number, or not the infinite one of the other.
double apart(const Tensor& near, const Tensor& there) {
  const std::vector<double> a = near.to_vector(), b = there.to_vector();
  double scale = 0, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] && std::isinf(a[i])) continue;
    scale = std::max(scale, std::fabs(a[i]));
    const double off = std::fabs(a[i] - b[i]);
    worst = std::isfinite(off) ? std::max(worst, off) : INFINITY;
  }
  return worst == 0 ? 0 : worst / scale;
}

std::string scientific(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", x);
  return text;
}

// Why two results differ, empty if they do not; and what --verbose says if they do not.
struct Found {
  std::string why, note = {};
};

class Comparison {
 public:
  Comparison(const std::string& only, bool verbose, std::ostream& out)
      : only_(only), verbose_(verbose), out_(out) {}

  // `compare` returns what it found, and throws errors of the device.
  template <class F>
  void row(const std::string& name, F&& compare) {
    if (name.find(only_) == std::string::npos) return;
    ++count.compared;
    Found found;
    try {
      found = compare();
    } catch (const Error& e) {
      found.why = e.what();
    }
    count.failed += !found.why.empty();
    if (!found.why.empty()) {
      out_ << name << ": " << found.why << std::endl;
    } else if (verbose_) {
      out_ << name << ": ok" << found.note << std::endl;
    }
  }

  Count count;

 private:
  const std::string& only_;
  bool verbose_;
  std::ostream& out_;
};

Found compare_once(const Case& c, Device device, Dtype type, double limit) {
  const std::vector<Tensor> near = c.run({Device{}, type}), there = c.run({device, type});
  check(near.size() == there.size(), c.name, ": ", near.size(), " results on the CPU, ",
        there.size(), " on the device");
  double worst = 0;
  for (size_t i = 0; i < near.size(); ++i) {
    if (near[i].defined() != there[i].defined()) return {join("result ", i, " is missing on one")};
    if (!near[i].defined()) continue;
    if (near[i].shape() != there[i].shape()) {
      return {join("result ", i, " is ", near[i].shape(), " on the CPU, ", there[i].shape(),
                   " on the device")};
    }
    const double off = apart(near[i], there[i]);
    if (!(off <= limit)) {
      return {join("result ", i, " differs by ", scientific(off),
                   " of its largest number, at most ", scientific(limit), " is rounding")};
    }
    worst = std::max(worst, off);
  }
  trim(device);  // the next case has other sizes
  return {"", join(", at most ", scientific(worst), " apart, allowed are ", scientific(limit))};
}

// What cuDNN computes Brine's own kernels do for commands without it: those cases run twice.
Found compare_case(const Case& c, Device device, Dtype type, double limit) {
  struct WithoutCudnn {
    WithoutCudnn() { cuda::set_cudnn(false); }
    ~WithoutCudnn() { cuda::set_cudnn(true); }  // it has been called, so it was on
    WithoutCudnn(const WithoutCudnn&) = delete;
  };
  const int64_t calls = cuda::cudnn_calls();
  Found found = compare_once(c, device, type, limit);
  if (!found.why.empty() || cuda::cudnn_calls() == calls) return found;
  const WithoutCudnn off;
  const Found own = compare_once(c, device, type, limit);
  if (!own.why.empty()) return {"without cuDNN " + own.why};
  found.note += "; without cuDNN" + own.note;
  return found;
}

// A directory of the system's temporary ones while an object lives.
struct Folder {
  Folder() : path(std::filesystem::temp_directory_path() / join("brine-selftest-", ::getpid())) {
    std::filesystem::create_directories(path);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  std::filesystem::path path;
};

Found compare_golden(const std::string& file, Dtype type, bool dense) {
  const GoldenReport report = run_golden(file, type, GoldenTolerance::of(type), dense);
  if (!report.skipped.empty()) return {"skipped: " + report.skipped};
  for (const GoldenRow& row : report.rows) {
    if (row.ok()) continue;
    return {join(row.dataset, " differs by ", scientific(row.error), ", allowed are ",
                 scientific(row.bound))};
  }
  return {report.ok() ? "" : "nothing was compared"};
}

}  // namespace

Count run(Device device, const std::string& only, bool verbose, std::ostream& out) {
  Comparison all(only, verbose, out);
  for (const std::vector<Case>& cases : {op_cases(), method_cases(), model_cases()}) {
    for (const Case& c : cases) {
      for (const auto& [type, limit] : {std::pair{Dtype::f64, c.f64}, {Dtype::f32, c.f32}}) {
        if (limit < 0) continue;
        all.row(join(c.name, ", ", type),
                [&, type = type, limit = limit] { return compare_case(c, device, type, limit); });
      }
    }
  }
  const Folder folder;
  const Device before = default_device();
  set_default_device(device);
  for (const GoldenFile& golden : golden_files()) {
    const std::string path = (folder.path / golden.name).string();
    data::write_file_atomic(path, std::string(golden.bytes));
    for (Dtype type : {Dtype::f64, Dtype::f32}) {
      for (bool dense : {false, true}) {
        all.row(join("golden file ", golden.name, dense ? ", dense, " : ", ", type),
                [&] { return compare_golden(path, type, dense); });
      }
    }
  }
  set_default_device(before);
  return all.count;
}

}  // namespace brine::selftest
