// A pull: list the repository, choose files, check the disk, fetch what is missing one file after
// the other. One pull of a model at a time, held by a lock file in its folder.
#include "hub/hub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/kun_home.h"
#include "hub/bundled_model.h"
#include "hub/download.h"
#include "hub/file_list.h"
#include "hub/http_fetch.h"
#include "hub/hub_paths.h"
#include "hub/pull_record.h"

namespace kun {
namespace {

constexpr std::size_t kListBytesMax = 64U << 20U;
constexpr int kListPagesMax = 200;
constexpr const char* kPublicEndpoint = "https://huggingface.co";
constexpr std::chrono::milliseconds kProgressInterval{100};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// A lock on the model's folder, let go of at the end.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder)
      : descriptor_(
            ::open((folder / ".kun-pull.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)),
        held_(descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {}
  ~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return held_; }

 private:
  const int descriptor_;
  const bool held_;
};

class Pull {
 public:
  Pull(std::string_view name, const HubOptions& options, const PullProgressFunction& progress)
      : name_(name), options_(options), progress_(progress) {
    if (options_.endpoint.empty()) options_.endpoint = environment("HF_ENDPOINT");
    if (options_.endpoint.empty()) options_.endpoint = kPublicEndpoint;
    while (options_.endpoint.ends_with('/')) options_.endpoint.pop_back();
    if (options_.token.empty()) options_.token = environment("HF_TOKEN");
    if (options_.home.empty()) options_.home = kun_home();
    folder_ = options_.home / "models" / name_;
  }

  Result<PulledModel> run() {
    if (const BundledModel* bundled = find_bundled_model(name_)) {
      return unpack_bundled_model(*bundled, folder_);
    }
    RETURN_IF_ERROR(check_model_name(name_));
    RETURN_IF_ERROR(check_revision(options_.revision));
    ASSIGN_OR_RETURN(const std::vector<HubFile> listed, list_files());
    ASSIGN_OR_RETURN(files_, select_files(listed, options_.pattern));
    RETURN_IF_ERROR(make_folder(folder_));
    const FolderLock lock(folder_);
    if (!lock.held()) {
      return unavailable(
          fmt::format("{} is locked: another pull of {} is running", folder_.string(), name_));
    }
    PullRecord record(folder_);
    RETURN_IF_ERROR(check_space(record));
    RETURN_IF_ERROR(fetch_all(record));
    return result();
  }

 private:
  std::string api_url(std::string_view kind) const {
    return fmt::format("{}/api/models/{}/{}/{}", options_.endpoint, url_encode(name_, true), kind,
                       url_encode(options_.revision, false));
  }

  std::string file_url(const HubFile& file) const {
    return fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, url_encode(name_, true),
                       url_encode(options_.revision, false), url_encode(file.path, true));
  }

  // A small document; its next page goes to `next_url`. kNotFound for 401, 403 and 404.
  Result<std::string> get_text(const std::string& url, std::string& next_url) const {
    std::string text;
    const HttpFetch request = {.url = url,
                               .token = options_.token,
                               .first_byte = 0,
                               .connect_seconds = options_.connect_seconds,
                               .stall_seconds = options_.stall_seconds};
    auto reply = http_fetch(request, [&](const HttpReply&, std::string_view piece) -> Status {
      if (piece.size() > kListBytesMax - text.size()) {
        return data_loss("the hub's list of files is too long");
      }
      text += piece;
      return {};
    });
    if (!reply) return reply.error();
    next_url = reply->next_url;
    if (reply->status == 200) return text;
    const std::string said =
        reply->server_message.empty() ? "" : fmt::format(" ({})", reply->server_message);
    std::string message =
        fmt::format("GET {} was answered with status {}{}", url, reply->status, said);
    if (reply->status == 401 || reply->status == 403) {
      return not_found(
          fmt::format("no access to {}: it does not exist, or needs a token that may "
                      "read it in HF_TOKEN; {}",
                      name_, message));
    }
    if (reply->status == 404) return not_found(std::move(message));
    const bool passing = reply->status == 429 || reply->status == 408 || reply->status >= 500;
    return passing ? unavailable(std::move(message)) : invalid_argument(std::move(message));
  }

  Result<std::string> get_text_patiently(const std::string& url, std::string& next_url) const {
    double wait_seconds = options_.retry_seconds;
    for (int attempt = 1;; ++attempt) {
      auto text = get_text(url, next_url);
      const bool again = !text.has_value() && text.error().code() == StatusCode::kUnavailable;
      if (!again || attempt >= options_.attempts_max) return text;
      std::this_thread::sleep_for(std::chrono::duration<double>(wait_seconds));
      wait_seconds *= 2;
    }
  }

  Result<std::vector<HubFile>> list_files() const {
    std::vector<HubFile> files;
    std::string url = api_url("tree") + "?recursive=1";
    for (int page = 0; !url.empty(); ++page) {
      std::string next_url;
      auto text = get_text_patiently(url, next_url);
      if (!text && page == 0 && text.error().code() == StatusCode::kNotFound)
        return list_siblings();
      if (!text) return text.error();
      RETURN_IF_ERROR(parse_tree_page(*text, files));
      // The token goes along, so a page must lie where the first one did.
      const bool same_host = next_url.empty() || next_url.starts_with(options_.endpoint + "/");
      if (!same_host || page >= kListPagesMax)
        return data_loss("the hub's list of files never ends");
      url = next_url;
    }
    return files;
  }

  // Not every mirror has /tree.
  Result<std::vector<HubFile>> list_siblings() const {
    std::string next_url;
    ASSIGN_OR_RETURN(const std::string text, get_text_patiently(api_url("revision"), next_url));
    return parse_siblings(text);
  }

  static Status make_folder(const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (!error) return {};
    return internal_error(fmt::format("cannot create {}: {}", folder.string(), error.message()));
  }

  Status check_space(const PullRecord& record) {
    std::uint64_t missing = 0;
    for (const HubFile& file : files_) {
      total_bytes_ += file.bytes;
      if (record.holds(file)) continue;
      std::error_code error;
      const auto partial =
          std::filesystem::file_size((folder_ / file.path).string() + ".partial", error);
      missing += file.bytes - (error ? 0 : std::min<std::uint64_t>(partial, file.bytes));
    }
    std::error_code error;
    const auto space = std::filesystem::space(folder_, error);
    if (error || missing == 0 || space.available >= missing + options_.spare_bytes) return {};
    return resource_exhausted(
        fmt::format("{} needs {} more bytes and {} has {} free, of which {} are to stay so", name_,
                    missing, folder_.string(), space.available, options_.spare_bytes));
  }

  Status fetch_all(PullRecord& record) {
    std::uint64_t done_bytes = 0;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const HubFile& file = files_[i];
      RETURN_IF_ERROR(report(i, done_bytes, true));
      const std::filesystem::path target = folder_ / file.path;
      if (!record.holds(file)) {
        RETURN_IF_ERROR(fetch(i, target, done_bytes));
        RETURN_IF_ERROR(record.add(file));
      }
      done_bytes += file.bytes;
    }
    return files_.empty() ? Status() : report(files_.size() - 1, done_bytes, true);
  }

  Status fetch(std::size_t index, const std::filesystem::path& target, std::uint64_t done_bytes) {
    const HubFile& file = files_[index];
    RETURN_IF_ERROR(make_folder(target.parent_path()));
    // Put here by hand, or by a pull that ended before it was recorded.
    if (file.digest_kind != DigestKind::kNone && matches_file(target, file)) return {};
    const Download download = {
        .url = file_url(file), .token = options_.token, .file = file, .target = target};
    ASSIGN_OR_RETURN(const std::uint64_t bytes,
                     download_file(download, options_, [&](std::uint64_t file_bytes) {
                       return report(index, done_bytes + file_bytes, false).ok();
                     }));
    fetched_bytes_ += bytes;
    return {};
  }

  Status report(std::size_t index, std::uint64_t done_bytes, bool always) {
    const auto now = std::chrono::steady_clock::now();
    if (!progress_ || (!always && now - reported_ < kProgressInterval)) return {};
    reported_ = now;
    const PullProgress progress = {.file = files_[index].path,
                                   .file_index = static_cast<int>(index),
                                   .file_count = static_cast<int>(files_.size()),
                                   .done_bytes = done_bytes,
                                   .total_bytes = total_bytes_};
    return progress_(progress) ? Status() : cancelled("the pull was cancelled");
  }

  PulledModel result() const {
    PulledModel model = {.path = folder_, .files = {}, .fetched_bytes = fetched_bytes_};
    bool has_safetensors = false;
    std::string gguf;
    for (const HubFile& file : files_) {
      model.files.push_back(file.path);
      has_safetensors = has_safetensors || file.path.ends_with(".safetensors");
      if (gguf.empty() && file.path.ends_with(".gguf")) gguf = file.path;
    }
    if (!has_safetensors && !gguf.empty()) model.path = folder_ / gguf;
    return model;
  }

  const std::string name_;
  HubOptions options_;
  const PullProgressFunction& progress_;
  std::filesystem::path folder_;
  std::vector<HubFile> files_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t fetched_bytes_ = 0;
  std::chrono::steady_clock::time_point reported_;
};

}  // namespace

Result<PulledModel> pull_model(std::string_view name, const HubOptions& options,
                               const PullProgressFunction& progress) {
  return Pull(name, options, progress).run();
}

}  // namespace kun
