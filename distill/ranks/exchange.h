// What the ranks of a run send each other besides gradients: counts, loss terms, and whether they
// are the same run.
#pragma once

#include <string>
#include <vector>

#include "distill/losses/losses.h"
#include "nn/io/model_io.h"
#include "tensor/comm/communicator.h"

namespace brine::distill {

// The items of all ranks, in the order of the ranks. With one rank no message is sent.
std::vector<int64_t> gather_counts(Communicator& ranks, const std::string& what,
                                   const std::vector<int64_t>& counts);
std::vector<SlotTerms> gather_terms(Communicator& ranks, const std::string& what,
                                    const std::vector<SlotTerms>& slots);

// Throws SharedError on every rank when a rank has another text than most of them, "rank 2 has
// another WHAT than the others".
void compare_texts(Communicator& ranks, const std::string& what, const std::string& text);
// The same for JSON objects; the message lists the keys that differ.
void compare_settings(Communicator& ranks, const std::string& what, const std::string& settings);

// Throws, likewise, unless all ranks have loaded the same weights.
void compare_models(Communicator& ranks, const nn::LoadedModel& model);

}  // namespace brine::distill
