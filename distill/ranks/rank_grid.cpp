// Groups of ranks, and what layer groups tell each other: terms, norms, and for checkpoints values.
#include "distill/ranks/rank_grid.h"

#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <unordered_map>

#include "distill/ranks/exchange.h"
#include "tensor/comm/bytes.h"
#include "tensor/comm/slot_tree.h"

namespace brine::distill {
namespace {

// Some ranks of a communicator, with ranks of their own.
class RankGroup : public Communicator {
 public:
  RankGroup(Communicator& all, std::vector<int> members)
      : Communicator(place_of(all.rank(), members), int(members.size())),
        all_(all),
        members_(std::move(members)) {}
  std::string name() const override { return all_.name(); }
  bool moves(Device where) const override { return all_.moves(where); }
  [[noreturn]] void abort(int status) override {
    all_.abort(status);
    ::_exit(status);
  }

 protected:
  void move(const Wait& wait, const std::vector<Outgoing>& out,
            const std::vector<Incoming>& in) override {
    std::vector<Outgoing> sent = out;
    std::vector<Incoming> received = in;
    for (Outgoing& o : sent) o.to = members_[size_t(o.to)];
    for (Incoming& i : received) i.from = members_[size_t(i.from)];
    // The limit is that of all; wait.seconds has this group's own.
    all_.exchange(wait.what, sent, received, wait.seconds / limit(), wait.where);
  }

 private:
  static int place_of(int rank, const std::vector<int>& members) {
    return int(std::find(members.begin(), members.end(), rank) - members.begin());
  }
  Communicator& all_;
  std::vector<int> members_;
};

constexpr char kBetween = '/';

// The name of a term of one layer; names sort in the order of the layers.
std::string layer_name(int64_t layer, const std::string& name) {
  std::ostringstream out;
  out << std::setw(8) << std::setfill('0') << layer << kBetween << name;
  return out.str();
}

// Sums over the layers: the values of `by_layer` have the names of layer_name().
SlotTerms sum_of_layers(const SlotTerms& by_layer) {
  SlotTerms out{.values = {}, .blame = by_layer.blame};
  for (const auto& [name, term] : by_layer.values) {
    SlotTerms::Value& here = out.values[name.substr(name.find(kBetween) + 1)];
    here.value += term.value;
    if (!term.in_sum) here.in_sum = false;
  }
  return out;
}

}  // namespace

RankGrid::RankGrid(Communicator& all, int64_t layer_groups)
    : all_(all), groups_(int(layer_groups)) {
  if (groups_ == 1) return;
  if (all.size() % groups_ != 0) {
    throw SharedError(join("ranks: ", all.size(), " ranks for ", groups_,
                           " groups of layers; start a multiple of ", groups_,
                           ", or give another --layers-per-rank"));
  }
  std::vector<int> peers, row;
  for (int r = 0; r < all.size(); ++r) {
    if (r % groups_ == group()) peers.push_back(r);
    if (r / groups_ == all.rank() / groups_) row.push_back(r);
  }
  peers_ = std::make_unique<RankGroup>(all, std::move(peers));
  row_ = std::make_unique<RankGroup>(all, std::move(row));
}

std::vector<int64_t> layers_of_group(int64_t layers, int64_t each, int64_t group) {
  std::vector<int64_t> out;
  for (int64_t i = group * each; i < std::min(layers, (group + 1) * each); ++i) out.push_back(i);
  return out;
}

int64_t layer_groups_of(int64_t layers, int64_t each) {
  return each > 0 ? (layers + each - 1) / each : 1;
}

std::vector<SlotTerms> gather_layer_terms(RankGrid& grid, const std::string& what, int64_t slots,
                                          const std::vector<PendingTerms>& own) {
  std::vector<PendingTerms> named = own;
  for (PendingTerms& slot : named) {
    for (PendingTerm& term : slot) term.name = layer_name(term.layer, term.name);
  }
  std::vector<SlotTerms> mine;
  read_slots(named, {}, mine);
  const std::vector<SlotTerms> all = gather_terms(grid.all(), what, mine);
  std::vector<SlotTerms> out;
  auto from = all.begin();
  const int rows = grid.peers().size();
  for (int d = 0; d < rows; ++d) {
    const int64_t count = slots_of(slots, d, rows).size();
    std::vector<SlotTerms> merged(static_cast<size_t>(count));
    for (int l = 0; l < grid.groups(); ++l) {
      for (SlotTerms& slot : merged) {
        check(from != all.end(), what, ": a rank has too few slots");
        if (slot.blame.empty()) slot.blame = from->blame;
        slot.values.insert(from->values.begin(), from->values.end());
        ++from;
      }
    }
    for (const SlotTerms& slot : merged) out.push_back(sum_of_layers(slot));
  }
  return out;
}

std::vector<double> gather_parts(RankGrid& grid, const std::string& what,
                                 const std::vector<double>& own) {
  if (grid.groups() == 1) return own;
  ByteWriter writer;
  writer.list(own);
  std::vector<double> all;
  for (const std::string& bytes : grid.row().gather(what, writer.bytes())) {
    const std::vector<double> theirs = ByteReader(bytes).list<double>();
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

LayerOwners::LayerOwners(RankGrid& grid, nn::Model& model, const nn::ParameterStore& store)
    : grid_(grid), store_(store) {
  ByteWriter mine;
  mine.number(store.size());
  for (const auto& e : store.entries()) {
    mine.text(e.path);
    mine.number(e.offset);
    mine.number(e.size);
  }
  const std::vector<std::string> all = grid.all().gather("layers of the ranks", mine.bytes());
  if (!grid.all().is_first()) return;
  std::unordered_map<std::string, nn::Parameter*> parameters;
  for (const auto& p : model.named_parameters()) parameters[p.path] = p.parameter;
  for (int l = 0; l < grid.groups(); ++l) {
    ByteReader in(all[size_t(l)]);
    Group group{.size = in.number<int64_t>()};
    while (!in.done()) {
      const std::string path = in.text();
      const auto offset = in.number<int64_t>(), size = in.number<int64_t>();
      group.entries.push_back({parameters.at(path), path, offset, size});
    }
    groups_.push_back(std::move(group));
  }
}

std::vector<Tensor> LayerOwners::collect(const std::string& what, const Tensor& own) {
  const int rank = grid_.all().rank();
  std::vector<Tensor> out;
  std::vector<Outgoing> sent;
  std::vector<Incoming> received;
  Tensor mine;
  if (rank < grid_.groups()) mine = own.to(Device{});
  if (rank > 0 && rank < grid_.groups())
    sent.push_back({0, mine.raw(), size_t(mine.numel()) * item_size(mine.dtype())});
  for (size_t l = 0; rank == 0 && l < groups_.size(); ++l) {
    out.push_back(l == 0 ? mine : Tensor::empty({groups_[l].size}, mine.dtype()));
    const Tensor& t = out.back();
    if (l > 0) received.push_back({int(l), t.raw(), size_t(t.numel()) * item_size(t.dtype())});
  }
  grid_.all().exchange(what, sent, received);
  return out;
}

void LayerOwners::collect_values(const std::string& what) {
  const std::vector<Tensor> values = collect(what, store_.values());
  for (size_t l = 1; l < values.size(); ++l) {
    for (const Entry& e : groups_[l].entries) {
      const Tensor target = e.parameter->value.detach();
      assign(target, values[l].slice(0, e.offset, e.size).view(target.shape()));
    }
  }
}

std::vector<NamedTensor> LayerOwners::collect_moments(const std::string& what, const Tensor& first,
                                                      const Tensor& second) {
  const std::vector<Tensor> m = collect(what, first), v = collect(what, second);
  std::vector<NamedTensor> out;
  for (size_t l = 0; l < m.size(); ++l) {
    for (const Entry& e : groups_[l].entries) {
      const Shape shape = e.parameter->value.shape();
      out.push_back({"m." + e.path, m[l].slice(0, e.offset, e.size).view(shape)});
      out.push_back({"v." + e.path, v[l].slice(0, e.offset, e.size).view(shape)});
    }
  }
  return out;
}

}  // namespace brine::distill
