// Golden files: their cases, what Brine computes of them, and a line for each dataset.
#include "apps/verify/verify.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>

#include "autograd/ops.h"
#include "data/hdf5/hdf5_file.h"
#include "nn/models/model.h"
#include "nn/optim/parameter_store.h"
#include "sea/blocks/block_attention.h"
#include "sea/sea_attention.h"

namespace brine {

namespace {

using data::Hdf5Reader;

// The settings and the mask of a file. Its sequences are packed with the mask, as in a model.
struct Case {
  explicit Case(const std::string& path) : file(path) {
    for (const char* name : {"B", "H", "d", "T"}) {
      check(integer(name) >= 1, path, ": ", name, " = ", integer(name), ", must be at least 1");
    }
    for (const char* name : {"K", "k", "m", "causal", "prior"}) {
      if (!is_blocks()) integer(name);
    }
    const Shape q = file.read("inputs/q").shape(),
                wanted{integer("B"), integer("H"), integer("T"), integer("d")};
    check(q == wanted, path, ": inputs/q is ", q, ", must be ", wanted);
    read_mask();
  }
  int64_t integer(const char* name) const { return file.int_attribute("config", name); }
  std::string text(const char* name) const { return file.string_attribute("config", name); }
  bool has(const char* name) const { return file.has_attribute("config", name); }
  bool is_blocks() const { return has("form"); }
  bool rotary() const { return has("rotary") && integer("rotary") != 0; }
  // [B, G, T, d] for each head of queries.
  Tensor per_head(const Tensor& x) const { return repeat_heads(x, integer("H") / x.dim(1)); }
  Tensor read(const std::string& name, Dtype dtype) const { return file.read(name).to(dtype); }
  Visibility visible() const {
    return {.causal = is_blocks() || integer("causal") != 0, .lengths = packed.lengths};
  }
  // [B, H, T, d] with the visible tokens of every sequence first.
  Tensor pack(const Tensor& x) const {
    const int64_t H = x.dim(1), rows = x.dim(0) * x.dim(2);
    const Tensor flat = reshape(merge_heads(x), {rows, H * x.dim(3)});
    return split_heads(reshape(embedding(flat, order), {x.dim(0), x.dim(2), H * x.dim(3)}), H);
  }

  Hdf5Reader file;
  std::vector<double> valid;  // [B, T], 0: padding
  nn::ModelCall packed;       // lengths and positions of the mask
  Tensor order;               // i32 [B, T]: the row of the inputs that each packed row comes from

 private:
  void read_mask();
};

void Case::read_mask() {
  const int64_t B = integer("B"), T = integer("T");
  valid = file.read("inputs/valid").to(Dtype::f64).to_vector();
  check(int64_t(valid.size()) == B * T, file.path(), ": inputs/valid has ", valid.size(),
        " elements, must have ", B * T);
  Tensor mask = Tensor::zeros({B, T}, Dtype::u8);
  for (size_t i = 0; i < valid.size(); ++i) mask.data<uint8_t>()[i] = valid[i] != 0;
  packed = nn::pack_rows({.ids = Tensor::zeros({B, T}, Dtype::i32), .attention_mask = mask});
  // The visible tokens are followed by those of padding, whose values must not matter.
  order = Tensor::zeros({B, T}, Dtype::i32);
  for (int64_t b = 0; b < B; ++b) {
    int64_t n = packed.lengths.data<int64_t>()[b];
    const int32_t* positions = packed.positions.data<int32_t>() + b * T;
    for (int64_t t = 0; t < T; ++t)
      order.data<int32_t>()[b * T + t] = int32_t(b * T + positions[t]);
    for (int64_t t = 0; t < T; ++t)
      if (valid[size_t(b * T + t)] == 0) order.data<int32_t>()[b * T + n++] = int32_t(b * T + t);
  }
}

// The priors by their numbers in files.
constexpr sea::Prior kFilePriors[] = {sea::Prior::none, sea::Prior::performer, sea::Prior::learned};

sea::SeaConfig config_of(const Case& c) {
  sea::SeaConfig s;
  data::Schema keys = data::schema_of(s);
  for (auto [key, name] :
       {std::pair("mode", "mode"), {"mu_scope", "mu_scope"}, {"decoder", "preset"}})
    keys.set_text(key, {c.text(name)});
  keys.set_text("features", {c.has("features")     ? c.text("features")
                             : c.integer("causal") ? "relu"
                                                   : "softmax"});
  s.keys = c.integer("k");
  s.columns = c.integer("K");
  s.prior = kFilePriors[c.integer("prior")];
  s.feature_divisor = c.file.double_attribute("config", "feature_divisor");
  // The settings of later files.
  if (c.has("prior_features")) s.prior_features = c.integer("prior_features");
  if (c.has("pooled_prior")) s.pooled_prior = c.integer("pooled_prior") != 0;
  if (c.has("gates")) keys.set_text("gates", {c.text("gates")});
  return s;
}

// The first setting of the file that is not among `known`, between spaces; "" if all are.
std::string unknown_setting(const Case& c, const std::string& known) {
  for (const std::string& name : c.file.attributes("config")) {
    if (known.find(" " + name + " ") == known.npos) return name;
  }
  return "";
}

// The feature that the file needs and this program does not have; "" if it has all.
std::string unknown_feature(const Case& c) {
  const int64_t prior = c.integer("prior");
  if (prior < 0 || prior >= int64_t(std::size(kFilePriors))) return join("prior = ", prior);
  // Some only describe the case or are compared in any case.
  const std::string unknown = unknown_setting(
      c,
      " B H d T K k m causal preset mode mu_scope lengths query_skip prior max_positions "
      "feature_divisor features depth width_reduction channel_expansion token_stride dilation "
      "last_kernel decoder_norm layer_norm_eps seed top_k_margin relu_margin kv_heads "
      "prior_features rotary pooled oversample pooled_prior gates ");
  if (!unknown.empty()) return unknown;
  if (c.has("pooled") && c.file.double_attribute("config", "pooled") != 0) return "pooled";
  if (c.has("oversample") && c.integer("oversample") != 1) return "oversample";
  const std::string preset = c.text("preset");
  if (!data::value_of(preset, sea::kDecoderPresets)) return "preset = " + preset;
  const bool norm = preset != "none" && (!c.has("decoder_norm") || c.integer("decoder_norm") != 0);
  return !norm || c.file.double_attribute("config", "layer_norm_eps") == 1e-5 ? ""
                                                                              : "layer_norm_eps";
}

// Rows of padding have unspecified values in these and are skipped.
bool only_valid_rows(const std::string& name) {
  for (const char* n : {"C_perf", "Z", "S", "estimate", "s_prob", "s_mix"}) {
    if (name == std::string("intermediate/") + n) return true;
  }
  return false;
}

class Comparison {
 public:
  Comparison(const Case& c, const GoldenTolerance& tolerance) : case_(c), tolerance_(tolerance) {}

  void floats(const std::string& name, const Tensor& got) {
    Tensor want = case_.file.read(name);
    GoldenRow row{.dataset = name};
    if (got.shape() != want.shape()) {  // another mask has another number of entries
      row.error = INFINITY;
      rows.push_back(row);
      return;
    }
    std::vector<double> x = got.to_vector(), y = want.to_vector();
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (only_valid_rows(name) && !valid_row(want.shape(), i)) continue;
      const double e = std::fabs(x[i] - y[i]);
      row.error = std::isfinite(e) ? std::max(row.error, e) : INFINITY;
      if (std::isfinite(e)) largest = std::max(largest, std::fabs(y[i]));
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
  // Element i of a tensor [B, H, T, ...] of packed sequences.
  bool valid_row(const Shape& shape, size_t i) const {
    int64_t tail = 1;
    for (int a = 3; a < shape.rank(); ++a) tail *= shape[a];
    int64_t t = int64_t(i) / tail % shape[2], b = int64_t(i) / (tail * shape[1] * shape[2]);
    return t < case_.packed.lengths.data<int64_t>()[b];
  }

  const Case& case_;
  GoldenTolerance tolerance_;
};

// The entry of a tap without the memory after the entries of a mask.
Tensor in_use(const nn::Tap& tap, const std::string& name) {
  Tensor value = tap.get(name).detach();
  const bool by_entry = name == "columns" || (name == "probabilities" && value.rank() == 1);
  if (!by_entry || !tap.has("row_pointers")) return value;
  const Tensor rows = tap.get("row_pointers").to(Device{});
  return value.slice(0, 0, rows.data<int64_t>()[rows.numel() - 1]);
}

void compare_stages(const Case& c, Comparison& compare, const nn::Tap& tap) {
  auto stage = [&](const char* name) { return in_use(tap, name); };
  for (const char* name : {"V_I", "C_perf", "Z"}) {  // a light block has none of them
    const std::string path = join("intermediate/", name);
    if (c.file.has(path) || tap.has(name)) compare.floats(path, stage(name));
  }
  compare.floats("intermediate/S", stage("scores"));
  compare.floats("intermediate/estimate", stage("estimate"));
  for (const char* name : {"n_sel", "selected", "row_pointers", "head_offsets", "columns"})
    compare.integers(join("intermediate/", name), stage(name));
  if (stage("probabilities").rank() == 1)
    compare.floats("intermediate/probabilities", stage("probabilities"));
  Tensor gates = sigmoid(stage("gates"));  // [B, H, T, 2]
  compare.floats("intermediate/s_prob", gates.select(3, 0));
  compare.floats("intermediate/s_mix", gates.select(3, 1));
  compare.floats("intermediate/c_avg", stage("c_avg"));
}

}  // namespace

bool GoldenReport::ok() const {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const GoldenRow& r) { return r.ok(); });
}

GoldenTolerance GoldenTolerance::of(Dtype dtype) {
  return dtype == Dtype::f64 ? GoldenTolerance{1e-12, 1e-10} : GoldenTolerance{1e-6, 1e-4};
}

namespace {

void load_weights(nn::Attention& block, const Case& c) {
  std::vector<NamedTensor> weights;
  for (const std::string& name : c.file.datasets("weights")) {
    weights.push_back({name.substr(std::string("weights/").size()), c.file.read(name)});
  }
  nn::load_state(block, weights, c.file.path());
}

// The inputs of a file, as they are and packed, and the tokens of the block.
struct Inputs {
  Inputs(const Case& c, Dtype dtype) {
    for (const std::string name : {"q", "k", "v", "q_content", "k_content"}) {
      if (name.size() > 1 && !c.rotary()) continue;
      leaves[name] = require_grad(c.read("inputs/" + name, dtype).to(default_device()));
      packed[name] = c.pack(leaves[name]);
    }
  }
  nn::AttentionInput of(const Case& c) {
    return {.q = packed["q"],
            .k = packed["k"],
            .v = packed["v"],
            .q_content = packed["q_content"],
            .k_content = packed["k_content"],
            .hidden = {},
            .visible = c.visible()};
  }
  std::map<std::string, Tensor> leaves, packed;
};

void compare_gradients(Comparison& compare, const Inputs& in, nn::Attention& block) {
  for (const auto& [name, tensor] : in.leaves) compare.floats("grad/" + name, grad(tensor));
  for (const auto& p : block.named_parameters()) {
    compare.floats("grad/" + p.path, grad(p.parameter->value));
  }
}

// What make(init) makes, with the weights of the file; null if this build cannot make it, with the
// reason. `unknown`: the setting that it does not have, "" if it has all.
template <class Make>
std::unique_ptr<nn::Attention> loaded(const Case& c, Dtype dtype, const std::string& unknown,
                                      std::string& refusal, const Make& make) {
  refusal = unknown.empty() ? "" : unknown + " is not known to this program";
  if (!refusal.empty()) return nullptr;
  nn::Init init{.random = {.seed = 1}, .dtype = dtype};
  std::unique_ptr<nn::Attention> block;
  try {
    block = make(init);
  } catch (const Error& error) {
    if (error.kind == ErrorKind::format) throw;  // a malformed file
    refusal = error.what();
    return nullptr;
  }
  load_weights(*block, c);
  return block;
}

std::unique_ptr<nn::Attention> block_of(const Case& c, Dtype dtype, std::string& refusal) {
  return loaded(c, dtype, unknown_feature(c), refusal, [&](nn::Init& init) {
    const nn::AttentionShape shape{.heads = c.integer("H"),
                                   .head_size = c.integer("d"),
                                   .max_positions = c.integer("max_positions"),
                                   .causal = c.integer("causal") != 0,
                                   .kv_heads = c.has("kv_heads") ? c.integer("kv_heads") : 0,
                                   .rotary = c.rotary()};
    return std::make_unique<sea::SeaAttention>(init, shape, config_of(c));
  });
}

// The losses of a file; their sum is differentiated.
struct Losses {
  Tensor approx, prob;  // {KL, MSE}
  Tensor approx_term, prob_term, context, cotangent, total;
};

// q and k are packed, `out` [B, T, H d] is in the order of the inputs.
Losses losses_of(const Case& c, Dtype dtype, const nn::Tap& tap, const Tensor& q, const Tensor& k,
                 const Tensor& out, Comparison& compare) {
  auto read = [&](const char* name) { return c.read(name, dtype).to(default_device()); };
  const Visibility visible = c.visible();
  const TeacherAttention teacher{.map = {},
                                 .q = c.pack(read("inputs/teacher_q")),
                                 .k = c.per_head(c.pack(read("inputs/teacher_k")))};
  const TeacherSummary summary = summarize_teacher(teacher, c.integer("K"), visible);
  compare.floats("intermediate/teacher_tau", summary.tau);
  compare.floats("intermediate/teacher_t_log_t", summary.t_log_t);
  compare.floats("intermediate/teacher_t_square", summary.t_square);
  double parts[] = {0.1, 1.0};
  const Tensor mix =
      Tensor::from(std::span<const double>(parts), {2}).to(dtype).to(default_device());
  Losses l;
  l.approx = approx_loss(tap.get("scores"), summary, visible);
  l.prob = prob_loss(q, c.per_head(k), teacher, visible);
  const double rows =
      double(std::count_if(c.valid.begin(), c.valid.end(), [](double v) { return v != 0; }));
  Tensor weight = Tensor::zeros({int64_t(c.valid.size())}, dtype);
  const double w = 1 / (rows * double(out.dim(-1)));
  dispatch_float(dtype, [&]<class S>() {
    for (size_t i = 0; i < c.valid.size(); ++i) weight.data<S>()[i] = c.valid[i] != 0 ? S(w) : S(0);
  });
  l.context = squared_distance(out, read("inputs/teacher_context"), weight.to(default_device()));
  l.cotangent = dot(out, read("inputs/cotangent"));
  l.approx_term = dot(l.approx, mix);
  l.prob_term = dot(l.prob, mix);
  l.total = add(add(l.approx_term, l.prob_term), add(l.context, l.cotangent));
  return l;
}

void compare_losses(const Case& c, Comparison& compare, const Losses& l) {
  const Tensor approx = l.approx.detach(), prob = l.prob.detach();
  for (const auto& [name, value] : {std::pair("approx_kl", approx.slice(0, 0, 1)),
                                    {"approx_mse", approx.slice(0, 1, 1)},
                                    {"prob_kl", prob.slice(0, 0, 1)},
                                    {"prob_mse", prob.slice(0, 1, 1)},
                                    {"approx", l.approx_term},
                                    {"prob", l.prob_term},
                                    {"context", l.context},
                                    {"cotangent", l.cotangent},
                                    {"total", l.total}}) {
    const std::string path = join("loss/", name);
    compare.floats(path, value.detach().contiguous().view(c.file.read(path).shape()));
  }
}

// Files of docs/method.md section 8: form = codes.

// Other numbers of chosen blocks and rows of a tile than the file's: -1, 0: its own.
std::unique_ptr<nn::Attention> blocks_of(const Case& c, Dtype dtype, std::string& refusal,
                                         int64_t chosen = -1, int64_t tile = 0) {
  const std::string unknown =
      unknown_setting(c,
                      " B H T d kv_heads block chosen sinks local tile candidates columns seed "
                      "margin lengths form ");
  return loaded(c, dtype, unknown, refusal, [&](nn::Init& init) {
    sea::BlocksConfig s;
    s.block = c.integer("block");
    s.sinks = c.integer("sinks");
    s.local = c.integer("local");
    s.tile = tile ? tile : c.integer("tile");
    s.candidates = c.integer("candidates");
    s.columns = c.integer("columns");
    s.k = ((chosen < 0 ? c.integer("chosen") : chosen) + s.sinks + s.local + 1) * s.block;
    const nn::AttentionShape shape{.heads = c.integer("H"),
                                   .head_size = c.integer("d"),
                                   .max_positions = std::max(c.integer("T"), s.k),
                                   .causal = true,
                                   .kv_heads = c.integer("kv_heads")};
    return std::make_unique<sea::BlockAttention>(init, shape, s);
  });
}

// The blocks of a mask by keys [B, H, T, T]: u8 [B, G, T, blocks], 1 where its first key is kept.
Tensor kept_blocks(const nn::Tap& tap, const Case& c) {
  const int64_t B = c.integer("B"), H = c.integer("H"), T = c.integer("T"),
                G = c.integer("kv_heads"), size = c.integer("block"), N = (T + size - 1) / size;
  const Tensor keys = csr_to_mask({.row_pointers = tap.get("row_pointers").to(Device{}),
                                   .head_offsets = tap.get("head_offsets").to(Device{}),
                                   .columns = tap.get("columns").to(Device{}),
                                   .batch = B,
                                   .heads = H,
                                   .length = T,
                                   .keys = T});
  const Tensor kept = Tensor::zeros({B, G, T, N}, Dtype::u8);
  for (int64_t r = 0; r < B * G * T; ++r) {
    const int64_t head = r / T / G * H + r / T % G * (H / G);
    for (int64_t n = 0; n < N; ++n) {
      kept.data<uint8_t>()[r * N + n] = keys.data<uint8_t>()[(head * T + r % T) * T + n * size];
    }
  }
  return kept;
}

// What each row keeps by itself of the `chosen` best blocks, without the fixed ones: its tile has
// one row.
Tensor chosen_blocks(const Case& c, Dtype dtype, nn::AttentionInput call, int64_t chosen) {
  NoGrad off;
  std::string refusal;
  const std::unique_ptr<nn::Attention> block = blocks_of(c, dtype, refusal, chosen, 1);
  check(block != nullptr, c.file.path(), ": ", refusal);
  nn::Tap tap("blocks");
  tap.request("mask");
  call.tap = &tap;
  block->forward(call);
  const Tensor kept = kept_blocks(tap, c);
  const BlockConfig config{.sinks = c.integer("sinks"), .local = c.integer("local")};
  const int64_t T = c.integer("T"), N = kept.dim(3);
  for (int64_t i = 0; i < kept.numel(); ++i) {
    const int64_t current = i / N % T / c.integer("block");
    if (i % N <= current && config.is_fixed(i % N, current)) kept.data<uint8_t>()[i] = 0;
  }
  return kept;
}

GoldenReport run_blocks(const Case& c, Dtype dtype, const GoldenTolerance& tolerance, bool dense) {
  GoldenReport report;
  const std::unique_ptr<nn::Attention> block = blocks_of(c, dtype, report.skipped);
  if (!block) return report;
  Inputs in(c, dtype);
  nn::Tap tap("blocks");
  tap.request("mask");
  nn::AttentionInput call = in.of(c);
  call.options.dense_path = dense;
  call.tap = &tap;
  const Tensor out = nn::unpack_rows(block->forward(call), c.packed);
  Comparison compare(c, tolerance);
  const int64_t chosen = c.integer("chosen");
  if (chosen > 0) {
    compare.integers("intermediate/candidates",
                     chosen_blocks(c, dtype, call, c.integer("candidates")));
  }
  compare.integers("intermediate/chosen", chosen_blocks(c, dtype, call, chosen));
  compare.integers("intermediate/kept", kept_blocks(tap, c));
  compare.floats("output/c_sea", out.detach());
  const Tensor keys = c.pack(c.read("inputs/k", dtype));
  compare.floats("intermediate/calibrated_key_scale",
                 calibrated_key_scale(keys, c.visible().lengths, c.integer("block")));
  const Tensor loss = dot(out, c.read("inputs/cotangent", dtype).to(default_device()));
  if (c.file.has("loss/cotangent")) {
    compare.floats("loss/cotangent", loss.detach().view(c.file.read("loss/cotangent").shape()));
  }
  backward(loss);
  compare_gradients(compare, in, *block);
  report.rows = std::move(compare.rows);
  return report;
}

}  // namespace

GoldenReport run_golden(const std::string& file, Dtype dtype, const GoldenTolerance& tolerance,
                        bool dense) {
  const Case c(file);
  if (c.is_blocks()) return run_blocks(c, dtype, tolerance, dense);
  GoldenReport report;
  const std::unique_ptr<nn::Attention> block = block_of(c, dtype, report.skipped);
  if (!block) return report;
  nn::ParameterStore store(*block);
  Inputs in(c, dtype);
  nn::Tap tap("sea");
  nn::AttentionInput call = in.of(c);
  call.options = {.query_skip = c.integer("query_skip"), .dense_path = dense};
  call.tap = &tap;
  const Tensor packed_out = block->forward(call);
  const Tensor out = nn::unpack_rows(packed_out, c.packed);
  Comparison compare(c, tolerance);
  compare_stages(c, compare, tap);
  compare.floats("output/c_sea", out.detach());
  const Losses losses = losses_of(c, dtype, tap, in.packed["q"], in.packed["k"], out, compare);
  compare_losses(c, compare, losses);
  backward(losses.total);
  compare_gradients(compare, in, *block);
  report.rows = std::move(compare.rows);
  return report;
}

namespace {

// Every line names the file and the type.
void print(const std::string& which, const GoldenReport& report, bool quiet, std::ostream& out) {
  if (!report.skipped.empty()) {
    out << which << "skipped: " << report.skipped << "\n";
    return;
  }
  out << which << (report.ok() ? "ok" : "OUT OF TOLERANCE") << ", " << report.rows.size()
      << " datasets\n";
  for (const GoldenRow& row : report.rows) {
    if (quiet && row.ok()) continue;
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, "%-32s error %.2e  bound %.2e", row.dataset.c_str(),
                  row.error, row.bound);
    out << which << numbers << (row.ok() ? "" : "  <-- out of tolerance") << "\n";
  }
}

}  // namespace

void Verification::describe(data::Schema& s) {
  s.field("golden", golden, "Golden files", {.required = true, .positional = true});
  s.choice("dtype", dtype, kGoldenTypes, "Type to compute in");
  s.choice("path", path, distill::kAttentionPaths, "dense: the T x T reference");
  s.field("atol", atol, "Absolute tolerance; negative: 1e-12 in f64, 1e-6 in f32");
  s.field("rtol", rtol, "Tolerance relative to the largest value; negative: 1e-10, 1e-4",
          {.alias = "tolerance"});
}

std::vector<Dtype> Verification::types() const {
  if (dtype == GoldenTypes::both) return {Dtype::f64, Dtype::f32};
  return {dtype == GoldenTypes::f64 ? Dtype::f64 : Dtype::f32};
}

GoldenTolerance Verification::tolerance(Dtype type) const {
  GoldenTolerance t = GoldenTolerance::of(type);
  if (atol >= 0) t.atol = atol;
  if (rtol >= 0) t.rtol = rtol;
  return t;
}

VerifyCounts verify(const Verification& what, bool quiet, std::ostream& out) {
  VerifyCounts counts;
  for (const std::string& file : what.golden) {
    for (Dtype type : what.types()) {
      const GoldenReport report =
          run_golden(file, type, what.tolerance(type), what.path == distill::AttentionPath::dense);
      print(join(file, " ", type, ": "), report, quiet, out);
      counts.skipped += !report.skipped.empty();
      counts.compared += report.skipped.empty();
      counts.passed += report.skipped.empty() && report.ok();
    }
  }
  check(counts.compared > 0, "nothing was compared, all ", counts.skipped, " runs were skipped");
  out << counts.passed << " of " << counts.compared << " ok";
  if (counts.skipped) out << ", " << counts.skipped << " skipped";
  out << "\n";
  return counts;
}

}  // namespace brine
