// own_attention MODEL: registers a method, the mean of past values, and distils MODEL with it.
#include <brine/autograd/ops.h>
#include <brine/distill/losses/losses.h>
#include <brine/nn/io/model_io.h>
#include <brine/nn/optim/optimizer.h>

#include <iostream>

using namespace brine;

struct Average : nn::Attention {
  Average(nn::Init& init, const nn::AttentionShape& s, const nn::NoSettings&)
      : mix(child<nn::Linear>("mix", init, s.heads * s.head_size, s.heads * s.head_size)) {}
  Tensor forward(const nn::AttentionInput& in) override {
    return mix(merge_heads(running_mean(in.v)));
  }
  nn::Linear& mix;
};
const nn::RegisterAttention<Average, nn::NoSettings> registration("average");

int main(int, char** words) {
  const nn::LoadedModel loaded = nn::load_model(words[1]);
  nn::ModelConfig config = loaded.config;
  config.attention = "average";
  const auto student = nn::make_student(config, *loaded.model, 1);
  nn::ParameterStore store(*student);
  distill::OnlineTeacher teacher(loaded.model);
  distill::LossConfig weights;
  weights["approx"] = weights["prob"] = 0;
  distill::Objective losses(*student, &teacher, weights);
  nn::Adamw adamw(store, {.attention_learning_rate = 1e-2});
  distill::WindowSource text(std::vector<int32_t>(256, 7), 16, 1);
  for (int64_t step = 0; step < 3; ++step, store.zero_gradients()) {
    distill::LossTerms terms;
    losses.run(text.batch(step, 4), {}, terms);
    adamw.step(1, adamw.gradient_norm());
    std::cout << "step " << step << ": loss " << terms.at("loss") << std::endl;
  }
}
