// kun pull: brings a model's files from a Hugging-Face-style hub to this machine. Downloads resume
// where they stopped, are checked against the hub's digests before they get their final name, and
// never leave the model's own folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kun {

// What a file must be. The hub knows the SHA-256 of large files and git's blob id of small ones.
enum class DigestKind { kNone, kSha256, kGitBlob };

struct HubFile {
  std::string path;  // in the repository, "/" between folders
  std::uint64_t bytes = 0;
  bool bytes_known = false;
  DigestKind digest_kind = DigestKind::kNone;
  std::string digest;  // lower-case hexadecimal
};

struct HubOptions {
  std::string endpoint;        // empty: $HF_ENDPOINT, or the public hub
  std::string token;           // empty: $HF_TOKEN, or none
  std::filesystem::path home;  // empty: $KUN_HOME, or ~/.cache/kun
  std::string revision = "main";
  std::string pattern;   // of files to fetch, as in a shell ("*Q4_K_M.gguf"); empty: what is needed
  int attempts_max = 5;  // in a row that bring nothing
  double retry_seconds = 1.0;  // before the second attempt; doubles, up to 16 times as much
  double connect_seconds = 20.0;
  double stall_seconds = 60.0;              // without a byte, then the attempt is given up
  std::uint64_t spare_bytes = 256U << 20U;  // to be left free on the disk
};

struct PullProgress {
  std::string_view file;
  int file_index = 0, file_count = 0;
  std::uint64_t done_bytes = 0, total_bytes = 0;  // of all files together
};
// Called from the pulling thread, at most about ten times a second. False ends the pull with
// kCancelled; what has arrived stays and is resumed from.
using PullProgressFunction = std::function<bool(const PullProgress&)>;

struct PulledModel {
  std::filesystem::path path;  // what the model is opened by: the folder, or its (first) GGUF file
  std::vector<std::string> files;
  std::uint64_t fetched_bytes = 0;  // over the network, this time
};

// `name` is "org/name". kNotFound: the hub does not have it, or not for this token.
// kInvalidArgument: several models match (the message lists them), or the name is unusable.
// kDataLoss: the bytes are not what the hub says. kUnavailable: the network failed to the end.
Result<PulledModel> pull_model(std::string_view name, const HubOptions& options,
                               const PullProgressFunction& progress);

}  // namespace kun
