// Work that ranks divide: evaluations and dumps of one process; refusals; errors.
#include "tests/apps/ranks/launch.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

// A model with room for the prompts of a suite; sentences and an encoder that was tuned on them.
void make_inputs() {
  static const bool made = [] {
    const World& w = ranked_world();
    w.write("roomy.toml",
            "batch_size = 2\nsequence_length = 32\nsteps = 2\n[model]\nvocab_size = 300\n"
            "hidden_size = 32\nnum_hidden_layers = 2\nnum_attention_heads = 4\nffn_dim = 48\n"
            "max_position_embeddings = 640\n");
    w.must("train --config roomy.toml --tokenizer tok --train text.txt --valid text.txt --out big");
    encoder_tokenizer()->save(w.path("task-tok"));
    std::istringstream lines(sample_text(60));
    std::string rows, line;
    for (int i = 0; std::getline(lines, line); ++i)
      rows += join("s\t", line.find("stone") < 40, "\t\t", line.substr(0, size_t(20 + i)), "\n");
    fs::create_directories(w.path("glue/CoLA"));
    w.write("glue/CoLA/train.tsv", rows);
    w.write("glue/CoLA/dev.tsv", rows);
    w.write("bert.json", encoder_json(300, 32, 0.1));
    w.must(
        "finetune --task cola --data glue --model bert.json --tokenizer task-tok --batch-size 16 "
        "--epochs 1 --out tuned");
    w.must(
        "distill --task cola --data glue --teacher tuned --steps 2 --columns 8 --k 3 --out judge");
    std::string much;
    for (int i = 0; i < 12; ++i) much += sample_text(120);
    w.write("much.txt", much);
    return true;
  }();
  CHECK(made);
}

// The columns of a table that are not times or memory.
std::string without_costs(const std::string& table) {
  std::istringstream lines(table);
  std::string out, line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    for (int i = 0; words >> word; ++i) out += i == 3 || i == 4 ? "" : word + " ";
    out += "\n";
  }
  return out;
}

void same_values(const Launcher& launcher) {
  make_inputs();
  const char* const commands[] = {
      "eval --json --model student --teacher teacher --data text.txt --k 4 --batch-size 3",
      "eval --json --model student --data text.txt --protocol stride --window 32 --stride 10 "
      "--max-windows 11 --batch-size 2",
      "eval --json --model judge --teacher self --task cola --data glue --batch-size 7",
      "eval --json --model big --suite ruler --tasks passkey,copy --lengths 560 --depths 0,100 "
      "--samples 2 --answer-tokens 6 --batch-size 3 --compare recent:k=8",
      "sweep --model student --teacher teacher --data text.txt --k 2 4 --floors --out floors.tsv"};
  for (const std::string command : commands) {
    fs::remove(world().path("floors.tsv"));
    const Finished alone = must_run(command, "OMP_NUM_THREADS=1");
    const std::string table = read_all(world().path("floors.tsv"));
    CHECK(alone.out.size() > 200);
    for (const int ranks : {2, 3}) {
      fs::remove(world().path("floors.tsv"));
      const Finished shared = must_run(command, launcher.of(ranks));
      INFO(command, " on ", ranks, " ranks: ", shared.out);
      const bool same = shared.out == alone.out;
      CHECK(same);
      CHECK(occurrences(shared.error, "\n") == occurrences(alone.error, "\n"));  // said once
      CHECK(read_all(world().path("floors.tsv")) == table);
    }
  }
  const std::string sweep =
      "sweep --model student --teacher teacher --data text.txt --k 2 4 --batch-size 5 "
      "--max-windows 23";
  const std::string alone = without_costs(must_run(sweep, "").out);
  CHECK(contains(alone, "perplexity"));
  CHECK(without_costs(must_run(sweep, launcher.of(4)).out) == alone);
}

// Content by name of every file below a directory.
std::map<std::string, std::string> content_of(const std::string& directory) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(world().path(directory)))
    out[fs::relative(entry.path(), world().path(directory)).string()] = read_all(entry.path());
  return out;
}

void check_same_files(const std::string& directory, const std::string& expected) {
  const auto a = content_of(directory), b = content_of(expected);
  CHECK(b.size() > 2);
  CHECK(a.size() == b.size());
  for (const auto& [name, content] : b) {
    INFO(directory, " against ", expected, ": ", name);
    const auto found = a.find(name);
    const bool same = found != a.end() && found->second == content;
    CHECK(same);
  }
}

void same_files(const Launcher& launcher) {
  make_inputs();
  const std::string id = launcher.name;
  const std::map<std::string, std::string> commands = {
      {"dump", "dump --model teacher --data text.txt --batch-size 4 --shard-mib 1 --logits full"},
      {"task", "dump --model tuned --task cola --data glue --shard-mib 1 --content maps"}};
  for (const auto& [name, command] : commands) {
    const std::string out = command + " --out " + id + "-" + name;
    must_run(out, "OMP_NUM_THREADS=1");
    for (const int ranks : {2, 3}) {
      must_run(out + std::to_string(ranks), launcher.of(ranks));
      check_same_files(join(id, "-", name, ranks), id + "-" + name);
    }
  }
}

// A signal to one rank while several shards are left.
void disturbed_dump(const Launcher& launcher) {
  make_inputs();
  const std::string id = launcher.name, whole = id + "-long";
  const std::string keys =
      "dump --model teacher --data much.txt --batch-size 2 --shard-mib 1 --logits full --out ";
  must_run(keys + whole, "");
  for (const int signal : {SIGKILL, SIGTERM}) {
    const std::string out = join(id, "-signal-", signal);
    for (int r = 0; r < 3; ++r) fs::remove(ranked_world().path(join("pid.", r)));
    Finished done;
    std::thread launched([&] { done = ranked_world().run(keys + out, launcher.of(3)); });
    const bool began =
        wait_until(60, [&] { return fs::exists(world().path(out + "/shard-00004.h5")); });
    ::kill(process_of(1), signal);
    launched.join();
    CHECK_MESSAGE(began, done.error);
    INFO(done.error);
    CHECK(content_of(out).size() < content_of(whole).size());
    if (signal == SIGTERM) {
      CHECK(done.status == 130);
      CHECK(contains(done.error, "SIGTERM to rank 1: stopped at sample "));
    } else {
      CHECK(done.status != 0);
    }
    must_run(keys + out, launcher.of(2));
    check_same_files(out, whole);
  }
}

void one_line(const Launcher& launcher) {
  make_inputs();
  const char* const alone = "processes; start it as one process";
  for (const char* command :
       {"export --checkpoint student --out refused", "verify nothing.h5",
        "generate --model student --prompt a", "inspect student",
        "tokenize --tokenizer tok --out refused text.txt", "report student"}) {
    const Finished done = ranked_world().run(command, launcher.of(3));
    INFO(command, ": ", done.error);
    CHECK(done.status != 0);
    CHECK(contains(done.error, "says that this is one of 3"));
    CHECK(contains(done.error, alone));
    CHECK(occurrences(done.error, "brine ") == 1);
  }
  CHECK(!fs::exists(world().path("refused")));
  // Rank 0 says it even if it is the last to find out.
  ranked_world().write("last.sh",
                       "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n"
                       "[ $rank = 0 ] && sleep 1\nexec \"$@\"\n");
  const Finished late = ranked_world().run("inspect student", launcher.of(3) + "sh last.sh");
  CHECK(late.status != 0);
  CHECK_MESSAGE(contains(late.error, alone), late.error);
  // What all ranks find out, and what one of them does, wherever the others are by then.
  const std::string eval = "eval --json --data text.txt --model ";
  const std::string split = " : -n 1 sh rank.sh " + program() + " ";
  const std::map<std::string, std::string> errors = {
      {eval + "nowhere", "brine eval: nowhere: "},
      {eval + "student" + split + eval + "teacher",
       "brine eval: rank 2 has another configuration than rank 0; model: \"student\" -> "
       "\"teacher\""},
      {"dump --model teacher --data text.txt --out /proc/none",
       "brine dump: rank 0: /proc/none: "}};
  for (const auto& [command, says] : errors) {
    const bool splits = command.find(split) != command.npos;
    const Finished done = ranked_world().run(command, launcher.of(splits ? 2 : 3));
    INFO(command, ": ", done.error);
    CHECK(done.status != 0);
    CHECK(contains(done.error, says));
    CHECK(occurrences(done.error, "brine ") == 1);
    CHECK(done.out.empty());
  }
}

RANKS_TEST_CASE("divided work: evaluations have the values of one process", same_values)
RANKS_TEST_CASE("divided work: dumps are the files of one process", same_files)
RANKS_TEST_CASE("divided work: a dump of ranks that were ended continues on others", disturbed_dump)
RANKS_TEST_CASE("divided work: refusals and errors are one line", one_line)

}  // namespace
}  // namespace brine::tests
