// From the golden estimate to the golden output and attention losses: integers equal, floats close.
#include "sea/base/mask.h"
#include "tests/golden_file.h"

namespace brine::test {
namespace {

bool equal_elements(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.to_vector() == b.to_vector();
}

// [B, G, T, d] for each head of queries.
Tensor per_head(const GoldenFile& file, const Tensor& x) {
  return repeat_heads(x, file.number("H") / x.dim(1));
}

// What columns are selected by: the estimate, and the scores of mean keys where the file has them.
Tensor order_of(const GoldenFile& file, Dtype type) {
  const Tensor estimate = file("intermediate/estimate", type);
  const double share = file.real("pooled", 0);
  if (share == 0) return estimate;
  const Tensor scores = pooled_scores(file("inputs/q", type), file("inputs/k", type),
                                      file.visible(), estimate.dim(3));
  return add(scale(estimate, 1 - share), scale(column_softmax(scores, file.visible()), share));
}

sea::Mask mask_of(const GoldenFile& file, Dtype type) {
  const SelectConfig config{.k = file.number("k"), .mode = parse_select_mode(file.text("mode"))};
  return sea::make_mask(order_of(file, type), file.visible(), config, 0, {},
                        {.q = file("inputs/q", type),
                         .k = file("inputs/k", type),
                         .oversample = file.number("oversample", 1)});
}

}  // namespace

TEST_CASE("golden: estimate to mask, the integers are equal in both types") {
  for (const std::string& name : GoldenFile::names()) {
    INFO(name);
    GoldenFile file(name);
    for (Dtype type : {Dtype::f64, Dtype::f32}) {
      sea::Mask mask = mask_of(file, type);
      CHECK(equal_elements(mask.selection.n_sel, file("intermediate/n_sel")));
      CHECK(equal_elements(mask.selection.selected, file("intermediate/selected")));
      CHECK(equal_elements(mask.csr.row_pointers, file("intermediate/row_pointers")));
      CHECK(equal_elements(mask.csr.head_offsets, file("intermediate/head_offsets")));
      CHECK(equal_elements(mask.csr.columns, file("intermediate/columns")));
    }
  }
}

TEST_CASE("golden: mask to output, by the sparse and by the dense path") {
  for (const std::string& name : GoldenFile::names()) {
    INFO(name);
    GoldenFile file(name);
    Visibility visible = file.visible();
    for (Dtype type : {Dtype::f64, Dtype::f32}) {
      Tensor q = file("inputs/q", type), k = file("inputs/k", type), v = file("inputs/v", type);
      Tensor estimate = file("intermediate/estimate", type);
      FlatCsr csr = mask_of(file, type).csr;
      Tensor p;
      Tensor c = sea::masked_attention(q, k, v, csr, false, &p);
      CHECK(golden_close(p, file("intermediate/probabilities"), "probabilities"));
      CHECK(close_to_scale(sea::masked_attention(q, k, v, csr, true), c,
                           type == Dtype::f64 ? 1e-13 : 2e-6, "dense path"));
      Tensor average = sea::average_values(estimate, v, visible);
      CHECK(golden_close(per_head(file, average), file("intermediate/c_avg"), "c_avg"));
      // Gates before the sigmoid, from the stored ones.
      Tensor prob = file("intermediate/s_prob"), mix = file("intermediate/s_mix");
      Tensor gates = Tensor::zeros({q.dim(0), q.dim(1), q.dim(2), 2}, Dtype::f64);
      for (int64_t i = 0; i < prob.numel(); ++i) {
        auto logit = [](double s) { return s > 0 && s < 1 ? std::log(s / (1 - s)) : 0; };
        gates.data<double>()[2 * i] = logit(prob.data<double>()[i]);
        gates.data<double>()[2 * i + 1] = logit(mix.data<double>()[i]);
      }
      Tensor out = mix_outputs(c, average, gates.to(type), visible);
      CHECK(golden_close(out, file("output/c_sea"), "c_sea"));
    }
  }
}

TEST_CASE("golden: the teacher's summary and the attention losses") {
  for (const std::string& name : GoldenFile::names()) {
    INFO(name);
    GoldenFile file(name);
    Visibility visible = file.visible();
    for (Dtype type : {Dtype::f64, Dtype::f32}) {
      TeacherAttention by_qk{
          {}, file("inputs/teacher_q", type), per_head(file, file("inputs/teacher_k", type))};
      TeacherAttention by_map{file("intermediate/teacher_attention", type), {}, {}};
      for (const TeacherAttention& teacher : {by_qk, by_map}) {
        TeacherSummary s = summarize_teacher(teacher, file.number("K"), visible);
        CHECK(golden_close(s.tau, file("intermediate/teacher_tau"), "tau"));
        CHECK(golden_close(s.t_log_t, file("intermediate/teacher_t_log_t"), "t log t"));
        CHECK(golden_close(s.t_square, file("intermediate/teacher_t_square"), "t^2"));
        Tensor approx = approx_loss(file("intermediate/S", type), s, visible);
        Tensor prob = prob_loss(file("inputs/q", type), per_head(file, file("inputs/k", type)),
                                teacher, visible);
        auto stored = [&](const char* kl, const char* mse) {
          return Tensor::from(std::vector<double>{file.value(kl), file.value(mse)}, {2});
        };
        CHECK(golden_close(approx, stored("loss/approx_kl", "loss/approx_mse"), "approx"));
        CHECK(golden_close(prob, stored("loss/prob_kl", "loss/prob_mse"), "prob"));
      }
    }
  }
}

}  // namespace brine::test
