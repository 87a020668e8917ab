// What tests/install/gdb looks at: tensors of several layouts in one frame.
#include <brine/tensor/tensor.h>

using namespace brine;

int main() {
  const Tensor none;
  const Tensor x = Tensor::from(std::vector<float>{0, 1.5, 2, 3, 4, 5}, {2, 3});
  const Tensor turned = x.transpose(0, 1).slice(0, 1, 2);
  const Tensor half = x.to(Dtype::bf16), whole = Tensor::full({3, 9}, -7, Dtype::i64);
  const Tensor scalar = Tensor::full({}, 2.5, Dtype::f16), empty = Tensor::empty({4, 0});
  return none.defined();  // gdb stops here
}
