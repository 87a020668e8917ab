// Embedding forward and backward.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("embedding picks rows, its backward adds them up") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (int64_t C : {1, 3, 33, 64, 100, 257}) {
      for (int64_t R : {1, 2, 63, 1000}) {
        const int64_t V = 11;
        Tensor table = normal({V, C}, 1, dtype), id = ids({R}, 2, V),
               y = Tensor::empty({R, C}, dtype);
        BRINE_CALL(y, embedding, y, table, id);
        Tensor dy = normal({R, C}, 3, dtype), dtable = normal({V, C}, 4, dtype);
        const auto rows = table.to_vector(), out = y.to_vector(), g = dy.to_vector();
        std::vector<double> expected = dtable.to_vector();
        bool picked = true;
        for (size_t i = 0; i < out.size(); ++i) {
          const size_t row = size_t(id.data<int32_t>()[i / size_t(C)]), c = i % size_t(C);
          picked &= out[i] == rows[row * size_t(C) + c];
          expected[row * size_t(C) + c] += g[i];
        }
        CHECK(picked);
        Tensor start = dtable.clone();
        BRINE_CALL(y, embedding_backward, dtable, dy, id);
        CHECK(close(dtable.to_vector(), expected, dtype == Dtype::f32 ? 3e-5 : 1e-12, 0, "dtable"));
        for (int n : {1, 3}) {
          Threads set(n);
          Tensor again = start.clone();
          BRINE_CALL(y, embedding_backward, again, dy, id);
          CHECK(same_bits(again, dtable));
        }
      }
    }
  }
}
