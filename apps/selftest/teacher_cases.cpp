// The losses against a teacher's attention, how much of it a mask covers, and what refines a mask.
#include "apps/selftest/passed.h"
#include "autograd/compute_type.h"
#include "autograd/ops_teacher.h"

namespace brine::selftest {
namespace {

constexpr double kLosses = 1e-5;

// Masks are compared on fewer rows than losses: three sequences of 60, one of them empty.
constexpr int64_t kRows = 60;
Visibility short_rows(bool causal) {
  return {.causal = causal, .lengths = numbers({kRows, 0, 33})};
}

// A mask by whole numbers, all different in a row.
FlatCsr mask_of(const Place& p, int64_t H, bool causal, int64_t k) {
  const Tensor estimate =
      made({3, H, kRows, 32}, p, [](size_t i) { return double((i % 32 * 7 + i / 32) % 32); });
  return mask_by(estimate, short_rows(causal), {.k = k, .mode = SelectMode::per_query});
}

TeacherAttention teacher_of(const Place& p, int64_t rows, bool map, bool half = false) {
  if (map) return {.map = p.uniform({3, 2, rows, rows}, 7, 0.001, 0.013), .q = {}, .k = {}};
  const Dtype type = half && p.type == Dtype::f32 ? Dtype::bf16 : p.type;
  return {.map = {},
          .q = p.normal({3, 2, rows, 24}, 7).to(type),
          .k = p.normal({3, 2, rows, 24}, 8).to(type)};
}

void add_losses(std::vector<Case>& all) {
  for (bool causal : {true, false}) {
    const std::string end = causal ? ", causal" : "";
    for (bool map : {true, false}) {
      const std::string from = map ? " from a map" : " from q and k";
      all.push_back({.name = "prob_loss" + from + end, .f32 = kLosses, .run = [=](const Place& p) {
                       return passed(
                           p, {p.normal({3, 2, 150, 40}, 1), p.normal({3, 2, 150, 40}, 2)},
                           [&](const Inputs& x) {
                             return prob_loss(x[0], x[1], teacher_of(p, 150, map), padded(causal));
                           });
                     }});
      all.push_back({.name = "summarize_teacher and approx_loss" + from + end,
                     .f32 = kLosses,
                     .run = [=](const Place& p) {
                       const TeacherSummary made =
                           summarize_teacher(teacher_of(p, 150, map), 32, padded(causal));
                       Inputs out = passed(p, {p.normal({3, 2, 150, 32}, 1)}, [&](const Inputs& x) {
                         return approx_loss(x[0], made, padded(causal));
                       });
                       out.insert(out.end(), {made.tau, made.t_log_t, made.t_square});
                       return out;
                     }});
    }
  }
  // Scores of rounded q and k are exact in TF32; derived numbers are rounded to 11 bits.
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    all.push_back(
        {.name = join("prob_loss in ", type), .f64 = -1, .f32 = 2e-3, .run = [=](const Place& p) {
           const ComputeType rounded(type);
           return passed(p, {p.normal({3, 2, 150, 40}, 1), p.normal({3, 2, 150, 40}, 2)},
                         [&](const Inputs& x) {
                           return prob_loss(x[0], x[1], teacher_of(p, 150, false, true),
                                            padded(true));
                         });
         }});
  }
}

void add_masks(std::vector<Case>& all) {
  for (bool causal : {true, false}) {
    for (bool map : {true, false}) {
      if (map == causal) continue;  // the emulator takes a second for each
      all.push_back({.name = join("attention_recall", map ? " of a map" : " of q and k",
                                  causal ? ", causal" : ""),
                     .f32 = kLosses,
                     .run = [=](const Place& p) {
                       const FlatCsr csr = mask_of(p, 2, causal, 8);
                       const RecallSums sums =
                           recall_sums(teacher_of(p, kRows, map), csr, 32, short_rows(causal),
                                       {.k = 8, .mode = SelectMode::per_query}, 3);
                       return Inputs{sums.sums, sums.rows};
                     }});
    }
    for (Dtype type : {Dtype::f32, Dtype::bf16}) {
      all.push_back({.name = join("refinement of a mask, keys in ", type, causal ? ", causal" : ""),
                     .f64 = type == Dtype::f32 ? 0.0 : -1.0,
                     .f32 = 0,
                     .run = [=](const Place& p) {
                       const FlatCsr csr = mask_of(p, 4, causal, 32);
                       // Small whole numbers: exact products in every type, whatever the order of
                       // sums; of equal ones the later key.
                       auto whole = [&](const Shape& shape, uint64_t seed) {
                         return p.ids(shape, seed, 9).to(p.type).to(p.device);
                       };
                       const Tensor k = whole({3, 2, kRows, 64}, 2);
                       const FlatCsr fine = refine(whole({3, 4, kRows, 64}, 1),
                                                   p.type == Dtype::f32 ? k.to(type) : k, csr, 8,
                                                   short_rows(causal));
                       return Inputs{csr_to_mask(fine)};
                     }});
    }
  }
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    all.push_back({.name = join("sparse_attention in ", type),
                   .f64 = -1,
                   .f32 = type == Dtype::bf16 ? 8e-3 : 1e-3,  // a rounding, or two
                   .run = [=](const Place& p) {
                     const ComputeType rounded(type);
                     const FlatCsr csr = mask_of(p, 4, true, 16);
                     return passed(
                         p,
                         {p.normal({3, 4, kRows, 64}, 1), p.normal({3, 2, kRows, 64}, 2),
                          p.normal({3, 2, kRows, 64}, 3)},
                         [&](const Inputs& x) { return sparse_attention(x[0], x[1], x[2], csr); });
                   }});
  }
}

}  // namespace

void add_teacher(std::vector<Case>& all) {
  add_losses(all);
  add_masks(all);
}

}  // namespace brine::selftest
