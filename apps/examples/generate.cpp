// Continues a prompt with the likeliest tokens.
// Usage: generate MODEL PROMPT   (a directory as Hugging Face lays it out, with its tokenizer)
#include <brine/data/tokenizer/prompt_tokens.h>
#include <brine/nn/generate/generation.h>
#include <brine/nn/io/model_io.h>

#include <iostream>

int main(int count, char** words) try {
  brine::check(count == 3, "usage: ", words[0], " MODEL PROMPT");
  const brine::nn::LoadedModel loaded = brine::nn::load_model(words[1], {.map = true});
  const auto tokenizer = brine::nn::tokenizer_of(loaded.directory);
  brine::nn::GenerationRequest request{.tokens = 12, .how = {.temperature = 0}};
  request.vocabulary = tokenizer->vocab_size();
  brine::nn::Generation generation(*loaded.model, request,
                                   [&](int32_t id) { return tokenizer->decode_next(id); });
  generation.start({brine::data::prompt_tokens(*tokenizer, words[2], {})});
  generation.run();
  std::cout << words[2] << generation.sequences()[0].text.text() << std::endl;
} catch (const brine::Error& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
