// The refinement of a mask: the checked function over its kernels.
#include <algorithm>

#include "tensor/base/stored.h"
#include "tensor/kernels/attention.h"
#include "tensor/mask/csr.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

// Entries of the refined mask; on a device, which is not waited for, an upper bound.
int64_t refined_entries(const FlatCsr& fine, const FlatCsr& csr, int64_t keys,
                        const Visibility& visible) {
  const int64_t rows = csr.batch * csr.length;
  const Device device = csr.columns.device();
  if (device.is_meta()) {
    return budgeted_entries(visible, keys, csr.batch, csr.heads, csr.length);
  }
  if (device.is_cuda()) return std::min(csr.entries(), rows * csr.heads * keys);
  return csr.batch ? fine.row_pointers.data<int64_t>()[csr.batch * (csr.length + 1) - 1] : 0;
}

}  // namespace

FlatCsr refine(const Tensor& q, const Tensor& k, const FlatCsr& csr, int64_t keys,
               const Visibility& visible) {
  check_csr("refine", csr, q, k);
  check(keys > 0, "refine: keys must be positive, got ", keys);
  check(can_store(q.dtype(), k.dtype()) && (q.dtype() == Dtype::f32 || q.dtype() == Dtype::f64) &&
            q.dim(3) > 0,
        "refine: q must be f32 or f64, k of this type or of 16 bits with f32, with heads of size 1 "
        "or more, got ",
        q.dtype(), " ", q.shape(), " and ", k.dtype(), " ", k.shape());
  const Device device = csr.columns.device();
  FlatCsr fine{{}, {}, {}, csr.batch, csr.heads, csr.length, csr.keys};
  fine.row_pointers = Tensor::empty(csr.row_pointers.shape(), Dtype::i64, device);
  fine.head_offsets = Tensor::empty(csr.head_offsets.shape(), Dtype::i32, device);
  BRINE_CALL(q, count_refined, fine, csr, keys);
  fine.columns = Tensor::empty({refined_entries(fine, csr, keys, visible)}, Dtype::i32, device);
  BRINE_CALL(q, refine, fine, q.detach().contiguous(), k.detach().contiguous(), csr, keys);
  count_macs(double(csr.entries()) * double(q.dim(3)));
  return fine;
}

}  // namespace brine
