// The golden files of tests/golden: f64 numbers that an independent program made, in HDF5.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/hdf5/hdf5_file.h"
#include "tests/gradcheck.h"
#include "tests/paths.h"

namespace brine::test {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : reader_(std::string(brine::test::source_dir() + "/tests/golden/") + name + ".h5") {}

  static std::vector<std::string> names() {
    return {"causal_paper_t12",     "causal_paper_t37",        "causal_lean_t33",
            "causal_per_query_t20", "bidirectional_paper_t16", "bidirectional_capped_t24",
            "causal_learned_t30",   "causal_light_t34",        "causal_pooled_t26"};
  }

  int64_t number(const char* key) const { return reader_.int_attribute("config", key); }
  std::string text(const char* key) const { return reader_.string_attribute("config", key); }
  bool has(const std::string& name) const { return reader_.has(name); }
  // Settings that only later files have.
  int64_t number(const char* key, int64_t otherwise) const {
    return reader_.has_attribute("config", key) ? number(key) : otherwise;
  }
  std::string text(const char* key, const std::string& otherwise) const {
    return reader_.has_attribute("config", key) ? text(key) : otherwise;
  }
  std::vector<std::string> weights() const { return reader_.datasets("weights"); }
  // In the stored type; floats as `type`.
  Tensor operator()(const std::string& name, Dtype type = Dtype::f64) const {
    Tensor t = reader_.read(name);
    return is_float(t.dtype()) ? t.to(type) : t;
  }
  Visibility visible() const {
    std::vector<int64_t> lengths = reader_.ints_attribute("config", "lengths");
    return {number("causal") != 0, Tensor::from(lengths, {int64_t(lengths.size())})};
  }

 private:
  data::Hdf5Reader reader_;
};

// |x - y| <= atol + rtol max|y|, with the tolerances next to the golden files.
inline bool golden_close(const Tensor& x, const Tensor& y, const std::string& what) {
  bool wide = x.dtype() == Dtype::f64;
  double atol = wide ? 1e-12 : 1e-6, rtol = wide ? 1e-10 : 1e-4;
  return close(x.to_vector(), y.to_vector(), atol + rtol * largest(y.to_vector()), 0, what);
}

}  // namespace brine::test
