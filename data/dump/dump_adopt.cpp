// Files of others become a dump when every value in them is as the schema says.
#include <algorithm>
#include <cmath>

#include "data/dump/dump.h"
#include "data/dump/dump_reader.h"
#include "data/hdf5/hdf5_file.h"
#include "data/io/sha256.h"
#include "tensor/math.h"

namespace brine::data {
namespace {

struct Found {
  DumpShard shard;
  DumpSpec spec;
  std::vector<int64_t> windows;
};

Path directory_of(const Path& file) {
  return file.has_parent_path() ? file.parent_path() : Path(".");
}

Found examine(const Path& path) {
  Hdf5Reader file(path.string());
  Found f;
  f.spec = read_shard_header(file, f.shard.first);
  f.shard.name = path.filename().string();
  f.shard.samples = f.spec.samples;
  f.shard.bytes = std::filesystem::file_size(path);
  if (f.spec.ragged) {
    f.spec.lengths = read_shard_list(file, "lengths", f.spec.samples);
    check_spec(f.spec, path.string());
  }
  check_shard_datasets(file, f.spec);
  if (file.has("windows")) f.windows = read_shard_list(file, "windows", f.spec.samples);
  check_format(f.spec.stores_tokens || !f.windows.empty(), path.string(),
               ": holds neither tokens nor windows, so nobody knows of what text it is");
  return f;
}

void check_finite(const Tensor& x, const std::string& what) {
  if (!x.defined()) return;
  const float* v = x.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    check_format(std::isfinite(v[i]), what, ": value ", i, " is ", v[i]);
}

// Of the sum of a row of stored probabilities.
double tolerance_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 1e-3 : dtype == Dtype::f16 ? 1e-2 : 3e-2;
}

// Rows of probabilities [1, H, T, T]: not negative, nothing on hidden or padded keys, sum 1.
void check_maps(const Tensor& x, int64_t length, const DumpSpec& s, const std::string& what) {
  double tolerance = tolerance_of(s.dtype);
  const float* row = x.data<float>();
  for (int64_t h = 0; h < s.heads; ++h) {
    int64_t T = x.dim(-1);
    for (int64_t t = 0; t < T; ++t, row += T) {
      if (t >= length) continue;
      double sum = 0;
      for (int64_t j = 0; j < T; ++j) {
        bool visible = j < length && (!s.causal || j <= t);
        check_format(visible ? row[j] >= 0 && row[j] <= 1 + tolerance : row[j] == 0, what,
                     ": head ", h, ", query ", t, ", key ", j, " has the probability ", row[j]);
        sum += row[j];
      }
      check_format(std::abs(sum - 1) <= tolerance, what, ": head ", h, ", query ", t,
                   ": the probabilities sum to ", sum, ", not to 1");
    }
  }
}

// A row of [1, H, T, K] over w visible keys: a distribution over the columns that own keys, and
// sums that a distribution of that mass can have.
void check_pooled_row(const float* tau, double t_log_t, double t_square, int64_t w, int64_t K,
                      double tolerance, const std::string& what) {
  double sum = 0, most_entropy = 0, least_square = 0;
  for (int64_t c = 0; c < K; ++c) {
    double keys = double(math::column_begin(c + 1, w, K) - math::column_begin(c, w, K));
    check_format(keys > 0 ? tau[c] >= 0 && tau[c] <= 1 + tolerance : tau[c] == 0, what, ", column ",
                 c, " of ", keys, " keys has the mass ", tau[c]);
    sum += tau[c];
    if (tau[c] > 0) {
      most_entropy -= tau[c] * std::log(tau[c] / keys);
      least_square += double(tau[c]) * tau[c] / keys;
    }
  }
  check_format(std::abs(sum - 1) <= tolerance, what, ": the masses sum to ", sum, ", not to 1");
  check_format(t_log_t <= tolerance && t_log_t >= -most_entropy - 10 * tolerance, what,
               ": t_log_t is ", t_log_t, ", but such masses allow ", -most_entropy, " to 0");
  check_format(t_square <= 1 + tolerance && t_square >= least_square - 2 * tolerance, what,
               ": t_square is ", t_square, ", but such masses allow ", least_square, " to 1");
}

void check_pooled(const TeacherSummary& pooled, int64_t length, const DumpSpec& s,
                  const std::string& what) {
  double tolerance = tolerance_of(s.dtype);
  int64_t T = pooled.tau.dim(2), K = pooled.tau.dim(3);
  for (int64_t h = 0; h < s.heads; ++h) {
    for (int64_t t = 0; t < std::min(T, length); ++t) {
      int64_t r = h * T + t;
      check_pooled_row(pooled.tau.data<float>() + r * K, pooled.t_log_t.data<float>()[r],
                       pooled.t_square.data<float>()[r], s.causal ? t + 1 : length, K, tolerance,
                       join(what, ": head ", h, ", query ", t));
    }
  }
}

void check_sample(const DumpReader& reader, int64_t sample, const std::string& file) {
  const DumpSpec& s = reader.spec();
  DumpBatch batch;
  try {
    batch = reader.read(std::vector<int64_t>{sample});
  } catch (const Error& e) {
    throw Error(file + ": " + e.what(), e.kind);
  }
  auto what = [&](const std::string& name) { return join(file, ": sample ", sample, ": ", name); };
  int64_t length = batch.lengths.data<int64_t>()[0];
  for (size_t l = 0; l < batch.layers.size(); ++l) {
    const DumpLayer& layer = batch.layers[l];
    auto in_layer = [&](const char* name) { return what(layer_dataset(int64_t(l), name)); };
    check_finite(layer.attention, in_layer("attention"));
    check_finite(layer.query, in_layer("query"));
    check_finite(layer.key, in_layer("key"));
    check_finite(layer.pooled.tau, in_layer("tau"));
    check_finite(layer.pooled.t_log_t, in_layer("t_log_t"));
    check_finite(layer.pooled.t_square, in_layer("t_square"));
    check_finite(layer.context, in_layer("context"));
    check_finite(layer.output, in_layer("output"));
    if (layer.attention.defined()) check_maps(layer.attention, length, s, in_layer("attention"));
    if (layer.pooled.tau.defined()) check_pooled(layer.pooled, length, s, in_layer("tau"));
  }
  check_finite(batch.logits, what("logits/values"));
  check_finite(batch.lse, what("logits/lse"));
  check_finite(batch.classes, what("logits/classes"));
}

}  // namespace

DumpManifest adopt_dump(const std::vector<Path>& files) {
  check(!files.empty(), "adopt: no files were given");
  Path dir = directory_of(files[0]);
  check(!std::filesystem::exists(manifest_path(dir)), manifest_path(dir).string(),
        ": exists already; remove it to adopt the files again");
  std::vector<Found> found;
  for (const Path& path : files) {
    check_found(std::filesystem::exists(path), path.string(), ": there is no such file");
    check_format(std::filesystem::equivalent(directory_of(path), dir), path.string(),
                 ": lies in another directory than ", files[0].string());
    found.push_back(examine(path));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.shard.first < b.shard.first; });
  DumpManifest m;
  m.spec = found[0].spec;
  m.spec.samples = 0;
  m.spec.lengths.clear();
  for (const Found& f : found) {
    std::string where = (dir / f.shard.name).string();
    DumpSpec same = f.spec;
    same.samples = m.spec.samples;
    same.lengths.clear();
    DumpSpec plain = m.spec;
    plain.windows.clear();
    plain.lengths.clear();
    std::string differences = spec_differences(plain, same);
    check_format(differences.empty(), where, ": differs from ", found[0].shard.name, ": ",
                 differences);
    check_format(f.windows.empty() == found[0].windows.empty(), where,
                 ": only some files store windows");
    check_format(f.shard.first == m.spec.samples, where, ": begins at sample ", f.shard.first,
                 ", but the files before it end at ", m.spec.samples);
    m.spec.samples += f.shard.samples;
    m.spec.windows.insert(m.spec.windows.end(), f.windows.begin(), f.windows.end());
    m.spec.lengths.insert(m.spec.lengths.end(), f.spec.lengths.begin(), f.spec.lengths.end());
    m.shards.push_back(f.shard);
  }
  check_spec(m.spec, dir.string());
  for (DumpShard& s : m.shards) s.sha256 = sha256_file((dir / s.name).string());
  DumpReader reader(dir, m);
  for (const DumpShard& s : m.shards) {
    for (int64_t i = 0; i < s.samples; ++i)
      check_sample(reader, s.first + i, (dir / s.name).string());
  }
  write_manifest(dir, m);
  return m;
}

}  // namespace brine::data
