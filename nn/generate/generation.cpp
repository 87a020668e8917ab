// The loop of generation.
#include "nn/generate/generation.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "autograd/ops.h"

namespace brine::nn {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Tensor ids_of(const std::vector<int32_t>& ids) { return Tensor::from(ids, {int64_t(ids.size())}); }

// Of a state for prompts of up to `longest` tokens and the tokens to come, of which the last one is
// not read any more.
StateRequest state_request(const Model& model, const GenerationRequest& r, int64_t sequences,
                           int64_t longest) {
  const int64_t left = std::max<int64_t>(model.shape().max_positions - longest, 0);
  return {.batch = sequences,
          .capacity = longest + std::min(left, r.tokens - 1),
          .cache = r.cache,
          .coded = r.coded,
          .options = r.options};
}

}  // namespace

Generation::Generation(Model& model, GenerationRequest request, Spell spell)
    : model_(model), request_(std::move(request)), spell_(std::move(spell)) {
  check(request_.tokens >= 1, "generate: ", request_.tokens, " tokens to add, must be at least 1");
  for (const std::string& stop : request_.stops)
    check(!stop.empty(), "generate: a stop text is empty");
}

// A state for all current sequences and the tokens to come.
void Generation::make_room() {
  int64_t longest = 0;
  for (const Sequence& s : sequences_) longest = std::max(longest, int64_t(s.ids.size()));
  state_ = std::make_unique<ModelState>(
      model_, state_request(model_, request_, int64_t(sequences_.size()), longest));
  in_slot_.resize(sequences_.size());
  std::iota(in_slot_.begin(), in_slot_.end(), size_t(0));
  hidden_.resize(sequences_.size());
  finished_.resize(sequences_.size());
}

void Generation::start(const std::vector<std::vector<int32_t>>& prompts) {
  const Clock::time_point begin = Clock::now();
  const int64_t positions = model_.shape().max_positions;
  check(!prompts.empty(), "generate: no prompt");
  for (const std::vector<int32_t>& ids : prompts) {
    check(!ids.empty(), "generate: the prompt is empty");
    check(int64_t(ids.size()) < positions, "generate: the prompt has ", ids.size(),
          " tokens, the model ", positions, " positions");
    Sequence s;
    s.ids = ids;
    s.prompt_tokens = int64_t(ids.size());
    s.text = TextStream(request_.stops);
    sequences_.push_back(std::move(s));
  }
  make_room();
  for (size_t i = 0; i < prompts.size(); ++i) {
    hidden_[i] = prefill(model_, *state_, int64_t(i), ids_of(prompts[i]), request_.part);
  }
  prompt_seconds_ = seconds_since(begin);
}

bool Generation::extend(const Tensor& logits, int64_t row) {
  const size_t i = in_slot_[size_t(row)];
  Sequence& s = sequences_[i];
  const int64_t V = logits.dim(-1);
  const int64_t known = request_.vocabulary ? std::min(V, request_.vocabulary) : V;
  const RandomSlice random{
      .seed = request_.seed, .stream = 3 + (uint64_t(i) << 32), .first = uint64_t(s.drawn++)};
  const int32_t id =
      sample({logits.data<float>() + row * V, size_t(known)}, request_.how, random.uniform(0));
  s.ids.push_back(id);
  const auto& stops = request_.stop_tokens;
  const bool stop_token = std::find(stops.begin(), stops.end(), id) != stops.end();
  const bool stop_text = !stop_token && s.text.push(spell_(id));
  const bool enough = !stop_token && request_.stop_when && request_.stop_when(i, s.text.text());
  if (stop_text || enough) {
    s.finish = Finish::stop_text;
  } else if (stop_token) {
    s.finish = Finish::stop_token;
  } else if (int64_t(s.ids.size()) - s.prompt_tokens >= request_.tokens) {
    s.finish = Finish::tokens;
  } else if (int64_t(s.ids.size()) >= model_.shape().max_positions) {
    s.finish = Finish::positions;
  }
  return !s.finish.has_value();
}

void Generation::put_aside(int64_t slot) {
  if (!request_.keep_states) return;
  std::vector<NamedTensor>& to = finished_[in_slot_[size_t(slot)]];
  for (const NamedTensor& t : state_->saved(slot)) {
    to.push_back({t.name, t.tensor.contiguous().clone()});
  }
}

void Generation::run(const OnToken& on_token) {
  NoGrad off;
  check(state_ != nullptr, "generate: nothing to continue");
  const Clock::time_point begin = Clock::now();
  Tensor hidden;  // [slots, E]
  if (hidden_.size() == 1) {
    hidden = hidden_[0];
  } else {
    hidden = Tensor::empty({int64_t(hidden_.size()), hidden_[0].dim(1)}, hidden_[0].dtype(),
                           hidden_[0].device());
    for (size_t i = 0; i < hidden_.size(); ++i) {
      copy_into(hidden.slice(0, int64_t(i), 1), hidden_[i]);
    }
  }
  while (true) {
    const Tensor logits = model_.logits(hidden).detach().to(Device{});
    std::vector<int64_t> going;
    for (int64_t slot = 0; slot < state_->batch(); ++slot) {
      const bool goes_on = extend(logits, slot);
      if (on_token) on_token(in_slot_[size_t(slot)], sequences_[in_slot_[size_t(slot)]]);
      if (goes_on) {
        going.push_back(slot);
      } else {
        put_aside(slot);
      }
    }
    if (going.empty()) break;
    if (int64_t(going.size()) < state_->batch()) {
      state_->keep(going);
      std::vector<size_t> left;
      left.reserve(going.size());
      for (int64_t slot : going) left.push_back(in_slot_[size_t(slot)]);
      in_slot_ = left;
    }
    std::vector<int32_t> next;
    next.reserve(in_slot_.size());
    for (size_t i : in_slot_) next.push_back(sequences_[i].ids.back());
    hidden = step(model_, *state_, ids_of(next));
    ++steps_;
  }
  run_seconds_ = seconds_since(begin);
}

GenerationMemory memory_of(const Model& model, const GenerationRequest& request, int64_t sequences,
                           int64_t longest) {
  StateRequest state = state_request(model, request, sequences, longest);
  state.device = Device::meta;
  const int64_t part = request.part ? request.part : default_part(model.shape());
  const bool whole = model.attention_traits().part_step == 0;
  return {.tokens = state.capacity,
          .state = ModelState(model, state).bytes(),
          .part = part_bytes(model.shape()) * (whole ? longest : std::min(part, longest))};
}

}  // namespace brine::nn
