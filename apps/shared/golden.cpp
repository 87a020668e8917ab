// The golden comparison: inputs and weights from the file, forward, losses, backward, row by row.
#include "apps/shared/golden.h"

#include <algorithm>
#include <cmath>

#include "apps/shared/capture.h"
#include "autograd/ops.h"
#include "data/hdf5/hdf5_file.h"
#include "nn/optim/parameter_store.h"
#include "sea/sea_attention.h"

namespace brine {
namespace {

using data::Hdf5Reader;

struct Case {
  explicit Case(const std::string& path) : file(path) {
    for (const char* name : {"B", "H", "d", "T", "K", "k", "m", "causal", "prior"}) integer(name);
  }
  int64_t integer(const char* name) const { return file.int_attribute("config", name); }
  std::string text(const char* name) const { return file.string_attribute("config", name); }
  Tensor read(const std::string& name, Dtype dtype) const { return file.read(name).to(dtype); }

  Hdf5Reader file;
};

sea::SeaConfig config_of(const Case& c) {
  sea::SeaConfig s;
  s.k = c.integer("k");
  s.K = c.integer("K");
  s.decoder = c.text("preset");
  s.mode = c.text("mode");
  s.mu_scope = c.text("mu_scope");
  s.prior = c.integer("prior") ? "performer" : "none";
  s.features = c.integer("causal") ? "relu" : "softmax";
  s.feature_divisor = c.file.double_attribute("config", "feature_divisor");
  return s;
}

// Rows of padding mean nothing in these: they are skipped.
bool only_valid_rows(const std::string& name) {
  for (const char* n : {"C_perf", "Z", "S", "estimate", "s_prob", "s_mix"}) {
    if (name == std::string("intermediate/") + n) return true;
  }
  return false;
}

class Comparison {
 public:
  Comparison(const Case& c, const GoldenTolerance& tolerance) : case_(c), tolerance_(tolerance) {
    valid_ = c.file.read("inputs/valid").to(Dtype::f64).to_vector();
  }

  void floats(const std::string& name, const Tensor& got) {
    Tensor want = case_.file.read(name);
    check(got.shape() == want.shape(), case_.file.path(), ": ", name, " is ", want.shape(),
          ", the block gives ", got.shape());
    std::vector<double> x = got.to_vector(), y = want.to_vector();
    GoldenRow row{.dataset = name};
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (only_valid_rows(name) && !valid_row(want.shape(), i)) continue;
      double e = std::fabs(x[i] - y[i]);
      row.error = std::isfinite(x[i]) ? std::max(row.error, e) : INFINITY;
      largest = std::max(largest, std::fabs(y[i]));
    }
    row.bound = tolerance_.atol + tolerance_.rtol * largest;
    rows.push_back(row);
  }

  void integers(const std::string& name, const Tensor& got) {
    std::vector<double> x = got.to_vector(), y = case_.file.read(name).to_vector();
    GoldenRow row{.dataset = name};
    row.error = double(x.size() != y.size());
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) row.error += x[i] != y[i];
    rows.push_back(row);
  }

  std::vector<GoldenRow> rows;

 private:
  // Element i of a tensor [B, H, T, ...].
  bool valid_row(const Shape& shape, size_t i) const {
    int64_t tail = 1;
    for (int a = 3; a < shape.rank(); ++a) tail *= shape[a];
    int64_t t = int64_t(i) / tail % shape[2], b = int64_t(i) / (tail * shape[1] * shape[2]);
    return valid_[size_t(b * shape[2] + t)] != 0;
  }

  const Case& case_;
  GoldenTolerance tolerance_;
  std::vector<double> valid_;
};

void compare_stages(Comparison& compare, const nn::Tap& tap) {
  auto stage = [&](const char* name) { return in_use(tap, name); };
  compare.floats("intermediate/V_I", stage("V_I"));
  compare.floats("intermediate/C_perf", stage("C_perf"));
  compare.floats("intermediate/Z", stage("Z"));
  compare.floats("intermediate/S", stage("scores"));
  compare.floats("intermediate/estimate", stage("estimate"));
  compare.integers("intermediate/n_sel", stage("n_sel"));
  compare.integers("intermediate/selected", stage("selected"));
  compare.integers("intermediate/row_pointers", stage("row_pointers"));
  compare.integers("intermediate/head_offsets", stage("head_offsets"));
  compare.integers("intermediate/columns", stage("columns"));
  if (stage("probabilities").rank() == 1)
    compare.floats("intermediate/probabilities", stage("probabilities"));
  Tensor gates = sigmoid(stage("scalers"));  // [B, H, T, 2]
  compare.floats("intermediate/s_prob", gates.select(3, 0));
  compare.floats("intermediate/s_mix", gates.select(3, 1));
  compare.floats("intermediate/c_avg", stage("c_avg"));
}

}  // namespace

bool GoldenReport::ok() const {
  return std::all_of(rows.begin(), rows.end(), [](const GoldenRow& r) { return r.ok(); });
}

GoldenTolerance GoldenTolerance::of(Dtype dtype) {
  return dtype == Dtype::f64 ? GoldenTolerance{1e-12, 1e-10} : GoldenTolerance{1e-6, 1e-4};
}

GoldenReport run_golden(const std::string& file, Dtype dtype, const GoldenTolerance& tolerance,
                        bool dense) {
  Case c(file);
  GoldenReport report;
  int64_t B = c.integer("B"), H = c.integer("H"), d = c.integer("d"), T = c.integer("T");
  nn::Init init{.random = {.seed = 1}, .dtype = dtype};
  std::unique_ptr<sea::SeaAttention> block;
  try {
    block = std::make_unique<sea::SeaAttention>(
        init,
        nn::AttentionShape{.heads = H,
                           .head_size = d,
                           .max_positions = c.integer("max_positions"),
                           .causal = c.integer("causal") != 0},
        config_of(c));
  } catch (const Error& refusal) {
    report.skipped = refusal.what();
    return report;
  }
  std::vector<nn::NamedTensor> weights;
  for (const std::string& name : c.file.datasets("weights")) {
    weights.push_back({name.substr(std::string("weights/").size()), c.file.read(name)});
  }
  nn::load_state(*block, weights, file);
  nn::ParameterStore store(*block);

  auto read = [&](const char* name) { return c.read(name, dtype).to(default_device()); };
  Tensor q = require_grad(read("inputs/q")), k = require_grad(read("inputs/k"));
  Tensor v = require_grad(read("inputs/v"));
  std::vector<double> valid = c.file.read("inputs/valid").to_vector();
  Tensor lengths = Tensor::zeros({B}, Dtype::i64);
  for (size_t i = 0; i < valid.size(); ++i) lengths.data<int64_t>()[i / size_t(T)] += valid[i] != 0;
  Visibility visible{.causal = c.integer("causal") != 0, .lengths = lengths};
  nn::Tap tap("sea");
  Tensor out =
      block->forward({.q = q,
                      .k = k,
                      .v = v,
                      .hidden = {},
                      .visible = visible,
                      .dials = {.query_skip = c.integer("query_skip"), .dense_path = dense},
                      .tap = &tap});
  Comparison compare(c, tolerance);
  compare_stages(compare, tap);
  compare.floats("output/c_sea", out.detach());

  TeacherAttention teacher{.map = {}, .q = read("inputs/teacher_q"), .k = read("inputs/teacher_k")};
  TeacherSummary summary = summarize_teacher(teacher, c.integer("K"), visible);
  compare.floats("intermediate/teacher_tau", summary.tau);
  compare.floats("intermediate/teacher_t_log_t", summary.t_log_t);
  compare.floats("intermediate/teacher_t_square", summary.t_square);
  double parts[] = {0.1, 1.0};
  Tensor mix = Tensor::from(std::span<const double>(parts), {2}).to(dtype).to(default_device());
  Tensor approx = approx_loss(tap.get("scores"), summary, visible);
  Tensor prob = prob_loss(q, k, teacher, visible);
  int64_t rows = 0;
  for (int64_t b = 0; b < B; ++b) rows += lengths.data<int64_t>()[b];
  Tensor weight = Tensor::zeros({B * T}, dtype);
  for (size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] == 0) continue;
    double w = 1 / (double(rows) * double(H * d));
    dispatch_float(dtype, [&]<class S>() { weight.data<S>()[i] = S(w); });
  }
  Tensor context =
      squared_distance(out, read("inputs/teacher_context"), weight.to(default_device()));
  Tensor cotangent = dot(out, read("inputs/cotangent"));
  Tensor approx_term = dot(approx, mix), prob_term = dot(prob, mix);
  Tensor total = add(add(approx_term, prob_term), add(context, cotangent));
  auto loss = [&](const char* name, const Tensor& value) {
    Tensor want = c.file.read(join("loss/", name));
    compare.floats(join("loss/", name), value.detach().contiguous().view(want.shape()));
  };
  loss("approx_kl", approx.detach().slice(0, 0, 1));
  loss("approx_mse", approx.detach().slice(0, 1, 1));
  loss("prob_kl", prob.detach().slice(0, 0, 1));
  loss("prob_mse", prob.detach().slice(0, 1, 1));
  loss("approx", approx_term);
  loss("prob", prob_term);
  loss("context", context);
  loss("cotangent", cotangent);
  loss("total", total);

  backward(total);
  compare.floats("grad/q", grad(q));
  compare.floats("grad/k", grad(k));
  compare.floats("grad/v", grad(v));
  for (const auto& p : block->named_parameters()) {
    compare.floats("grad/" + p.path, grad(p.parameter->value));
  }
  report.rows = std::move(compare.rows);
  return report;
}

}  // namespace brine
