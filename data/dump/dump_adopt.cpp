// Adopting files of other programs: they become a dump when every value in them is valid.
#include <algorithm>
#include <cmath>

#include "data/codec/sha256.h"
#include "data/dump/dump.h"
#include "data/dump/dump_reader.h"
#include "data/hdf5/hdf5_file.h"
#include "data/io/file_io.h"

namespace brine::data {
namespace {

struct Found {
  DumpShard shard;
  DumpSpec spec;
  std::vector<int64_t> windows;
};

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
  check_known_tensors(f.spec, path.string());
  check_shard_datasets(file, f.spec);
  if (file.has("windows")) f.windows = read_shard_list(file, "windows", f.spec.samples);
  check_format(f.spec.stores_tokens || !f.windows.empty(), path.string(),
               ": has neither tokens nor windows, so its text is unknown");
  return f;
}

void check_finite(const Tensor& x, const std::string& what) {
  if (!x.defined()) return;
  const float* v = x.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    check_format(std::isfinite(v[i]), what, ": value ", i, " is ", v[i]);
}

}  // namespace

void check_dump_sample(const DumpReader& reader, int64_t sample, const std::string& file) {
  const DumpSpec& s = reader.spec();
  DumpBatch batch;
  try {
    batch = reader.read(std::vector<int64_t>{sample});
  } catch (const Error& e) {
    throw Error(file + ": " + e.what(), e.kind);
  }
  auto what = [&](const std::string& name) { return join(file, ": sample ", sample, ": ", name); };
  int64_t length = batch.lengths.data<int64_t>()[0];
  for (const TeacherTensor* tensor : teacher_tensors()) {
    if (tensor->of_layer || !tensor->is_float()) continue;
    check_finite(batch.tensors[tensor->name], what(tensor->path(0)));
  }
  for (const TeacherTensor* tensor : teacher_tensors()) {
    const Tensor& x = batch.tensors[tensor->name];
    if (!tensor->of_layer && tensor->valid && x.defined())
      tensor->valid(x, batch.tensors, length, s, what(tensor->path(0)));
  }
  for (size_t l = 0; l < batch.layers.size(); ++l) {
    const TensorSet& layer = batch.layers[l];
    for (const auto& [name, x] : layer)
      check_finite(x, what(find_teacher_tensor(name)->path(int64_t(l))));
    for (const auto& [name, x] : layer) {
      const TeacherTensor& tensor = *find_teacher_tensor(name);
      if (tensor.valid) tensor.valid(x, layer, length, s, what(tensor.path(int64_t(l))));
    }
  }
}

DumpManifest adopt_dump(const std::vector<Path>& files,
                        const std::function<void(const DumpReader&)>& compare) {
  check(!files.empty(), "adopt: no files were given");
  Path dir = directory_of(files[0]);
  check(!std::filesystem::exists(manifest_path(dir)), manifest_path(dir).string(),
        ": exists already; remove it to adopt the files again");
  std::vector<Found> found;
  for (const Path& path : files) {
    check_found(std::filesystem::exists(path), path.string(), ": there is no such file");
    check_format(std::filesystem::equivalent(directory_of(path), dir), path.string(),
                 ": is in another directory than ", files[0].string());
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
      check_dump_sample(reader, s.first + i, (dir / s.name).string());
  }
  if (compare) compare(reader);
  write_manifest(dir, m);
  return m;
}

}  // namespace brine::data
