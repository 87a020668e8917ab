// Attention to the columns of keys with the largest true attention mass, under the budget of SEA's
// mask (docs/method.md section 2): the best mask that an estimate of K columns could give. The mass
// is exact, so the time is quadratic in T; the memory is O(T K).
#include <optional>

#include "nn/attention/chosen_keys.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct BestColumnsConfig {
  int64_t k = 64, columns = 64;
  SelectMode mode = SelectMode::causal_per_batch;

  void describe(data::Schema& s) {
    s.field("k", k, "Kept keys per query and head", {.min = 1});
    s.field("columns", columns, "Columns K into which the visible keys are divided", {.min = 1});
    s.choice("mode", mode, kSelectModes, "Rows and heads that share a budget of columns");
  }
};

class BestColumns : public Attention {
 public:
  BestColumns(Init&, const AttentionShape&, const BestColumnsConfig& config) : config_(config) {}

  AttentionTraits traits() const override { return {.sparse = true, .groups = true}; }

  Tensor forward(const AttentionInput& in) override {
    std::optional<CostScope> part(std::in_place, "mask");
    const FlatCsr mask = choose(in);
    part.reset();
    return attend_on(in, mask);
  }

 private:
  FlatCsr choose(const AttentionInput& in) const {
    NoGrad off;
    const int64_t k = in.options.kept(config_.k);
    const Tensor mass = column_mass(in);
    Selection chosen = select_columns(mass, in.visible, {.k = k, .mode = config_.mode});
    const Tensor forced = in.tap ? in.tap->forced("selected") : Tensor();
    if (forced.defined()) chosen = {.selected = forced, .n_sel = {}};
    if (in.tap) {
      in.tap->put("estimate", mass);
      in.tap->put("selected", chosen.selected);
    }
    return build_csr(chosen.selected, in.visible, k, 0, chosen.max_entries);
  }

  // The attention of every column, [B, H, T, K]. With groups of heads one head after another, so
  // that keys are not repeated.
  Tensor column_mass(const AttentionInput& in) const {
    const Tensor q = in.q.detach(), k = in.k.detach();
    const int64_t H = q.dim(1), group = H / k.dim(1);
    auto mass_of = [&](const Tensor& queries, const Tensor& keys) {
      const TeacherAttention teacher{.map = {}, .q = queries.contiguous(), .k = keys.contiguous()};
      return summarize_teacher(teacher, config_.columns, in.visible).tau;
    };
    if (group == 1) return mass_of(q, k);
    Tensor mass = Tensor::empty({q.dim(0), H, q.dim(2), config_.columns}, q.dtype(), q.device());
    for (int64_t h = 0; h < H; ++h) {
      copy_into(mass.slice(1, h, 1), mass_of(q.slice(1, h, 1), k.slice(1, h / group, 1)));
    }
    return mass;
  }

  BestColumnsConfig config_;
};
const RegisterAttention<BestColumns, BestColumnsConfig> registration("best-columns");

}  // namespace
}  // namespace brine::nn
