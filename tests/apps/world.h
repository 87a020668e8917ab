// A tiny world made by the program itself: text, tokenizer, teacher, dumps, student, export.
#pragma once

#include <cstdlib>
#include <map>

#include "data/tokenizer/bpe/bpe.h"
#include "tensor/device/accelerator.h"
#include "tests/apps/helpers.h"
#include "tests/paths.h"

namespace brine::tests {

// The program under test; the one whose GPU is emulated where the kernels of this test program are.
inline std::string program() {
  return test::binary_dir() + std::string(cuda::emulated() ? "/brine_emulated" : "/brine");
}

// Sentences of a few words, each a function of its number.
inline std::string sample_text(int sentences) {
  const char* words[] = {"the", "king", "said",  "unto",  "his",  "people", "and",  "went",
                         "up",  "from", "place", "stone", "city", "water",  "where"};
  std::string out;
  uint32_t state = 12345;
  for (int s = 0; s < sentences; ++s) {
    for (int w = 0; w < 12; ++w) {
      state = state * 1664525u + 1013904223u;
      out += std::string(w ? " " : "") + words[state >> 16 & 15 ? (state >> 16) % 15 : 0];
    }
    out += ".\n";
  }
  return out;
}

// A tokenizer of an encoder, trained on such sentences.
inline std::unique_ptr<data::BpeTokenizer> encoder_tokenizer() {
  data::BpeTrainer trainer({.vocab_size = 300, .special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}});
  trainer.add(sample_text(60));
  return trainer.train();
}

// config.json of a small encoder.
inline std::string encoder_json(int vocabulary, int positions, double dropout) {
  return join(R"({"model_type": "bert", "architectures": ["BertModel"], "vocab_size": )",
              vocabulary,
              R"(, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "intermediate_size": 48, "type_vocab_size": 2, "initializer_range": 0.1,
                 "max_position_embeddings": )",
              positions, R"(, "hidden_dropout_prob": )", dropout, "}");
}

// A directory in which the program runs.
class Directory {
 public:
  // Runs the program in this directory; `before` are shell commands ahead of it.
  Finished run(const std::string& arguments, const std::string& before = "",
               const std::string& target = "") const {
    std::string out = path("../" + scratch_.path().filename().string() + ".out");
    std::string error = out + ".err";
    std::string command = "cd " + scratch_.path().string() + " && " + before + " " + program() +
                          " " + arguments + " >" + (target.empty() ? out : target) + " 2>" + error;
    int code = std::system(("(" + command + ")").c_str());
    Finished done{WIFEXITED(code) ? WEXITSTATUS(code) : -1,
                  target.empty() ? read_all(out) : std::string(), read_all(error)};
    std::filesystem::remove(out);
    std::filesystem::remove(error);
    return done;
  }
  Finished must(const std::string& arguments, const std::string& before = "") const {
    Finished f = run(arguments, before);
    REQUIRE_MESSAGE(f.status == 0, arguments << ": " << f.error);
    return f;
  }
  std::string path(const std::string& name) const { return (scratch_ / name).string(); }
  void write(const std::string& name, const std::string& text) const { scratch_.write(name, text); }
  // Content of every file, by name.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> out;
    for (const auto& e : std::filesystem::recursive_directory_iterator(scratch_.path())) {
      if (e.is_regular_file()) out[e.path().string()] = read_all(e.path());
    }
    return out;
  }

 private:
  Scratch scratch_;
};

class World : public Directory {
 public:
  // `flags` follow the commands that compute with a model.
  explicit World(const std::string& flags = "") {
    write("text.txt", sample_text(120));
    write("model.toml",
          "batch_size = 2\nsequence_length = 32\nsteps = 3\n[model]\nvocab_size = 300\n"
          "hidden_size = 32\nnum_hidden_layers = 2\nnum_attention_heads = 4\nffn_dim = 48\n"
          "max_position_embeddings = 32\n");
    must("tokenizer --train text.txt --vocab-size 300 --out tok");
    must(train() + " --valid text.txt --out teacher" + flags);
    must("dump --model teacher --data text.txt --out dump --windows 6" + flags);
    must("dump --model teacher --data text.txt --out maps --content maps --windows 6 --dtype f32" +
         flags);
    must(distill() + " --dump dump --valid text.txt --out student" + flags);
    must("export --checkpoint student --out export");
  }

  static std::string train() {
    return "train --config model.toml --tokenizer tok --train text.txt";
  }
  // Without --out and --dump; `keys` are the run's flags.
  static std::string distill(const std::string& keys = "--steps 2 --columns 12 --k 4",
                             const std::string& teacher = "teacher") {
    return "distill --teacher " + teacher + " --data text.txt --batch-size 2 " + keys;
  }
};

// Made once for all tests of the program.
inline const World& world() {
  static const World w;
  return w;
}

}  // namespace brine::tests
