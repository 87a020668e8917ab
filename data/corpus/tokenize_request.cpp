// What a tokenisation is: files, how their text is joined, the token between documents; and the
// threads that do it.
#include "data/corpus/tokenize_request.h"

#include <exception>
#include <future>
#include <thread>

#include "data/io/bounded_queue.h"

namespace brine::data {

namespace {

// Tokenising files on several threads: a reader collects pieces in jobs, encoders process them in
// any order, the caller's thread writes them in the order of reading.

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
  auto hand_over = [&] {
    if (job->parts.empty()) return;
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

void write(TokenShardWriter& writer, const Job& job) {
  size_t begin = 0;
  for (const Job::Part& part : job.parts) {
    if (part.begins) writer.begin_document();
    writer.add(std::span(job.tokens).subspan(begin, part.last_token - begin));
    if (part.ends) writer.end_document();
    begin = part.last_token;
  }
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
  TokenShardWriter writer(out, std::move(about), options.shard_bytes);

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
      while (const auto job = in_order.pop()) {
        (*job)->encoded.get_future().get();
        write(writer, **job);
      }
      if (reading_failed) std::rethrow_exception(reading_failed);
    } catch (...) {
      failed = std::current_exception();
      in_order.cancel();
      jobs.cancel();
    }
    reader.join();
  }
  if (failed) std::rethrow_exception(failed);
  return writer.finish();
}

namespace {

std::optional<int32_t> separator_id(const std::string& separator, const Tokenizer& t,
                                    const std::function<void(const std::string&)>& warn) {
  if (const std::optional<SeparatorRule> rule = value_of(separator, kSeparatorRules)) {
    if (*rule == SeparatorRule::none) return std::nullopt;
    if (!t.special().eos)
      warn("tokenize: the tokenizer has no eos token, so documents are not separated");
    return t.special().eos;
  }
  const std::optional<int32_t> id = t.id_of(separator);
  check(id.has_value(), "tokenize: the separator \"", separator, "\" is not a token");
  return id;
}

}  // namespace

void TokenizeRequest::describe(Schema& s) {
  s.field("tokenizer", tokenizer, "Tokenizer or model directory", {.required = true});
  s.field("files", files, "Text or .jsonl, plain or in gzip",
          {.required = true, .positional = true});
  s.field("out", out, "New directory of token shards", {.required = true});
  s.field("key", key, "Key of the text in a line of .jsonl", {.unset = "\"text\""});
  s.field("separator", separator,
          "Token after every document; auto: the tokenizer's eos if it has one; none");
  s.choice("joining", joining, kJoinings,
           "lines: one document of joined lines, as the protocols of brine eval");
  s.field("shard_mib", shard_mib, "Largest shard in MiB", {.min = 1, .max = 1 << 20});
}

void TokenizeRequest::validate() const {
  if (joining == Joining::documents) return;
  check(value_of(separator, kSeparatorRules).has_value(),
        "tokenize: --joining lines does not use --separator ", separator);
  check(!key, "tokenize: --joining lines does not use --key");
}

TokenizeOptions TokenizeRequest::resolve(
    const Tokenizer& t, const std::function<void(const std::string&)>& warn) const {
  validate();
  const bool lines = joining == Joining::lines;
  return {.documents = {.key = key.value_or("text")},
          .separator = lines ? std::nullopt : separator_id(separator, t, warn),
          .joining = joining,
          .shard_bytes = uint64_t(shard_mib) << 20};
}

}  // namespace brine::data
