// The ranks of a run as a grid: some divide the data, some the layers of a model whose layers learn
// by themselves, or both.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "distill/losses/losses.h"
#include "nn/models/model.h"
#include "nn/optim/parameter_store.h"
#include "tensor/comm/communicator.h"

namespace brine::distill {

// Rank d L + l of D L ranks has the slots of data group d and the layers of layer group l.
class RankGrid {
 public:
  // Throws when the ranks are not a multiple of `layer_groups`. `all` must outlive the grid.
  RankGrid(Communicator& all, int64_t layer_groups);

  Communicator& all() { return all_; }
  // The ranks with this one's layers, in the order of their slots. With one layer group: all.
  Communicator& peers() { return peers_ ? *peers_ : all_; }
  // The ranks with this one's slots, in the order of their layers.
  Communicator& row() { return row_ ? *row_ : alone_; }
  int groups() const { return groups_; }
  int group() const { return all_.rank() % groups_; }

 private:
  Communicator& all_;
  SelfCommunicator alone_;
  int groups_;
  std::unique_ptr<Communicator> peers_, row_;
};

// The layers of one group when a rank has at most `each` of `layers`, contiguous and ascending.
std::vector<int64_t> layers_of_group(int64_t layers, int64_t each, int64_t group);
// How many groups there are; 0 layers for each rank: one.
int64_t layer_groups_of(int64_t layers, int64_t each);

// The terms of all slots of a step, in order, from the terms of this rank's slots, which belong to
// this rank's layers (PendingTerm::layer). Sums over layers are added in the order of the layers.
std::vector<SlotTerms> gather_layer_terms(RankGrid& grid, const std::string& what, int64_t slots,
                                          const std::vector<PendingTerms>& own);
// The numbers of all layer groups, in the order of the groups.
std::vector<double> gather_parts(RankGrid& grid, const std::string& what,
                                 const std::vector<double>& own);

// What each layer group has trained, on the first rank.
class LayerOwners {
 public:
  // `model` has the parameters of all groups, `store` those of this rank's. Every rank makes one,
  // and calls each function at the same time.
  LayerOwners(RankGrid& grid, nn::Model& model, const nn::ParameterStore& store);

  // Gives the first rank's model the values of all groups.
  void collect_values(const std::string& what);
  // The moments of all groups by name, in the order of a store of all layers, on the first rank;
  // `first`, `second` [n] are those of this rank's store, needed of the first ranks of the groups.
  std::vector<NamedTensor> collect_moments(const std::string& what, const Tensor& first,
                                           const Tensor& second);

 private:
  struct Entry {
    nn::Parameter* parameter;
    std::string path;
    int64_t offset, size;
  };
  struct Group {
    int64_t size = 0;  // of its flat buffers
    std::vector<Entry> entries = {};
  };
  // The flat buffer of each group, on the first rank; empty elsewhere.
  std::vector<Tensor> collect(const std::string& what, const Tensor& own);

  RankGrid& grid_;
  const nn::ParameterStore& store_;
  std::vector<Group> groups_;  // on the first rank
};

}  // namespace brine::distill
