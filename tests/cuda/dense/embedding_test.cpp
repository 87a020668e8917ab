// Embeddings and their gradient on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: embedding of tables of any type") {
  for (int64_t C : {0, 1, 3, 8, 300}) {
    for (int64_t rows : {0, 1, 70}) {
      for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16}) {
        compare(join("embedding ", rows, " x ", C, " ", dtype), 0, [&](const On& on) {
          Tensor table = on(normal({9, C}, 1, dtype)), id = ids({rows}, 2, 9);
          Tensor y = Tensor::empty({rows, C}, dtype, table.device());
          BRINE_CALL(table, embedding, y, table, rows == 1 ? id : on(id));
          return std::vector{y};
        });
      }
    }
  }
}

TEST_CASE("cuda: embedding_backward where most rows have one id, ids on the cpu") {
  for (int32_t common : {0, 7, 299}) {
    compare_both(join("embedding_backward of many ", common), [&](const On& on, Dtype dtype) {
      Tensor id = ids({2000}, 3, 300);
      for (int i = 0; i < 2000; ++i) {
        if (i % 5) id.data<int32_t>()[i] = common;
      }
      Tensor dtable = on(normal({300, 3}, 1, dtype)), dy = on(normal({2000, 3}, 2, dtype));
      BRINE_CALL(dtable, embedding_backward, dtable, dy, id);
      return std::vector{dtable};
    });
  }
}

TEST_CASE("cuda: embedding_backward has the same bits at every run") {
  if (!has_device()) return;
  std::vector<double> first;
  for (int run = 0; run < 4; ++run) {
    Tensor dtable = normal({20, 33}, 1).to(kCuda), dy = normal({3000, 33}, 2).to(kCuda);
    BRINE_CALL(dtable, embedding_backward, dtable, dy, ids({3000}, 3, 20).to(kCuda));
    const std::vector<double> bits = dtable.to(kCpu).to_vector();
    if (run == 0) first = bits;
    CHECK(bits == first);
  }
}
