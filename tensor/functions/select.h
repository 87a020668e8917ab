// Sizes of a selection that follow from those of the estimate alone.
#pragma once

#include "tensor/mask/csr.h"

namespace brine {

// The most keys that a selection from [B, H, T, K] gives, from the sizes alone: the memory of a
// mask on a device, whose number of entries is not read back. Rows of causal sequences are not
// visited one by one: the sum has a term for each of the at most about k + 2 sqrt(2 H k K) sizes
// that their groups take.
int64_t max_selected_entries(const Visibility& visible, const SelectConfig& config, int64_t B,
                             int64_t H, int64_t T, int64_t K);

}  // namespace brine
