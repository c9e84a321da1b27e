// A download keeps what it has in a .partial file. A later attempt reads it again to continue the
// digest, asks for the rest, and starts over if the server will not give just that.
#include "hub/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "hub/digest.h"
#include "hub/http_fetch.h"

namespace kun {
namespace {

constexpr int kAttemptsMax = 1000;  // in all, however much each brings
constexpr double kBackoffFactorMax = 16.0;
constexpr std::size_t kReadBytes = 1U << 20U;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

Status disk_error(const std::filesystem::path& path, std::string_view verb) {
  const int error = errno;
  std::string message = fmt::format("cannot {} {}: {}", verb, path.string(), std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? resource_exhausted(std::move(message))
                                            : internal_error(std::move(message));
}

Status write_all(int descriptor, std::string_view piece, const std::filesystem::path& path) {
  while (!piece.empty()) {
    const ssize_t written = ::write(descriptor, piece.data(), piece.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return disk_error(path, "write");
    piece.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

// Feeds what is in the file to `digest`; how many bytes that is.
Result<std::uint64_t> digest_file(int descriptor, const std::filesystem::path& path,
                                  Digest& digest) {
  std::vector<char> buffer(kReadBytes);
  std::uint64_t total = 0;
  while (true) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return disk_error(path, "read");
    if (count == 0) return total;
    digest.update({buffer.data(), static_cast<std::size_t>(count)});
    total += static_cast<std::uint64_t>(count);
  }
}

// One attempt: the .partial file, how much of it there is, and its digest so far.
class Attempt {
 public:
  Attempt(const Download& download, const HubOptions& options, const DownloadProgress& progress)
      : download_(download),
        options_(options),
        progress_(progress),
        partial_(download.target.string() + ".partial"),
        descriptor_(::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644)) {}

  // Asks for what is missing. What can be tried again is kUnavailable.
  Status run() {
    RETURN_IF_ERROR(take_up());
    if (!is_complete()) RETURN_IF_ERROR(fetch());
    return verify();
  }

  std::uint64_t fetched_bytes() const { return fetched_bytes_; }

 private:
  const HubFile& file() const { return download_.file; }
  bool is_complete() const { return file().bytes_known && bytes_ == file().bytes; }

  Status take_up() {
    if (descriptor_.get() < 0) return disk_error(partial_, "open");
    struct stat info {};
    if (::fstat(descriptor_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
      return internal_error(fmt::format("{} is not a regular file", partial_.string()));
    }
    const auto size = static_cast<std::uint64_t>(info.st_size);
    // What cannot be verified in the end cannot be resumed either: it may have changed meanwhile.
    const bool resumable = file().digest_kind != DigestKind::kNone && size <= file().bytes;
    if (!resumable) return start_over();
    digest_.emplace(file().digest_kind, file().bytes);
    ASSIGN_OR_RETURN(bytes_, digest_file(descriptor_.get(), partial_, *digest_));
    return {};
  }

  Status start_over() {
    if (::ftruncate(descriptor_.get(), 0) != 0 || ::lseek(descriptor_.get(), 0, SEEK_SET) != 0) {
      return disk_error(partial_, "truncate");
    }
    bytes_ = 0;
    digest_.emplace(file().digest_kind, file().bytes);
    return {};
  }

  Status fetch() {
    const HttpFetch request = {.url = download_.url,
                               .token = download_.token,
                               .first_byte = bytes_,
                               .connect_seconds = options_.connect_seconds,
                               .stall_seconds = options_.stall_seconds};
    bool first_piece = true;
    auto reply = http_fetch(request, [&](const HttpReply& head, std::string_view piece) -> Status {
      if (first_piece) RETURN_IF_ERROR(begin(head));
      first_piece = false;
      return append(piece);
    });
    if (!reply) return reply.error();
    return judge(*reply);
  }

  Status begin(const HttpReply& head) {
    if (head.status == 206 && head.first_byte == bytes_) return {};
    if (head.status == 200) return bytes_ == 0 ? Status() : start_over();
    RETURN_IF_ERROR(start_over());
    return unavailable(
        fmt::format("the server sent another part of {} than asked for", file().path));
  }

  Status append(std::string_view piece) {
    if (file().bytes_known && piece.size() > file().bytes - bytes_) {
      RETURN_IF_ERROR(start_over());
      return data_loss(fmt::format("the server sends more of {} than the {} bytes it has",
                                   file().path, file().bytes));
    }
    RETURN_IF_ERROR(write_all(descriptor_.get(), piece, partial_));
    digest_->update(piece);
    bytes_ += piece.size();
    fetched_bytes_ += piece.size();
    if (!progress_(bytes_)) return cancelled("the download was cancelled");
    return {};
  }

  Status judge(const HttpReply& reply) {
    const std::string said =
        reply.server_message.empty() ? "" : fmt::format(" ({})", reply.server_message);
    const std::string message =
        fmt::format("GET {} was answered with status {}{}", download_.url, reply.status, said);
    switch (reply.status) {
      case 200:
      case 206: return {};
      case 401:
      case 403:
        return not_found(message +
                         "; if access is restricted, set HF_TOKEN to a token that has it");
      case 404: return not_found(message);
      case 416: {
        RETURN_IF_ERROR(start_over());
        return unavailable(message);
      }
      case 408:
      case 429: return unavailable(message);
      default: break;
    }
    return reply.status >= 500 ? unavailable(message) : invalid_argument(message);
  }

  Status verify() {
    if (file().bytes_known && bytes_ != file().bytes) {
      return unavailable(fmt::format("the connection ended after {} of the {} bytes of {}", bytes_,
                                     file().bytes, file().path));
    }
    if (digest_->finish() != file().digest) {
      RETURN_IF_ERROR(start_over());
      return data_loss(
          fmt::format("{} is not what the hub says it is: its checksum differs", file().path));
    }
    if (::fsync(descriptor_.get()) != 0) return disk_error(partial_, "write");
    if (::rename(partial_.c_str(), download_.target.c_str()) != 0) {
      return disk_error(download_.target, "create");
    }
    return {};
  }

  const Download& download_;
  const HubOptions& options_;
  const DownloadProgress& progress_;
  const std::filesystem::path partial_;
  const Descriptor descriptor_;
  std::optional<Digest> digest_;
  std::uint64_t bytes_ = 0;
  std::uint64_t fetched_bytes_ = 0;
};

void back_off(const HubOptions& options, int failures) {
  const double factor =
      std::min(kBackoffFactorMax, static_cast<double>(1U << std::min(failures - 1, 10)));
  std::this_thread::sleep_for(std::chrono::duration<double>(options.retry_seconds * factor));
}

}  // namespace

Result<std::uint64_t> download_file(const Download& download, const HubOptions& options,
                                    const DownloadProgress& progress) {
  std::uint64_t fetched = 0;
  int failures = 0;  // in a row, without a byte
  int checksum_failures = 0;
  for (int attempt_count = 1;; ++attempt_count) {
    Attempt attempt(download, options, progress);
    const Status status = attempt.run();
    fetched += attempt.fetched_bytes();
    if (status.ok()) return fetched;
    // Damage in transit, or of the .partial file, heals by starting over; a wrong file does not.
    const bool damaged = status.code() == StatusCode::kDataLoss;
    if (damaged && ++checksum_failures > 1) return status;
    if (!damaged && status.code() != StatusCode::kUnavailable) return status;
    failures = attempt.fetched_bytes() > 0 ? 1 : failures + 1;
    if (failures >= options.attempts_max || attempt_count >= kAttemptsMax) {
      return Status(status.code(), fmt::format("{}; gave up after {} attempts, run it again to "
                                               "continue from here",
                                               status.message(), attempt_count));
    }
    back_off(options, failures);
  }
}

bool matches_file(const std::filesystem::path& path, const HubFile& file) {
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (descriptor.get() < 0 || ::fstat(descriptor.get(), &info) != 0) return false;
  if (!S_ISREG(info.st_mode) || !file.bytes_known) return false;
  if (static_cast<std::uint64_t>(info.st_size) != file.bytes) return false;
  Digest digest(file.digest_kind, file.bytes);
  const auto bytes = digest_file(descriptor.get(), path, digest);
  return bytes.has_value() && digest.finish() == file.digest;
}

}  // namespace kun
