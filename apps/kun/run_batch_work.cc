#include "run_batch_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <vector>

#include "server/api_error.h"
#include "server/json_view.h"
#include "server/router.h"
#include "server/server_context.h"

namespace kun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kProgressInterval{500};

// Which lines have new output; exchanges report here from the server's threads.
struct Wakeups {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::int64_t> lines;
};

class Runner {
 public:
  explicit Runner(BatchWork work)
      : work_(std::move(work)), context_(work_.options), router_(context_) {
    context_.set_model(work_.model);
  }

  // Lets go of what is still running before the threads that work on it end.
  ~Runner() {
    for (Entry& entry : window_) {
      if (entry.exchange != nullptr) entry.exchange->close(true);
    }
    window_.clear();
    context_.pool->stop();
  }

  Result<BatchCounts> run(BatchReader& reader) {
    bool more = true;
    while (more || !window_.empty()) {
      while (more && std::ssize(window_) < work_.window_max) {
        ASSIGN_OR_RETURN(auto item, reader.next());
        more = item.has_value();
        if (more) start(*std::move(item));
      }
      RETURN_IF_ERROR(write_finished());
      report(false);
      if (!window_.empty()) collect();
    }
    report(true);
    return counts_;
  }

 private:
  struct Entry {
    BatchItem item;
    std::shared_ptr<Exchange> exchange;  // null: there is nothing to wait for
    BatchAnswer answer;
    bool done = false;
  };

  void start(BatchItem item) {
    ++counts_.read;
    Entry& entry = window_.emplace_back();
    entry.item = std::move(item);
    if (entry.item.error) {
      entry.done = true;
      return;
    }
    HttpRequest request;
    request.method = "POST";
    request.path = entry.item.url;
    request.headers = {{"content-type", "application/json"}};
    request.body = std::move(entry.item.body);
    request.received = Clock::now();
    router_.begin(request);
    entry.answer.request_id = request.request_id;
    if (auto refused = router_.refuse(request)) {
      entry.answer.status = refused->status;
      entry.answer.body = std::move(refused->body);
      entry.done = true;
      return;
    }
    const std::int64_t line = entry.item.line;
    std::function<void()> wake = [wakeups = wakeups_, line] {
      const std::lock_guard lock(wakeups->mutex);
      wakeups->lines.push_back(line);
      wakeups->changed.notify_one();
    };
    entry.exchange = std::make_shared<Exchange>(std::move(request), std::move(wake));
    router_.handle(entry.exchange);
  }

  // Waits for output, not for long, and takes it.
  void collect() {
    std::vector<std::int64_t> lines;
    {
      std::unique_lock lock(wakeups_->mutex);
      if (!window_.front().done) {
        wakeups_->changed.wait_for(lock, kProgressInterval,
                                   [this] { return !wakeups_->lines.empty(); });
      }
      lines.swap(wakeups_->lines);
    }
    for (Entry& entry : window_) {
      if (entry.done || std::ranges::count(lines, entry.item.line) == 0) continue;
      Exchange::Output output = entry.exchange->take();
      if (output.head) entry.answer.status = output.head->status;
      entry.answer.body += output.bytes;
      if (!output.ended) continue;
      entry.exchange->close(false);
      entry.exchange.reset();
      entry.done = true;
    }
  }

  Status write_finished() {
    while (!window_.empty() && window_.front().done) {
      const Entry& entry = window_.front();
      const bool sent = !entry.item.error.has_value();
      ++(sent && entry.answer.status == 200 ? counts_.answered : counts_.failed);
      RETURN_IF_ERROR(work_.write(sent ? answered(entry)
                                       : batch_entry(entry.item, *entry.item.error, make_id())));
      window_.pop_front();
    }
    return {};
  }

  // An answer is one line of JSON, whatever the route sent.
  std::string answered(const Entry& entry) {
    BatchAnswer answer = entry.answer;
    const auto json = JsonDocument::parse(answer.body, context_.json_limits());
    if (!json) {
      return batch_entry(
          entry.item,
          BatchError{"invalid_answer", "the answer is no JSON: " + json.error().message(), ""},
          make_id());
    }
    if (answer.body.find('\n') != std::string::npos) {
      answer.body.clear();
      json->root().print(answer.body);
    }
    return batch_entry(entry.item, answer, make_id());
  }

  std::string make_id() { return fmt::format("batch_req_{:016x}{:016x}", random_(), random_()); }

  void report(bool at_end) {
    const Clock::time_point now = Clock::now();
    if (!work_.progress || (!at_end && now - reported_ < kProgressInterval)) return;
    reported_ = now;
    work_.progress(counts_);
  }

  const BatchWork work_;
  const std::shared_ptr<Wakeups> wakeups_ = std::make_shared<Wakeups>();
  ServerContext context_;
  Router router_;
  std::deque<Entry> window_;  // in the order of the lines
  BatchCounts counts_;
  Clock::time_point reported_ = Clock::now();
  std::mt19937_64 random_{std::random_device{}()};
};

}  // namespace

Result<BatchCounts> run_batch(BatchReader& reader, BatchWork work) {
  Runner runner(std::move(work));
  return runner.run(reader);
}

}  // namespace kun
