// Tokenising files on several threads: a reader collects pieces in jobs, encoders process them in
// any order, the caller's thread writes them in the order of reading.
#include "data/corpus/tokenize_files.h"

#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "data/io/bounded_queue.h"
#include "tensor/comm/bytes.h"
#include "tensor/comm/shared_work.h"

namespace brine::data {
namespace {

constexpr size_t kJobBytes = 512 << 10;

struct Job {
  struct Part {
    size_t end = 0;  // in text
    bool begins = true, ends = true;
    size_t last_token = 0;  // in tokens, when encoded
  };
  std::string text;
  std::vector<Part> parts;
  std::vector<int32_t> tokens;
  std::promise<void> encoded;
};
using JobQueue = BoundedQueue<std::shared_ptr<Job>>;

void encode(Job& job, const Tokenizer& tokenizer) {
  size_t begin = 0;
  for (Job::Part& part : job.parts) {
    const std::vector<int32_t> ids =
        tokenizer.encode(std::string_view(job.text).substr(begin, part.end - begin));
    job.tokens.insert(job.tokens.end(), ids.begin(), ids.end());
    part.last_token = job.tokens.size();
    begin = part.end;
  }
}

void encode_jobs(JobQueue& jobs, const Tokenizer& tokenizer) {
  while (auto job = jobs.pop()) {
    try {
      encode(**job, tokenizer);
      (*job)->encoded.set_value();
    } catch (...) {
      (*job)->encoded.set_exception(std::current_exception());
    }
  }
}

// Thrown out of the reader when the other threads have stopped.
struct Stopped {};

void read_jobs(const std::vector<std::string>& files, const Tokenizer& tokenizer,
               const TokenizeOptions& options, JobQueue& in_order, JobQueue& jobs) {
  auto job = std::make_shared<Job>();
  const int64_t ranks = options.ranks ? options.ranks->size() : 1;
  const int64_t rank = options.ranks ? options.ranks->rank() : 0;
  int64_t number = 0;
  auto hand_over = [&] {
    if (job->parts.empty()) return;
    if (number++ % ranks != rank) {  // another rank encodes it
      *job = Job();
      return;
    }
    if (!in_order.push(job) || !jobs.push(job)) throw Stopped();
    job = std::make_shared<Job>();
  };
  auto put = [&](const DocumentPiece& piece) {
    job->text += piece.text;
    job->parts.push_back({.end = job->text.size(), .begins = piece.begins, .ends = piece.ends});
    if (job->text.size() >= kJobBytes) hand_over();
  };
  if (options.joining == Joining::lines) {
    read_joined_document(files, tokenizer, options.documents, put);
  } else {
    for (const std::string& file : files) read_documents(file, tokenizer, options.documents, put);
  }
  hand_over();
}

std::string bytes_of(const Job& job) {
  ByteWriter out;
  out.list(job.parts);
  out.list(job.tokens);
  return out.bytes();
}

Job job_from(const std::string& bytes) {
  ByteReader in(bytes);
  Job job;
  job.parts = in.list<Job::Part>();
  job.tokens = in.list<int32_t>();
  return job;
}

void write(TokenShardWriter& writer, const Job& job) {
  size_t begin = 0;
  for (const Job::Part& part : job.parts) {
    if (part.begins) writer.begin_document();
    writer.add(std::span(job.tokens).subspan(begin, part.last_token - begin));
    if (part.ends) writer.end_document();
    begin = part.last_token;
  }
}

// The encoded jobs of this process in the order of reading; null: there are no more. May throw.
using NextJob = std::function<std::shared_ptr<Job>()>;

// Rank r has the jobs r, r + R, ...: of each round the first rank writes one from every rank.
void write_of_all(Communicator& ranks, TokenShardWriter* writer, const NextJob& next) {
  const auto size = size_t(ranks.size());
  std::vector<std::string> arrived;  // jobs of a round, as bytes
  auto write_arrived = [&] {
    for (const std::string& job : arrived) {
      if (writer && !job.empty()) write(*writer, job_from(job));
    }
  };
  for (bool more = true; more;) {
    std::string mine;
    const std::vector<std::string> sizes = gather_work(ranks, "tokens", [&] {
      write_arrived();
      if (const std::shared_ptr<Job> job = next()) mine = bytes_of(*job);
      return std::to_string(mine.size());
    });
    more = sizes.back() != "0";
    arrived.assign(writer ? size : 0, "");
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    if (!writer && !mine.empty()) out.push_back({0, mine.data(), mine.size()});
    for (size_t r = 1; writer && r < size; ++r) {
      arrived[r].resize(std::stoull(sizes[r]));
      if (!arrived[r].empty()) in.push_back({int(r), arrived[r].data(), arrived[r].size()});
    }
    ranks.exchange("tokens", out, in);
    if (writer) arrived[0] = std::move(mine);
  }
  do_work(ranks, "tokens", write_arrived);
}

}  // namespace

TokenManifest tokenize_files(const std::vector<std::string>& files, const Path& out,
                             const std::vector<std::unique_ptr<Tokenizer>>& tokenizers,
                             const TokenizeOptions& options) {
  check(!files.empty() && !tokenizers.empty(), "tokenize: no files");
  check(options.joining == Joining::documents || !options.separator,
        "tokenize: joined lines have no separator");
  const Tokenizer& tokenizer = *tokenizers.front();
  TokenManifest about{.tokenizer_hash = tokenizer.hash(),
                      .vocab_size = tokenizer.vocab_size(),
                      .separator = options.separator,
                      .joining = options.joining};
  for (const std::string& file : files) about.sources.push_back(Path(file).filename().string());
  SelfCommunicator alone;
  Communicator& ranks = options.ranks ? *options.ranks : alone;
  std::optional<TokenShardWriter> writer;
  do_work_of_first(ranks, "tokens",
                   [&] { writer.emplace(out, std::move(about), options.shard_bytes); });

  JobQueue jobs(tokenizers.size()), in_order(3 * tokenizers.size());
  std::exception_ptr failed;
  {
    std::vector<std::jthread> threads;
    // Before the threads are joined, in any case: no thread may wait at a queue for ever.
    struct CloseQueues {
      JobQueue &jobs, &in_order;
      ~CloseQueues() {
        jobs.close();
        in_order.close();
      }
    } closing{jobs, in_order};
    threads.reserve(tokenizers.size());
    for (const auto& one : tokenizers)
      threads.emplace_back([&jobs, &one] { encode_jobs(jobs, *one); });
    std::exception_ptr reading_failed;
    std::jthread reader([&] {
      try {
        read_jobs(files, tokenizer, options, in_order, jobs);
      } catch (const Stopped&) {
      } catch (...) {
        reading_failed = std::current_exception();
      }
      in_order.close();
      jobs.close();
    });
    try {
      const NextJob next = [&]() -> std::shared_ptr<Job> {
        const auto job = in_order.pop();
        if (!job && reading_failed) std::rethrow_exception(reading_failed);
        if (!job) return nullptr;
        (*job)->encoded.get_future().get();
        return *job;
      };
      if (ranks.size() > 1) {
        write_of_all(ranks, writer ? &*writer : nullptr, next);
      } else {
        while (const std::shared_ptr<Job> job = next()) write(*writer, *job);
      }
    } catch (...) {
      failed = std::current_exception();
      in_order.cancel();
      jobs.cancel();
    }
    reader.join();
  }
  if (failed) std::rethrow_exception(failed);
  TokenManifest manifest;
  do_work_of_first(ranks, "tokens", [&] { manifest = writer->finish(); });
  return ranks.is_first() ? manifest : read_token_manifest(out);
}

}  // namespace brine::data
