// The loop of generation, the choice of a token, and texts that arrive in pieces.
#include "nn/generate/generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "autograd/ops.h"
#include "data/io/human.h"
#include "tensor/base/error.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/allocator.h"
#include "tensor/device/machine_memory.h"

namespace brine::nn {

namespace {

// Bytes of the character that starts with `first`; 1 for an invalid start.
size_t length_of(unsigned char first) {
  return first >= 0xf0 && first < 0xf8 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;
}

// How many bytes at the end of `text` are a proper prefix of `stop`.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

size_t whole_characters(std::string_view text) {
  // The last byte that is not a continuation byte starts the last character.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t wanted = byte >= 0xf8 ? 1 : length_of(byte);
    return wanted > back ? text.size() - back : text.size();
  }
  return text.size();
}

bool TextStream::push(std::string_view bytes) {
  if (stopped_) return true;
  const size_t before = text_.size();
  text_ += bytes;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t from = before < stop.size() ? 0 : before - stop.size() + 1;
    end = std::min(end, text_.find(stop, from));
  }
  if (end == std::string::npos) return false;
  text_.resize(end);
  return stopped_ = true;
}

std::string TextStream::take(bool ended) {
  size_t end = text_.size();
  if (!ended && !stopped_) {
    end = whole_characters(text_);
    for (const std::string& stop : stops_) end = std::min(end, text_.size() - begun(text_, stop));
  }
  if (end <= shown_) return "";
  std::string out = text_.substr(shown_, end - shown_);
  shown_ = end;
  return out;
}

// Temperature, top-k and top-p without sorting the vocabulary: only the needed tokens are taken
// from a heap.

int32_t sample(std::span<const float> logits, const Sampling& how, double uniform) {
  int32_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    check(!std::isnan(logits[i]), "sample: the logit of token ", i, " is NaN");
    if (logits[i] > logits[size_t(best)]) best = int32_t(i);
  }
  const float max_logit = logits[size_t(best)];
  check(std::isfinite(max_logit), "sample: the largest logit is ", max_logit);
  if (how.temperature == 0) return best;

  auto less_likely = [&](int32_t a, int32_t b) {
    return logits[size_t(a)] < logits[size_t(b)] ||
           (logits[size_t(a)] == logits[size_t(b)] && a > b);
  };
  std::vector<int32_t> left(logits.size());
  std::iota(left.begin(), left.end(), 0);
  if (how.top_k > 0 && size_t(how.top_k) < left.size()) {
    std::nth_element(left.begin(), left.begin() + how.top_k, left.end(),
                     [&](int32_t a, int32_t b) { return less_likely(b, a); });
    left.resize(size_t(how.top_k));
  }
  std::vector<double> share(logits.size());
  double all = 0;
  for (int32_t id : left) {
    all += share[size_t(id)] = std::exp(double(logits[size_t(id)] - max_logit) / how.temperature);
  }
  std::make_heap(left.begin(), left.end(), less_likely);
  // The likeliest first, until they have enough of the mass; only these are sampled from.
  const double enough = how.top_p * all;
  std::vector<int32_t> kept;
  double mass = 0;
  while (!left.empty() && (kept.empty() || mass < enough)) {
    std::pop_heap(left.begin(), left.end(), less_likely);
    kept.push_back(left.back());
    left.pop_back();
    mass += share[size_t(kept.back())];
  }
  double at = uniform * mass;
  for (int32_t id : kept) {
    at -= share[size_t(id)];
    if (at <= 0) return id;
  }
  return kept.back();
}

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
  Tensor hidden = hidden_.size() == 1 ? hidden_[0] : concat(hidden_, 0);  // [slots, E]
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
  const bool whole = part_step(model, state.options) == 0 || part >= longest;
  const ModelShape& shape = model.shape();
  const int64_t number = int64_t(item_size(state.dtype)),
                cached = int64_t(item_size(state.cached()));
  int64_t bytes = part_bytes(shape) * (whole ? longest : part);
  if (!whole) bytes += model.attention_traits().part_numbers * cached * longest * shape.layers;
  if (!whole && (state.coded || cached < number)) {
    // A layer's earlier keys and values become numbers, those of 16 bits by a copy.
    const int64_t row = 2 * shape.attention().groups() * shape.head_size();
    bytes += row * (number + (state.coded ? 0 : cached)) * state.capacity;
  }
  const int64_t states = request.keep_states ? 2 : 1;  // those of ended sequences are copies
  return {
      .tokens = state.capacity, .state = states * ModelState(model, state).bytes(), .part = bytes};
}

GenerationMemory memory_of(const Model& model, const CachedReading& reading,
                           const RuntimeOptions& options, int64_t tokens) {
  GenerationRequest request;
  request.tokens = 0;
  request.options = options;
  request.cache = reading.cache;
  request.coded = reading.coded;
  request.part = reading.part;
  return memory_of(model, request, 1, tokens);
}

double free_memory() {
  const Device device = default_device();
  const AllocatorStats stats = allocator_stats(device);
  const double waiting = double(stats.reserved - stats.live);
  return waiting +
         (device.is_cuda() ? double(cuda::memory_info(device.index).free) : available_memory());
}

void check_fits(const GenerationMemory& memory, const std::string& who) {
  const double free = free_memory();
  check(double(memory.sum()) <= free, who, ": ", memory.tokens, " tokens need ",
        human_bytes(double(memory.state)), " for their state and ",
        human_bytes(double(memory.part)), " to read a prompt, ", human_bytes(free),
        " are free; --cache q8 and a smaller --prefill take less");
}

}  // namespace brine::nn
