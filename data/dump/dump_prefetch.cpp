// The prefetching reader: a thread reads the next batches while the trainer computes.
#include <exception>
#include <thread>
#include <utility>

#include "data/dump/dump_reader.h"
#include "data/io/bounded_queue.h"
#include "tensor/functions/transfer.h"

namespace brine::data {

struct DumpPrefetch::Impl {
  const DumpReader& reader;
  Order order;
  DumpWants wants;
  int64_t step;
  Device device;
  // An error is queued after the batches before it.
  using Item = std::pair<DumpBatch, std::exception_ptr>;
  BoundedQueue<Item> queue;
  std::exception_ptr ended;  // rethrown by every call after the first
  std::thread thread;

  void run() {
    const PinnedMemory pinned(device);
    try {
      for (;; ++step) {
        std::vector<int64_t> samples = order(step);
        if (samples.empty() || !queue.push({reader.read(samples, wants), nullptr})) break;
      }
    } catch (...) {
      queue.push({DumpBatch(), std::current_exception()});
    }
    queue.close();
  }
};

DumpPrefetch::DumpPrefetch(const DumpReader& reader, Order order, const DumpWants& wants,
                           int64_t first_step, size_t ahead, Device device)
    : impl_(new Impl{reader,
                     std::move(order),
                     wants,
                     first_step,
                     device,
                     BoundedQueue<Impl::Item>(ahead > 0 ? ahead : 1),
                     nullptr,
                     {}}) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

DumpPrefetch::~DumpPrefetch() {
  impl_->queue.cancel();
  impl_->thread.join();
}

std::optional<DumpBatch> DumpPrefetch::next() {
  if (impl_->ended) std::rethrow_exception(impl_->ended);
  auto item = impl_->queue.pop();
  if (!item) return {};
  impl_->ended = item->second;
  if (impl_->ended) std::rethrow_exception(impl_->ended);
  return std::move(item->first);
}

std::optional<DumpBatch> DumpPrefetch::next_if_read() {
  if (impl_->ended) return {};
  auto item = impl_->queue.try_pop();
  if (!item) return {};
  impl_->ended = item->second;  // for next(), which reports it
  if (impl_->ended) return {};
  return std::move(item->first);
}

}  // namespace brine::data
