// Bad input to the program: one line that names the file and the reason, status 1, nothing damaged.
#include <algorithm>
#include <functional>
#include <vector>

#include "tests/apps/world.h"
#include "tests/paths.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

struct Bad {
  std::string command;
  std::vector<std::string> said;  // parts of the line
};

void check_refused(const Bad& bad, const std::string& before = "") {
  const World& w = world();
  INFO(bad.command);
  auto files = w.files();
  Finished f = w.run(bad.command + " --quiet", before);
  CHECK(f.status == 1);
  CHECK(f.out.empty());
  INFO(f.error);
  CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  CHECK(f.error.rfind("brine " + bad.command.substr(0, bad.command.find(' ')) + ": ", 0) == 0);
  for (const std::string& part : bad.said) {
    CHECK_MESSAGE(f.error.find(part) != std::string::npos, "no " << part);
  }
  auto after = w.files();
  for (const auto& [name, content] : files) {
    CHECK_MESSAGE(after[name] == content, name << " was damaged");
  }
}

// A copy of a directory of the world in which one file was changed.
void damaged(const std::string& from, const std::string& to, const std::string& file,
             const std::function<std::string(std::string)>& change) {
  const World& w = world();
  fs::copy(w.path(from), w.path(to), fs::copy_options::recursive);
  w.write(to + "/" + file, change(read_all(w.path(to + "/" + file))));
}

std::string half(std::string s) { return s.substr(0, s.size() / 2); }
std::string flipped(std::string s) {  // one bit
  s[s.size() - 5] ^= 1;
  return s;
}

}  // namespace

TEST_CASE("bad input: text that is missing, empty, not UTF-8, a directory or too short") {
  const World& w = world();
  w.write("latin1.txt", "caf\xe9 au lait");
  w.write("empty.txt", "");
  w.write("short.txt", "the king");
  std::string train = "train --config model.toml --tokenizer tok --out bad-run --train ";
  check_refused({train + "none.txt", {"none.txt", "No such file"}});
  check_refused({train + "latin1.txt", {"latin1.txt", "not UTF-8", "offset 3"}});
  check_refused({train + "empty.txt", {}});
  check_refused({train + "short.txt", {"32"}});
  check_refused({train + "tok", {"tok"}});
  check_refused({"dump --model teacher --out bad-dump --data none.txt", {"none.txt"}});
  check_refused({"eval --model teacher --data latin1.txt", {"latin1.txt", "UTF-8"}});
  CHECK_FALSE(fs::exists(w.path("bad-run")));
  CHECK_FALSE(fs::exists(w.path("bad-dump")));
}

TEST_CASE("bad input: configurations") {
  const World& w = world();
  w.write("key.toml", "steps = 3\nbatch_sise = 2\n");
  std::string rest = " --tokenizer tok --train text.txt --out bad-run";
  check_refused({"train --config key.toml" + rest, {"key.toml:2", "batch_sise", "batch_size"}});
  check_refused({"train --config none.toml" + rest, {"none.toml"}});
}

TEST_CASE("bad input: invalid sizes") {
  check_refused({World::distill("--k 0") + " --out bad-run", {"k must be at least 1"}});
  check_refused({World::distill("--decoder paper --columns 13") + " --out bad-run",
                 {"13 is not a multiple of 2"}});
  check_refused({World::train() + " --out bad-run --sequence-length 64", {"64", "32 positions"}});
  check_refused({World::distill() + " --out bad-run --sequence-length 64", {"64", "32 positions"}});
  check_refused({"eval --model teacher --data text.txt --sequence-length 33", {"33", "32"}});
  check_refused({"dump --model teacher --data text.txt --out bad-run --windows 9999", {"9999"}});
  check_refused({World::train() + " --out bad-run --model.num-attention-heads 5", {"5"}});
  check_refused({World::train() + " --out bad-run --model.vocab-size 299", {"300", "299"}});
}

TEST_CASE("bad input: flags that would do nothing, prompts that do not fit") {
  for (const char* flag : {"--k 4", "--path dense", "--path sparse"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    check_refused({join("eval --model teacher --data text.txt ", flag),
                   {name + " has no effect", "'flash'"}});
  }
  check_refused({"generate --model teacher --prompt the --k 4", {"--k has no effect", "'flash'"}});
  const std::string skip = " --query-skip 2";
  check_refused({"generate --model teacher --prompt the" + skip,
                 {"--query-skip has no effect", "'flash'", "estimates no mask"}});
  check_refused(
      {"eval --model teacher --data text.txt" + skip, {"--query-skip has no effect", "'flash'"}});
  check_refused({"eval --model student --attention recent --data text.txt" + skip,
                 {"--query-skip has no effect", "'recent'"}});
  check_refused({"generate --model student", {"--prompt, --prompt-file or --document is needed"}});
  check_refused({"generate --model student --prompt the --prompt-file text.txt",
                 {"of --prompt, --prompt-file and --document one is enough"}});
  check_refused({"generate --model student --prompt-file nowhere.txt", {"nowhere.txt"}});
  check_refused({"generate --model student --prompt the --stop-token wxyz", {"'wxyz'"}});
  check_refused({"generate --model student --load-state text.txt", {"text.txt"}});
  check_refused({"generate --model student --load-state export/model.safetensors",
                 {"model.safetensors", "format 'pt'"}});
  check_refused({"eval --model student --data text.txt --attention dense --k 4", {"--k has no"}});
  check_refused({"eval --model student --data text.txt --attention denes", {"denes", "dense"}});
  std::string words;
  for (int i = 0; i < 40; ++i) words += "king ";
  check_refused({"generate --model student --prompt '" + words + "'", {"prompt", "32 positions"}});
}

TEST_CASE("bad input: tokenizers") {
  damaged("tok", "bad-tok", "tokenizer.json", half);
  std::string rest = " --config model.toml --train text.txt --out bad-run --tokenizer ";
  check_refused({"train" + rest + "bad-tok", {"bad-tok/tokenizer.json"}});
  check_refused({"train" + rest + "nowhere", {"nowhere"}});
}

TEST_CASE("bad input: models and checkpoints") {
  const World& w = world();
  damaged("export", "bad-weights", "model.safetensors", half);
  damaged("export", "bad-config", "config.json", half);
  damaged("teacher", "bad-teacher", "step-00000003/model.safetensors", half);
  fs::create_directories(w.path("bad-torch"));
  fs::copy(w.path("export/config.json"), w.path("bad-torch/config.json"));
  const std::string seeds = brine::test::source_dir() + "/tests/fuzz/seeds/";
  w.write("bad-torch/pytorch_model.bin", read_all(seeds + "torch/cut"));
  w.write("bad.gguf", read_all(seeds + "gguf/cut"));
  std::string eval = "eval --data text.txt --model ";
  check_refused({eval + "bad-weights", {"bad-weights/model.safetensors"}});
  check_refused({eval + "bad-config", {"bad-config/config.json"}});
  check_refused({eval + "bad-torch", {"bad-torch/pytorch_model.bin: "}});
  check_refused({eval + "bad.gguf", {"bad.gguf: "}});
  check_refused({eval + "nowhere", {"nowhere"}});
  check_refused({eval + "bad-teacher", {"bad-teacher"}});
  check_refused({"export --checkpoint student --out export", {"export", "already contains"}});
  // Only a resumed run reads the moments.
  damaged("teacher", "bad-moments", "step-00000003/optimizer.safetensors", flipped);
  check_refused({World::train() + " --valid text.txt --out bad-moments --resume",
                 {"step-00000003/optimizer.safetensors", "does not match its checksum"}});
  check_refused({World::distill() + " --out bad-teacher --resume",
                 {"bad-teacher: no intact checkpoint to resume from; skipped", "step-00000003"}});
}

TEST_CASE("bad input: dumps and golden files") {
  const World& w = world();
  damaged("dump", "bad-dump-1", "shard-00000.h5", half);
  damaged("dump", "bad-dump-2", "manifest.json", half);
  std::string distill = World::distill() + " --out bad-run --dump ";
  check_refused({distill + "bad-dump-1", {"bad-dump-1/shard-00000.h5"}});
  check_refused({distill + "bad-dump-2", {"bad-dump-2/manifest.json"}});
  check_refused({distill + "nowhere", {"nowhere"}});
  check_refused({distill + "dump --lengths long", {"lengths: 'long'"}});
  check_refused({"eval --model dump --data text.txt", {"dump: is a dump, not a model"}});
  for (const std::string key : {"block-topk --attention.k", "blocks --attention.sinks"})
    check_refused(
        {"eval --model teacher --data text.txt --attention " + key + " 9223372036854775807",
         {"must be at most 2147483647"}});
  w.must("train --model teacher --train text.txt --batch-size 2 --steps 1 --out other");
  std::string other = World::distill("--steps 2 --columns 12", "other");
  check_refused({other + " --out bad-run --dump dump", {"dump", "teacher"}});
  w.write("cut.h5",
          half(read_all(brine::test::source_dir() + "/tests/golden/causal_paper_t12.h5")));
  check_refused({"verify cut.h5", {"cut.h5"}});
  check_refused({"verify text.txt", {"text.txt"}});
}

TEST_CASE("bad input: a weight that is NaN") {
  const World& w = world();
  w.must("export --checkpoint teacher --out nan");
  std::string weights = read_all(w.path("nan/model.safetensors"));
  weights.replace(weights.size() - 4, 4,
                  std::string("\0\0\xc0\x7f", 4));  // of the last tensor, a norm
  w.write("nan/model.safetensors", weights);
  check_refused(
      {"eval --model nan --data text.txt --max-windows 2", {"a token is not finite; a weight"}});
}

TEST_CASE("bad input: a prompt is named by its file and line") {
  const World& w = world();
  std::string line = "the king";
  for (int i = 0; i < 60; ++i) line += " went up";
  w.write("long.txt", "the king\nthe city\n" + line + "\n");
  w.write("latin.txt", "the king\nthe caf\xe9 of\n");
  const std::string generate = "generate --model export --tokens 2 --prompt";
  check_refused(
      {generate + "-file latin.txt", {"latin.txt: line 2: not UTF-8 at byte 8 of the line"}});
  check_refused(
      {generate + "-file long.txt", {"long.txt: line 3 has ", " tokens, the model 32 positions"}});
  check_refused(
      {generate + " 'the king' '" + line + "'", {"prompt 2 has ", "the model 32 positions"}});
  check_refused({generate + " '" + line + "'", {"the prompt has ", "the model 32 positions"}});
}

TEST_CASE("bad input: an existing run, another configuration") {
  check_refused(
      {World::train() + " --valid text.txt --out teacher", {"teacher", "already contains"}});
  check_refused({World::train() + " --valid text.txt --out teacher --resume --batch-size 3",
                 {"teacher", "batch_size: 2 -> 3"}});
  check_refused({World::train() + " --out nothing-there --resume", {"nothing-there"}});
  check_refused(
      {World::train() + " --valid text.txt --out teacher --resume --batch-size 3 --dry-run",
       {"batch_size"}});
  check_refused({World::train() + " --out nothing-there --resume --dry-run", {"nothing-there"}});
}

TEST_CASE("bad input: a full disk") {
  std::string limit = "ulimit -f 20;";  // in blocks: no file beyond 10 or 20 KiB
  check_refused({"export --checkpoint student --out full-export", {"full-export"}}, limit);
  check_refused({"dump --model teacher --data text.txt --windows 6 --out full-dump", {"full-dump"}},
                limit);
  const World& w = world();
  Finished f = w.run("eval --model teacher --data text.txt --json --quiet", "", "/dev/full");
  CHECK(f.status == 1);
  CHECK(f.error == "brine eval: standard output cannot be written\n");
  auto files = w.files();
  f = w.run(World::train() + " --out full-run --quiet", limit);
  CHECK(f.status == 1);
  CHECK(f.error.find("brine train: full-run/") != std::string::npos);
  CHECK_FALSE(fs::exists(w.path("full-run/step-00000003")));
  // With free space the same commands succeed.
  w.must("dump --model teacher --data text.txt --windows 6 --out full-dump");
  for (const auto& [name, content] : files) {
    if (name.find("full-dump") == std::string::npos) CHECK(read_all(name) == content);
  }
}

}  // namespace brine::tests
