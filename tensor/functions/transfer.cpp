// The memory that a copy keeps alive, and for how long.
#include "tensor/functions/transfer.h"

#include <exception>
#include <utility>

#include "tensor/base/error.h"
#include "tensor/device/accelerator.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

size_t transfer_bytes(const Tensor& x) { return size_t(x.numel()) * item_size(x.dtype()); }

// For destructors: the memory must not be released before the copy has ended; an error of the
// device is reported again at its next call.
void settle(cuda::Ticket& ticket) noexcept {
  if (!ticket) return;
  try {
    cuda::wait(ticket);
  } catch (const std::exception&) {
  }
  ticket.reset();
}

}  // namespace

OpenCopies::~OpenCopies() { settle(last_); }

OpenCopies& OpenCopies::operator=(OpenCopies&& other) noexcept {
  settle(last_);
  last_ = std::move(other.last_);
  ends_ = std::move(other.ends_);
  return *this;
}

Tensor Downloads::start(const Tensor& x) {
  if (!x.defined() || x.device().is_cpu()) return x;
  check(x.device().is_cuda(), "Downloads: a tensor on the meta device has no values");
  const Tensor from = x.detach().contiguous();
  const PinnedMemory pinned(x.device());
  Tensor to = Tensor::empty(x.shape(), x.dtype());
  ends_.insert(ends_.end(), {from, to});
  if (const size_t bytes = transfer_bytes(from)) {
    last_ = cuda::start_download(to.raw(), from.raw(), bytes, x.device());
  }
  return to;
}

void Downloads::finish() {
  if (last_) cuda::wait(last_);
  last_.reset();
  ends_.clear();
}

Tensor Uploads::start(const Tensor& x, Device device) {
  if (!x.defined()) return x;
  if (!device.is_cuda()) return device.is_meta() ? x.to(device) : x;
  check(!last_ || device == device_, "Uploads: to ", device, " after ", device_);
  const Tensor from = x.detach().contiguous();
  Tensor to = Tensor::empty(x.shape(), x.dtype(), device);
  ends_.insert(ends_.end(), {from, to});
  if (const size_t bytes = transfer_bytes(from)) {
    last_ = cuda::start_upload(to.raw(), from.raw(), bytes, device);
  }
  device_ = device;
  return to;
}

void Uploads::admit() const {
  if (last_) cuda::order_after(last_, device_);
}

std::vector<double> items(const std::vector<Tensor>& scalars) {
  if (scalars.empty()) return {};
  const Tensor all = Tensor::empty({int64_t(scalars.size())}, Dtype::f64, scalars[0].device());
  for (size_t i = 0; i < scalars.size(); ++i) {
    check(scalars[i].numel() == 1, "items: a tensor of shape ", scalars[i].shape(),
          " does not have exactly one element");
    check(scalars[i].device() == all.device(), "items: one is on ", scalars[i].device(),
          ", the first on ", all.device());
    const Tensor element = all.slice(0, int64_t(i), 1);
    BRINE_CALL(all, copy, element, scalars[i].detach().contiguous().view({1}));
  }
  return all.to_vector();
}

}  // namespace brine
