// Images from heads and back, softmax over columns on the device, as on the CPU.
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: softmax over the columns that own a key") {
  struct Size {
    Shape shape;
    std::vector<int64_t> lengths;
  };
  for (const Size& s :
       {Size{{1, 1, 1, 1}, {}}, Size{{2, 3, 9, 5}, {9, 0}}, Size{{2, 1, 70, 64}, {70, 3}},
        Size{{1, 2, 20, 100}, {}}, Size{{1, 1, 0, 4}, {}}}) {
    for (bool causal : {false, true}) {
      compare_both(join("column_softmax ", s.shape, causal), [&](const On& on, Dtype dtype) {
        Tensor x = on(normal(s.shape, 1, dtype, 0, 3)), y = Tensor::like(x);
        BRINE_CALL(y, column_softmax, y, x, Visibility{causal, lengths_of(s.lengths)});
        return std::vector{y};
      });
    }
  }
}

TEST_CASE("cuda: images from heads and back") {
  struct Size {
    int64_t B, H, T, c, W, halo, after;
    std::vector<int64_t> lengths;
  };
  for (const Size& s : {Size{1, 1, 1, 1, 1, 0, 0, {}}, Size{2, 3, 5, 2, 7, 2, 1, {5, 3}},
                        Size{2, 12, 3, 3, 33, 1, 0, {0, 2}}, Size{1, 40, 2, 1, 70, 0, 2, {}},
                        Size{3, 1, 90, 4, 9, 1, 1, {90, 0, 7}}, Size{1, 12, 4, 4, 20, 1, 0, {}},
                        Size{1, 5, 40, 1, 60, 0, 0, {}}, Size{1, 2, 0, 2, 3, 1, 1, {}}}) {
    const Shape heads{s.B, s.H, s.T, s.c * s.W},
        pixels{s.B, s.halo + s.T + s.after, s.W, s.H * s.c};
    compare_both(join("image_from_heads ", heads),
                 [&](const On& on, Dtype dtype) {
                   Tensor x = on(normal(heads, 1, dtype)), dimage = on(normal(pixels, 2, dtype));
                   Tensor image = Tensor::like(dimage), dx = Tensor::like(x);
                   BRINE_CALL(x, image_from_heads, image, x, s.halo, lengths_of(s.lengths));
                   BRINE_CALL(x, image_from_heads_backward, dx, dimage, s.halo,
                              on(lengths_of(s.lengths)));
                   return std::vector{image, dx};
                 },
                 {.f32 = 0, .f64 = 0});
  }
}

TEST_CASE("cuda: heads from an image and back") {
  for (const Shape& heads : {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 8}, Shape{1, 12, 7, 64},
                             Shape{2, 40, 4, 50}, Shape{1, 9, 0, 3}}) {
    const Shape pixels{heads[0], heads[2], heads[3], heads[1]};
    compare_both(join("heads_from_image ", heads), [&](const On& on, Dtype dtype) {
      Tensor image = on(normal(pixels, 1, dtype)), dy = on(normal(heads, 2, dtype));
      Tensor y = Tensor::like(dy), dimage = Tensor::like(image);
      BRINE_CALL(y, heads_from_image, y, image);
      BRINE_CALL(y, heads_from_image_backward, dimage, dy);
      return std::vector{y, dimage};
    });
  }
}

TEST_CASE("cuda: the identity resampled to the rows of a sequence") {
  for (const Shape& shape : {Shape{3, 37, 8}, Shape{3, 5, 40}, Shape{3, 1, 1}, Shape{3, 0, 4}}) {
    for (bool nearest : {false, true}) {
      for (const Tensor& lengths : {Tensor(), lengths_of({shape[1], 0, (shape[1] + 1) / 2})}) {
        compare_both(join("resampled_identity ", shape, nearest),
                     [&](const On& on, Dtype dtype) {
                       Tensor y = Tensor::empty(shape, dtype, on.device);
                       BRINE_CALL(y, resampled_identity, y, lengths, nearest);
                       return std::vector{y};
                     },
                     {.f32 = 0, .f64 = 0});
      }
    }
  }
}
