// NCCL as the emulator has it (emulator/nccl): ranks that are threads with a device each, then
// processes of the program. Nothing here has run on a GPU.
#include "tensor/comm/nccl.h"

#include <sys/wait.h>

#include <cstring>
#include <exception>
#include <functional>
#include <thread>

#include "tensor/comm/parts.h"
#include "tensor/comm/slot_tree.h"
#include "tests/apps/world.h"
#include "tests/cuda/compare.h"
#include "tests/messages.h"
#include "tests/paths.h"
#include "tests/scratch.h"
#include "tests/tensor/comm/thread_ranks.h"
#include "tests/tensor/comm/tree_sums.h"

using namespace brine;
using namespace brine::test;
using namespace brine::tests;

namespace {

bool is_emulated() {
  if (!test::has_device()) return false;
  if (!cuda::emulated()) test::skip("NCCL is compared on emulated devices only");
  return cuda::emulated();
}

class Devices {
 public:
  explicit Devices(int n) { setenv(kName, std::to_string(n).c_str(), 1); }
  ~Devices() { unsetenv(kName); }
  Devices(const Devices&) = delete;

 private:
  static constexpr const char* kName = "BRINE_EMULATED_DEVICES";
};

Device device_of(int rank) { return {DeviceType::cuda, uint8_t(rank)}; }

// What the ranks of one communicator share; the CPU's memory moves between threads.
struct Group {
  std::string id = new_nccl_id();
  test::Mailboxes boxes = {};
};

std::unique_ptr<Communicator> open_rank(Group& group, int rank, int size, double seconds = 60) {
  auto ranks = open_nccl({.rank = rank,
                          .size = size,
                          .id = group.id,
                          .device = device_of(rank),
                          .seconds = seconds,
                          .host = std::make_unique<test::ThreadRank>(group.boxes, rank, size)});
  ranks->set_limit(seconds);
  return ranks;
}

// Runs f(rank) in a thread for each, with a device each.
void on_devices(int size, const std::function<void(int)>& f) {
  const Devices devices(size);
  test::in_threads(size, f);
}

std::vector<float> gradient_of(int64_t slot, int64_t n) {
  return test::gradients_of(slot + 1, n).back();
}

Tensor sum_of_one_process(int64_t slots, int64_t n) {
  SlotSum sum(slots, {0, slots});
  const Tensor buffer = Tensor::empty({n});
  for (int64_t s = 0; s < slots; ++s) {
    assign(buffer, Tensor::from(gradient_of(s, n), {n}));
    sum.add(buffer);
  }
  return buffer;
}

// Of two ranks each sends the other its values.
void swap(Communicator& ranks, const std::string& what, const Tensor& values) {
  const int other = 1 - ranks.rank();
  const Tensor arrived = Tensor::like(values);
  ranks.exchange(what, {{other, values.raw(), bytes_of(values)}},
                 {{other, arrived.raw(), bytes_of(arrived)}}, 1, values.device());
}

}  // namespace

TEST_CASE("nccl: gradients of devices have the bits of the tree") {
  if (!is_emulated()) return;
  for (const auto& [slots, n] : {std::pair<int64_t, int64_t>(4, 100), {7, 1000}}) {
    const Tensor expected = sum_of_one_process(slots, n);
    for (const int size : {2, 3, 4}) {
      Group group;
      on_devices(size, [&, n = n, slots = slots](int rank) {
        const auto ranks = open_rank(group, rank, size);
        const SlotRange local = slots_of(slots, rank, size);
        const Tensor buffer = Tensor::empty({n}, Dtype::f32, device_of(rank));
        SlotSum sum(slots, local);
        for (int64_t s = local.begin; s < local.end; ++s) {
          assign(buffer, Tensor::from(gradient_of(s, n), {n}));
          sum.add(buffer);
        }
        sum.over_ranks(*ranks, "gradients", buffer);
        check(same_bits(buffer, expected), "rank ", rank, " of ", size, ": another sum");
        ranks->barrier("end");
      });
    }
  }
}

TEST_CASE("nccl: collectives on tensors of devices, and of the CPU's bytes") {
  if (!is_emulated()) return;
  const int64_t n = 77;
  Group group;
  on_devices(3, [&](int rank) {
    const auto ranks = open_rank(group, rank, 3);
    check(ranks->name() == join("NCCL 2.14.3 on cuda:", rank, ", threads"), "its name is ",
          ranks->name());
    check(!ranks->moves(device_of((rank + 1) % 3)), "moves what another rank has");
    const Tensor local = Tensor::from(gradient_of(rank, n), {n}).to(device_of(rank));
    const Tensor first = local.clone();
    ranks->broadcast("first", first);
    check(same_bits(first, Tensor::from(gradient_of(0, n), {n})), "rank ", rank, ": broadcast");
    const std::vector<std::string> texts = ranks->gather("texts", std::string(size_t(rank), 'x'));
    for (size_t r = 0; r < 3; ++r)
      check(texts[r] == std::string(r, 'x'), "rank ", rank, ": text of ", r);
    double value = rank == 0 ? 0.25 : 0;
    ranks->broadcast("value", &value, sizeof value);
    check(value == 0.25, "rank ", rank, " has ", value);
    ranks->barrier("end");
  });
}

TEST_CASE("nccl: a rank that does not come, does not answer or has gone ends the others") {
  if (!is_emulated()) return;
  Group group;
  on_devices(2, [&](int rank) {
    if (rank == 1) return;
    const std::string alone = test::message([&] { open_rank(group, 0, 2, 0.3); });
    check(alone == "ranks: NCCL on cuda:0: not done within 0.3 seconds", alone);
  });
  Group second;
  std::atomic<bool> over{false};
  on_devices(2, [&](int rank) {
    const auto ranks = open_rank(second, rank, 2);
    if (rank == 1) {  // is here, but does not take part
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    ranks->set_limit(0.3);
    const Tensor t = Tensor::zeros({100}, Dtype::f32, device_of(0));
    const std::string what = test::message([&] { swap(*ranks, "sum of step 3", t); });
    over = true;
    check(what == "sum of step 3: no answer from rank 1 within 0.3 seconds", what);
  });
  Group third;
  on_devices(2, [&](int rank) {
    const auto ranks = open_rank(third, rank, 2);
    if (rank == 1) return;
    const Tensor t = Tensor::zeros({100}, Dtype::f32, device_of(0));
    const std::string what = test::message([&] { swap(*ranks, "sum", t); });
    check(what ==
              "sum: NCCL 2.14.3: remote process exited or there was a network error; rank 1 has "
              "closed its connection",
          what);
  });
}

TEST_CASE("nccl: ranks that send different sizes are told so") {
  if (!is_emulated()) return;
  Group group;
  on_devices(2, [&](int rank) {
    const auto ranks = open_rank(group, rank, 2);
    const Tensor t = Tensor::zeros({rank == 0 ? 64 : 96}, Dtype::f32, device_of(rank));
    const std::string what = test::message([&] { swap(*ranks, "sum", t); });
    check(test::contains(what, "sum: NCCL 2.14.3: "), "rank ", rank, ": ", what);
  });
}

namespace {

// Runs of the program with its GPU emulated, in a separate directory.
struct Runs : Directory {
  Runs() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += join("word", i % 37, i % 5 == 0 ? ". " : " and ");
    write("text.txt", text);
    write("model.toml",
          "batch_size = 1\nsequence_length = 16\nsteps = 2\naccumulate = 4\n[model]\n"
          "vocab_size = 300\nhidden_size = 16\nnum_hidden_layers = 1\n"
          "num_attention_heads = 2\nffn_dim = 32\nmax_position_embeddings = 16\n");
    must("tokenizer --train text.txt --vocab-size 300 --out tok");
  }
  Finished train(const std::string& keys, const std::string& before = "") const {
    return run(
        "train --config model.toml --tokenizer tok --train text.txt --device cuda " + keys,
        "export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive BRINE_EMULATED_DEVICES=2; " + before);
  }
  void check_same(const std::string& run, const std::string& expected) const {
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      const std::string name = std::string("/step-00000002/") + file;
      const std::string a = read_all(path(run + name));
      INFO(run, name);
      CHECK(a.size() > 1000);
      const bool same = a == read_all(path(expected + name));
      CHECK(same);
    }
  }
};

}  // namespace

TEST_CASE("nccl: the program on two devices has the bits of one") {
  if (!is_emulated()) return;
  const Runs runs;
  Finished done = runs.train("--out alone");
  REQUIRE_MESSAGE(done.status == 0, done.error);
  if (std::system("command -v mpirun.openmpi >/dev/null") != 0) return;
  const std::string mpirun =
      "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --quiet -n 2 ";
  done = runs.train("--out mpi", mpirun);
  CHECK_MESSAGE(done.status == 0, done.error);
  CHECK(test::contains(done.error, "2 ranks by NCCL 2.14.3 on cuda:0, Open MPI"));
  runs.check_same("mpi", "alone");
  done = runs.train("--out without --no-nccl", mpirun);
  CHECK_MESSAGE(done.status == 0, done.error);
  CHECK(test::contains(done.error, "2 ranks by Open MPI"));
  runs.check_same("without", "alone");
}

TEST_CASE("nccl: a rank without a device of its own is refused") {
  if (!is_emulated()) return;
  const Runs runs;
  const Finished done =
      runs.train("--out nothing", "OMPI_COMM_WORLD_LOCAL_RANK=2 RANK=0 WORLD_SIZE=3");
  CHECK(done.status == 1);
  CHECK(done.error ==
        "rank 0: brine train: --device cuda: this is rank 2 of its machine, which has 2 CUDA "
        "devices; start fewer ranks there, or name a device\n");
}
