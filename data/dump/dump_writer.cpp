// The writer of a dump: what exists, what is missing, and the thread that writes it. A shard counts
// once the manifest lists it.
#include "data/dump/dump_writer.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "data/codec/checksums.h"
#include "data/dump/dump_shard.h"
#include "data/io/bounded_queue.h"
#include "data/io/temporary.h"

namespace brine::data {
namespace {

bool is_shard_name(const std::string& name) {
  return name.starts_with("shard-") && name.ends_with(".h5");
}

// `stored` is allowed, too.
void check_tensor(const std::string& what, const Tensor& t, Dtype dtype, const Shape& shape,
                  std::optional<Dtype> stored = {}) {
  check(t.defined(), "dump: ", what, " is missing");
  const bool typed = t.dtype() == dtype || (stored && t.dtype() == *stored);
  check(t.shape() == shape && typed && !t.device().is_cuda(), "dump: ", what, " is ", t.dtype(),
        " ", t.shape(), " on ", t.device(), ", must be ", dtype, " ", shape, " on the cpu");
}

// T of a batch whose samples have individual lengths.
int64_t tokens_of(const DumpBatch& batch) {
  auto longest = [](const TensorSet& set) {
    for (const auto& [name, x] : set) {
      const TeacherTensor& tensor = *find_teacher_tensor(name);
      if (x.defined() && tensor.has_tokens() && x.rank() == int(tensor.shape.size()) + 1)
        return x.dim(tensor.by_head() ? 2 : 1);
    }
    return int64_t(0);
  };
  const int64_t T = batch.layers.empty() ? 0 : longest(batch.layers[0]);
  if (T > 0) return T;
  if (const int64_t of_tensors = longest(batch.tensors); of_tensors > 0) return of_tensors;
  // Only tensors without tokens, such as the logits of classes.
  const int64_t* lengths = batch.lengths.data<int64_t>();
  return *std::max_element(lengths, lengths + batch.lengths.numel());
}

}  // namespace

void check_disk(const DumpSpec& spec, const Path& dir, int64_t samples,
                const DumpWriterOptions& options) {
  DumpSize size = dump_size(spec, options.shard_bytes);
  uint64_t values = std::min(size.per_sample * uint64_t(samples), size.total);
  uint64_t needed = values + values / 100 + (uint64_t(16) << 20);
  uint64_t free = options.free_bytes(dir);
  auto gib = [](uint64_t bytes) { return double(bytes) / double(1 << 30); };
  check(samples == 0 || needed <= free, dir.string(), ": the dump needs ", needed, " bytes (",
        gib(needed), " GiB) for ", samples, " samples, but the disk has only ", free, " (",
        gib(free), " GiB) free");
}

struct DumpWriter::Impl {
  Path dir;
  DumpManifest manifest;  // after the start it belongs to the thread
  DumpWriterOptions options;
  std::unique_ptr<DirectoryLock> lock;  // a second writer would delete the shard of the first
  std::vector<std::string> notes;
  std::vector<bool> had;  // by shard: finished when this writer started
  int64_t next = 0;       // the first sample that was not put

  struct Item {
    DumpBatch batch;
    Downloads arriving;
  };
  BoundedQueue<Item> queue;
  std::thread thread;
  std::atomic<bool> failed = false;
  std::exception_ptr failure;  // read after `failed` was seen

  std::unique_ptr<ShardWriter> shard;  // used by the thread only

  std::mutex mutex;  // of these:
  std::condition_variable written;
  int64_t open = 0;  // batches that are not written yet
  std::vector<DumpShard> finished;

  Impl(const Path& where, const DumpSpec& spec, const DumpWriterOptions& given)
      : dir(where), options(given), queue(std::max<size_t>(1, given.queue)) {
    manifest.spec = spec;
  }

  void start_or_continue();
  void continue_from(const DumpManifest& found);
  void join_first();
  void share_missing();
  void list(const DumpShard& done);
  void wait_for_thread();
  void drop_leftovers();
  int64_t shard_samples() const { return manifest.samples_per_shard; }
  int64_t samples_of(int64_t shard) const {
    return std::min(shard_samples(), manifest.spec.samples - shard * shard_samples());
  }
  Run missing() const;
  // Fills in the optional members of a batch.
  void complete(DumpBatch& batch, Downloads& arriving) const;
  void check_batch(const DumpBatch& batch) const;
  void rethrow_failure() const {
    if (failed) std::rethrow_exception(failure);
  }

  void run();
  void write_sample(const DumpBatch& batch, int64_t i, int64_t sample);
};

void DumpWriter::Impl::start_or_continue() {
  check_spec(manifest.spec, "dump");
  manifest.samples_per_shard = dump_size(manifest.spec, options.shard_bytes).samples_per_shard;
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) throw_io(dir, "create", error.value());
  lock = std::make_unique<DirectoryLock>(dir, "is writing this dump");
  remove_stale_temporaries(dir);
  if (std::filesystem::exists(manifest_path(dir))) {
    continue_from(read_manifest(dir));
    drop_leftovers();
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(dir))
      check(!is_shard_name(entry.path().filename().string()), dir.string(), ": holds ",
            entry.path().filename().string(), " but no manifest.json; choose another directory");
  }
  check_disk(manifest.spec, dir, manifest.spec.samples - manifest.stored_samples(), options);
  write_manifest(dir, manifest);
}

void DumpWriter::Impl::continue_from(const DumpManifest& found) {
  if (found.shards.empty()) return;  // the run before ended without one
  std::string differences = spec_differences(found.spec, manifest.spec);
  check(differences.empty(), dir.string(),
        ": contains another dump (existing and new: ", differences, ")");
  manifest.samples_per_shard = found.samples_per_shard;
  for (const DumpShard& s : found.shards) {
    Path path = dir / s.name;
    bool ours = s.first % shard_samples() == 0 &&
                s.samples == samples_of(s.first / shard_samples()) &&
                s.name == shard_name(s.first / shard_samples());
    check(ours, manifest_path(dir).string(), ": shard \"", s.name,
          "\" is not at its expected position");
    std::error_code error;
    uint64_t bytes = std::filesystem::file_size(path, error);
    std::string problem;
    if (error) {
      problem = "is missing";
    } else if (bytes != s.bytes) {
      problem = join("has ", bytes, " bytes instead of ", s.bytes);
    } else if (sha256_file(path.string()) != s.sha256) {
      problem = "has another checksum than the manifest";
    }
    if (problem.empty()) {
      notes.push_back(path.string() + ": verified");
      manifest.shards.push_back(s);
    } else {
      notes.push_back(path.string() + ": " + problem + "; it is written again");
    }
  }
}

// A part that is not the first one: that has verified what exists.
void DumpWriter::Impl::join_first() {
  const DumpManifest found = read_manifest(dir);
  const std::string differences = spec_differences(found.spec, manifest.spec);
  check(differences.empty(), dir.string(), ": part ", options.part,
        " is of another dump (first part and this one: ", differences, ")");
  manifest.samples_per_shard = found.samples_per_shard;
  manifest.shards = found.shards;
}

// Missing shards go to the parts in turn; those of others count as existing.
void DumpWriter::Impl::share_missing() {
  int64_t shards = (manifest.spec.samples + shard_samples() - 1) / shard_samples();
  had.assign(size_t(shards), false);
  for (const DumpShard& s : manifest.shards) had[size_t(s.first / shard_samples())] = true;
  int64_t turn = 0;
  for (size_t i = 0; i < had.size(); ++i) {
    if (!had[i]) had[i] = turn++ % options.parts != options.part;
  }
}

// Files that are not in the manifest were not finished.
void DumpWriter::Impl::drop_leftovers() {
  std::vector<Path> doomed;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    std::string name = entry.path().filename().string();
    std::string final_name = name;
    if (name.ends_with(kTemporaryShard))
      final_name.resize(name.size() - std::strlen(kTemporaryShard));
    bool listed = std::any_of(manifest.shards.begin(), manifest.shards.end(),
                              [&](const DumpShard& s) { return s.name == name; });
    if (is_shard_name(final_name) && !listed) doomed.push_back(entry.path());
  }
  for (const Path& path : doomed) remove_file(path);
}

DumpWriter::Run DumpWriter::Impl::missing() const {
  int64_t shards = int64_t(had.size()), first = next;
  while (first < manifest.spec.samples && had[size_t(first / shard_samples())])
    first = (first / shard_samples() + 1) * shard_samples();
  if (first >= manifest.spec.samples) return {manifest.spec.samples, 0, 0};
  int64_t end = first / shard_samples();
  const int64_t border = end * shard_samples() + samples_of(end);
  while (end < shards && !had[size_t(end)]) ++end;
  return {first, std::min(end * shard_samples(), manifest.spec.samples) - first, border - first};
}

void DumpWriter::Impl::check_batch(const DumpBatch& batch) const {
  const DumpSpec& s = manifest.spec;
  std::vector<const TeacherTensor*> stored;
  for (const TeacherTensor* tensor : teacher_tensors())
    if (tensor->stored_in(s)) stored.push_back(tensor);
  bool any_layer = std::any_of(stored.begin(), stored.end(), [](auto* t) { return t->of_layer; });
  check(!any_layer || int64_t(batch.layers.size()) == s.layers, "dump: the batch has ",
        batch.layers.size(), " layers, must have ", s.layers);
  int64_t n = batch.lengths.dim(0), T = s.ragged ? tokens_of(batch) : s.tokens;
  check_tensor("lengths", batch.lengths, Dtype::i64, {n});
  auto check_set = [&](const TensorSet& set, bool of_layer, const std::string& at) {
    for (const TeacherTensor* tensor : stored) {
      if (tensor->of_layer != of_layer) continue;
      check_tensor(at + tensor->name, set[tensor->name],
                   tensor->is_float() ? Dtype::f32 : Dtype::i32, tensor->padded(s, n, T),
                   tensor->is_map() ? std::nullopt : std::optional(tensor->dtype(s)));
    }
  };
  for (int64_t l = 0; any_layer && l < s.layers; ++l)
    check_set(batch.layers[size_t(l)], true, join("layer ", l, " "));
  check_set(batch.tensors, false, "");
  for (int64_t i = 0; i < n; ++i) {
    int64_t length = batch.lengths.data<int64_t>()[i];
    check(length >= 1 && length <= s.tokens, "dump: length ", length, " is not in 1 to ", s.tokens);
  }
  Run run = missing();
  check(n >= 1 && n <= run.samples, "dump: ", n, " samples were given, but ", run.samples,
        " consecutive ones are missing");
  for (int64_t i = 0; i < n && s.ragged; ++i) {
    int64_t given = batch.lengths.data<int64_t>()[i], wanted = s.lengths[size_t(run.first + i)];
    check(given == wanted && given <= T, "dump: sample ", run.first + i, " has ", given,
          " tokens, but the spec has ", wanted);
  }
  check(batch.windows.empty() || int64_t(batch.windows.size()) == n, "dump: ", batch.windows.size(),
        " windows for ", n, " samples");
  for (size_t i = 0; i < batch.windows.size() && !s.windows.empty(); ++i) {
    int64_t wanted = s.windows[size_t(run.first) + i];
    check(batch.windows[i] == wanted, "dump: sample ", run.first + int64_t(i), " is window ",
          batch.windows[i], ", but the spec has ", wanted);
  }
}

void DumpWriter::Impl::run() {
  try {
    while (auto item = queue.pop()) {
      // Done first, so that the device memory is released before the disk has written a byte.
      item->arriving.finish();
      const DumpBatch& batch = item->batch;
      for (int64_t i = 0; i < batch.lengths.dim(0); ++i)
        write_sample(batch, i, batch.samples[0] + i);
      item.reset();  // a caller that waited finds its memory released
      const std::lock_guard lock(mutex);
      --open;
      written.notify_all();
    }
  } catch (...) {
    failure = std::current_exception();
    failed = true;
    queue.cancel();
    const std::lock_guard lock(mutex);
    written.notify_all();
  }
}

void DumpWriter::Impl::wait_for_thread() {
  std::unique_lock lock(mutex);
  written.wait(lock, [&] { return open == 0 || failed; });
  lock.unlock();
  rethrow_failure();
}

void DumpWriter::Impl::list(const DumpShard& done) {
  auto later = std::find_if(manifest.shards.begin(), manifest.shards.end(),
                            [&](const DumpShard& s) { return s.first > done.first; });
  manifest.shards.insert(later, done);
  if (options.part == 0) write_manifest(dir, manifest);
}

void DumpWriter::Impl::write_sample(const DumpBatch& batch, int64_t i, int64_t sample) {
  if (!shard) {
    int64_t index = sample / shard_samples();
    shard = std::make_unique<ShardWriter>(
        dir / shard_name(index), manifest.spec, index * shard_samples(), samples_of(index),
        Hdf5Layout{.shuffle = options.shuffle, .deflate = options.deflate});
  }
  shard->write(batch, i);
  if (!shard->full()) return;
  DumpShard done = shard->commit();
  shard.reset();
  list(done);
  const std::lock_guard lock(mutex);
  finished.push_back(done);
}

void DumpWriter::Impl::complete(DumpBatch& batch, Downloads& arriving) const {
  const DumpSpec& s = manifest.spec;
  if (s.logits == DumpLogits::top && batch.tensors.has("logits") &&
      !batch.tensors.has("logit_ids")) {
    arriving.finish();
    keep_top_logits(batch, Tensor(batch.tensors["logits"]), s.top_n);
  }
  int64_t n = -1;
  auto settle = [&n](Tensor& t) {
    if (!t.defined()) return;
    check(t.rank() >= 1, "dump: the batch has a tensor without axes");
    if (n < 0) n = t.dim(0);
    t = t.detach().contiguous();
  };
  for (auto& [name, x] : batch.tensors) settle(x);
  for (TensorSet& layer : batch.layers)
    for (auto& [name, x] : layer) settle(x);
  settle(batch.lengths);
  check(n >= 1, "dump: the batch is empty");
  check(batch.lengths.defined() || !s.ragged, "dump: the batch has no lengths");
  if (!batch.lengths.defined())
    batch.lengths = Tensor::from(std::vector<int64_t>(size_t(n), s.tokens), {n});
}

DumpWriter::DumpWriter(const Path& dir, const DumpSpec& spec, const DumpWriterOptions& options)
    : impl_(std::make_unique<Impl>(dir, spec, options)) {
  if (options.part == 0) {
    impl_->start_or_continue();
  } else {
    impl_->join_first();
  }
  impl_->share_missing();
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

DumpWriter::~DumpWriter() {
  impl_->queue.cancel();
  if (impl_->thread.joinable()) impl_->thread.join();
}

DumpWriter::Run DumpWriter::missing() const { return impl_->missing(); }

void DumpWriter::put(DumpBatch batch, Downloads arriving) {
  Impl& w = *impl_;
  w.rethrow_failure();
  w.complete(batch, arriving);
  w.check_batch(batch);
  int64_t first = w.missing().first, n = batch.lengths.dim(0);
  batch.samples.assign(1, first);
  {
    const std::lock_guard lock(w.mutex);
    ++w.open;
  }
  if (!w.queue.push({std::move(batch), std::move(arriving)})) {
    w.rethrow_failure();
    throw Error(w.dir.string() + ": the dump is already finished");
  }
  w.next = first + n;
}

void DumpWriter::wait() { impl_->wait_for_thread(); }

std::vector<DumpShard> DumpWriter::take_finished() {
  impl_->wait_for_thread();
  return std::exchange(impl_->finished, {});
}

void DumpWriter::add_finished(const std::vector<DumpShard>& shards) {
  impl_->wait_for_thread();
  for (const DumpShard& shard : shards) impl_->list(shard);
}

void DumpWriter::finish() {
  Impl& w = *impl_;
  w.queue.close();
  if (w.thread.joinable()) w.thread.join();
  w.rethrow_failure();
  Run run = w.missing();
  check(run.samples == 0, w.dir.string(), ": samples ", run.first, " and later are missing");
  check(w.options.part > 0 || w.manifest.complete(), w.dir.string(), ": ",
        w.manifest.spec.samples - w.manifest.stored_samples(),
        " samples of other parts are missing");
}

const std::vector<std::string>& DumpWriter::notes() const { return impl_->notes; }

}  // namespace brine::data
