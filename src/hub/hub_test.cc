// Pulls from a hub that lives in this process and behaves as badly as networks and strangers do.
#include "hub/hub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "hub/digest.h"
#include "hub/fake_hub.h"
#include "hub/file_list.h"
#include "hub/hub_paths.h"

namespace kun {
namespace {

namespace fs = std::filesystem;

std::string digest_of(DigestKind kind, std::string_view content) {
  Digest digest(kind, content.size());
  digest.update(content.substr(0, content.size() / 2));
  digest.update(content.substr(content.size() / 2));
  return digest.finish();
}

std::string pseudo_random(std::size_t size) {
  std::string text(size, '\0');
  unsigned state = 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525U + 1013904223U) >> 24U);
  return text;
}

// A repository of one model; weights count as LFS files.
class Repository {
 public:
  void add(const std::string& path, std::string content) { files_[path] = std::move(content); }

  bool has(const std::string& path) const { return files_.contains(path); }
  const std::string& content(const std::string& path) const { return files_.at(path); }

  std::string tree() const {
    std::string list;
    for (const auto& [path, content] : files_) {
      const bool lfs = path.ends_with(".safetensors") || path.ends_with(".gguf");
      const std::string extra =
          lfs ? fmt::format(R"(,"lfs":{{"oid":"{}","size":{},"pointerSize":135}})",
                            digest_of(DigestKind::kSha256, content), content.size())
              : "";
      list += fmt::format(R"({}{{"type":"file","oid":"{}","size":{},"path":"{}"{}}})",
                          list.empty() ? "" : ",", digest_of(DigestKind::kGitBlob, content),
                          content.size(), path, extra);
    }
    return "[" + list + R"(,{"type":"directory","oid":"","size":0,"path":"original"}])";
  }

 private:
  std::map<std::string, std::string> files_;
};

Repository small_model() {
  Repository repository;
  repository.add("config.json", R"({"model_type": "llama"})");
  repository.add("tokenizer.json", "{}");
  repository.add("README.md", "read me");
  repository.add("model.safetensors", pseudo_random(300'000));
  repository.add("original/consolidated.safetensors", "not needed");
  repository.add("consolidated.safetensors", "not needed");
  return repository;
}

constexpr const char* kTree = "/api/models/org/name/tree/main?recursive=1";
constexpr const char* kResolve = "/org/name/resolve/main/";

class HubTest : public testing::Test {
 protected:
  HubTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    home_ = fs::path(testing::TempDir()) / fmt::format("kun_hub_{}_{}", info->name(), ::getpid());
    fs::remove_all(home_);
    options_.home = home_;
    options_.retry_seconds = 0.01;
    options_.attempts_max = 3;
    options_.token = "secret";
    options_.spare_bytes = 0;
  }
  ~HubTest() override { fs::remove_all(home_); }

  FakeReply answer(const FakeRequest& request) const {
    if (request.path == kTree) return {.body = repository_.tree(), .headers = {}};
    if (request.path.starts_with(kResolve)) {
      const std::string path = request.path.substr(std::string(kResolve).size());
      if (repository_.has(path)) return {.body = repository_.content(path), .headers = {}};
    }
    return {.status = 404, .body = "no", .headers = {"X-Error-Message: no such thing"}};
  }

  Result<PulledModel> pull(const FakeHub& hub, const PullProgressFunction& progress = {}) {
    options_.endpoint = hub.endpoint();
    return pull_model("org/name", options_, progress);
  }

  fs::path folder() const { return home_ / "models/org/name"; }
  fs::path weights() const { return folder() / "model.safetensors"; }

  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void expect_weights_arrived() const {
    EXPECT_TRUE(read(weights()) == repository_.content("model.safetensors"));
    EXPECT_FALSE(fs::exists(weights().string() + ".partial"));
  }

  Repository repository_ = small_model();
  HubOptions options_;
  fs::path home_;
};

TEST_F(HubTest, BringsWhatAModelNeedsAndNoMore) {
  const FakeHub hub([&](const FakeRequest& request) { return answer(request); });
  std::uint64_t done = 0, total = 0;
  const auto model = pull(hub, [&](const PullProgress& progress) {
    EXPECT_GE(progress.done_bytes, done);
    done = progress.done_bytes;
    total = progress.total_bytes;
    return true;
  });
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_EQ(model->path, folder());
  EXPECT_EQ(model->files,
            (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
  expect_weights_arrived();
  EXPECT_EQ(read(folder() / "config.json"), R"({"model_type": "llama"})");
  EXPECT_FALSE(fs::exists(folder() / "README.md"));
  EXPECT_FALSE(fs::exists(folder() / "original"));
  EXPECT_EQ(model->fetched_bytes, 300'025U);
  EXPECT_EQ(done, 300'025U);
  EXPECT_EQ(total, 300'025U);
  EXPECT_EQ(hub.requests(kTree).at(0).token, "Bearer secret");
}

TEST_F(HubTest, FetchesNothingTwice) {
  const FakeHub hub([&](const FakeRequest& request) { return answer(request); });
  ASSERT_TRUE(pull(hub).has_value());
  fs::remove(folder() / ".kun-pull");  // even without its record
  ASSERT_TRUE(pull(hub).has_value());
  const auto again = pull(hub);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->fetched_bytes, 0U);
  EXPECT_EQ(hub.requests("model.safetensors").size(), 1U);
}

TEST_F(HubTest, ReplacesAFileThatChangedAtTheHub) {
  const FakeHub hub([&](const FakeRequest& request) { return answer(request); });
  ASSERT_TRUE(pull(hub).has_value());
  repository_.add("config.json", R"({"model_type": "qwen2"})");  // of the same size
  const auto again = pull(hub);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(read(folder() / "config.json"), R"({"model_type": "qwen2"})");
  EXPECT_EQ(again->fetched_bytes, 23U);
}

TEST_F(HubTest, ContinuesWhereTheConnectionBroke) {
  std::atomic<int> cuts = 0;
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = answer(request);
    if (request.path.ends_with("model.safetensors") && cuts++ < 4) reply.cut_after = 60'000;
    return reply;
  });
  const auto model = pull(hub);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  expect_weights_arrived();
  EXPECT_EQ(model->fetched_bytes, 300'025U);
  const auto requests = hub.requests("model.safetensors");
  ASSERT_EQ(requests.size(), 5U);
  EXPECT_FALSE(requests[0].first_byte.has_value());
  EXPECT_EQ(requests[1].first_byte, 60'000U);
  EXPECT_EQ(requests[4].first_byte, 240'000U);
}

TEST_F(HubTest, ContinuesWhereAnEarlierPullWasCancelled) {
  const FakeHub hub([&](const FakeRequest& request) { return answer(request); });
  const auto cancelled = pull(hub, [&](const PullProgress& progress) {
    return progress.file_index < 2;  // before tokenizer.json, the last
  });
  ASSERT_FALSE(cancelled.has_value());
  EXPECT_EQ(cancelled.error().code(), StatusCode::kCancelled);
  fs::remove(folder() / ".kun-pull");
  fs::rename(weights(), weights().string() + ".partial");
  fs::resize_file(weights().string() + ".partial", 100'000);
  const auto model = pull(hub);
  ASSERT_TRUE(model.has_value());
  expect_weights_arrived();
  EXPECT_EQ(model->fetched_bytes, 200'002U);
  EXPECT_EQ(hub.requests("model.safetensors").at(1).first_byte, 100'000U);
}

TEST_F(HubTest, StartsOverWhenTheServerIgnoresRanges) {
  std::atomic<int> count = 0;
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = answer(request);
    reply.honours_range = false;
    if (request.path.ends_with("model.safetensors") && count++ == 0) reply.cut_after = 1000;
    return reply;
  });
  ASSERT_TRUE(pull(hub).has_value());
  expect_weights_arrived();
}

TEST_F(HubTest, StartsOverWhenThePartialFileIsDamaged) {
  const FakeHub hub([&](const FakeRequest& request) { return answer(request); });
  fs::create_directories(folder());
  std::ofstream(weights().string() + ".partial") << std::string(5000, 'x');
  ASSERT_TRUE(pull(hub).has_value());
  expect_weights_arrived();
}

TEST_F(HubTest, RefusesBytesThatAreNotWhatTheHubSays) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = answer(request);
    if (request.path.ends_with("model.safetensors")) reply.body[7] ^= 1;
    return reply;
  });
  const auto model = pull(hub);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kDataLoss) << model.error().message();
  EXPECT_NE(model.error().message().find("model.safetensors"), std::string::npos);
  EXPECT_FALSE(fs::exists(weights()));
  EXPECT_EQ(hub.requests("model.safetensors").size(), 2U);
}

TEST_F(HubTest, RefusesAFileThatIsLongerThanListed) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = answer(request);
    if (request.path.ends_with("config.json")) reply.body += std::string(100'000, 'x');
    return reply;
  });
  const auto model = pull(hub);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kDataLoss) << model.error().message();
  EXPECT_FALSE(fs::exists(folder() / "config.json"));
}

TEST_F(HubTest, TriesAgainWhileTheServerIsBusyAndGivesUpInTheEnd) {
  std::atomic<int> failures = 2;
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.path.ends_with("config.json") && failures-- > 0) {
      return FakeReply{.status = 503, .body = "", .headers = {}};
    }
    return answer(request);
  });
  ASSERT_TRUE(pull(hub).has_value());
  fs::remove_all(folder());
  failures = 1000;
  const auto model = pull(hub);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kUnavailable);
  EXPECT_NE(model.error().message().find("503"), std::string::npos) << model.error().message();
  EXPECT_EQ(hub.requests("config.json").size(), 3U + 3U);
}

TEST_F(HubTest, GivesUpOnSilence) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = answer(request);
    if (request.path == kTree) reply.stall_ms = 3500;
    return reply;
  });
  options_.stall_seconds = 1;
  options_.attempts_max = 1;
  const auto model = pull(hub);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kUnavailable) << model.error().message();
}

TEST_F(HubTest, FollowsRedirectsAndKeepsTheTokenToItself) {
  const FakeHub storage([&](const FakeRequest& request) {
    FakeReply reply = {.body = repository_.content("model.safetensors"), .headers = {}};
    if (!request.first_byte) reply.cut_after = 1234;
    return reply;
  });
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.path.ends_with("model.safetensors")) {
      return FakeReply{.status = 302,
                       .body = "elsewhere",
                       .headers = {"Location: " + storage.endpoint() + "/blob?signature=x"}};
    }
    return answer(request);
  });
  ASSERT_TRUE(pull(hub).has_value());
  expect_weights_arrived();
  const auto requests = storage.requests("/blob?signature=x");
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[1].first_byte, 1234U);
  EXPECT_EQ(requests[0].token, "");
  EXPECT_EQ(hub.requests("model.safetensors").at(0).token, "Bearer secret");
}

TEST_F(HubTest, DoesNotFollowRedirectsForEverOrToOtherSchemes) {
  std::string location;
  const FakeHub hub([&](const FakeRequest&) {
    return FakeReply{.status = 302, .body = "", .headers = {"Location: " + location}};
  });
  for (const std::string& target : {hub.endpoint() + "/again", std::string("file:///etc/passwd")}) {
    location = target;
    const auto model = pull(hub);
    ASSERT_FALSE(model.has_value());
    EXPECT_EQ(model.error().code(), StatusCode::kInvalidArgument) << model.error().message();
  }
  EXPECT_LE(hub.requests().size(), 20U);
}

TEST_F(HubTest, SaysWhenThereIsNoSuchModelOrNoAccess) {
  int status = 404;
  const FakeHub hub([&](const FakeRequest&) {
    return FakeReply{.status = status, .body = "", .headers = {"X-Error-Message: Gated repo"}};
  });
  const auto missing = pull(hub);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  status = 401;
  const auto closed = pull(hub);
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code(), StatusCode::kNotFound);
  EXPECT_NE(closed.error().message().find("HF_TOKEN"), std::string::npos);
  EXPECT_NE(closed.error().message().find("Gated repo"), std::string::npos);
  EXPECT_EQ(closed.error().message().find("secret"), std::string::npos);
}

TEST_F(HubTest, SaysWhenNobodyAnswers) {
  options_.endpoint = "http://127.0.0.1:1";
  const auto model = pull_model("org/name", options_, {});
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kUnavailable) << model.error().message();
}

TEST_F(HubTest, NeverLeavesTheModelsFolder) {
  for (const char* path : {"../config.json", "/etc/config.json", "a/../../config.json", "a//b",
                           "a\\\\b", "", ".", "a/..", "a\\u0000b", "a\\nb"}) {
    const FakeHub hub([&](const FakeRequest&) {
      return FakeReply{.body = fmt::format(R"([{{"type":"file","path":"{}","size":1}}])", path),
                       .headers = {}};
    });
    const auto model = pull(hub);
    ASSERT_FALSE(model.has_value()) << path;
    EXPECT_EQ(model.error().code(), StatusCode::kDataLoss) << model.error().message();
  }
  for (const char* name : {"", "name", "../name", "org/..", "org/name/more", "/org/name",
                           "org/na me", ".org/name", "org/a..b", "org/name?x", "org\\name/x"}) {
    const auto model = pull_model(name, options_, {});
    ASSERT_FALSE(model.has_value()) << name;
    EXPECT_EQ(model.error().code(), StatusCode::kInvalidArgument);
  }
  options_.revision = "../../main";
  EXPECT_EQ(pull_model("org/name", options_, {}).error().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(home_));
}

TEST_F(HubTest, RefusesListsThatMakeNoSense) {
  for (const char* list :
       {"", "{}", "[1]", "[{}]", R"([{"type":"file"}])", R"([{"type":"file","path":"a"}])",
        R"([{"type":"file","path":"a","size":-1}])",
        R"([{"type":"file","path":"a","size":99999999999999999}])",
        R"([{"type":"file","path":"a","size":1,"lfs":{"oid":"x","size":1}}])", "[[[[", "\xff"}) {
    const FakeHub hub([&](const FakeRequest&) { return FakeReply{.body = list, .headers = {}}; });
    const auto model = pull(hub);
    ASSERT_FALSE(model.has_value()) << list;
    EXPECT_EQ(model.error().code(), StatusCode::kDataLoss) << model.error().message();
  }
}

TEST_F(HubTest, ReadsListsOfSeveralPages) {
  const std::string tree = repository_.tree();
  const std::size_t cut = tree.find(R"(,{"type":"file")", tree.size() / 2);
  std::string endpoint;
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.path == kTree) {
      return FakeReply{.body = tree.substr(0, cut) + "]",
                       .headers = {"Link: <" + endpoint + "/page2>; rel=\"next\""}};
    }
    if (request.path == "/page2")
      return FakeReply{.body = "[" + tree.substr(cut + 1), .headers = {}};
    return answer(request);
  });
  endpoint = hub.endpoint();
  ASSERT_TRUE(pull(hub).has_value());
  expect_weights_arrived();
  fs::remove_all(folder());
  endpoint = "http://127.0.0.1:1";  // the token must not go there
  EXPECT_EQ(pull(hub).error().code(), StatusCode::kDataLoss);
}

TEST_F(HubTest, MakesDoWithNamesWhereTheHubHasNoTree) {
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.path == "/api/models/org/name/revision/main") {
      return FakeReply{.body = R"({"siblings":[{"rfilename":"config.json"},)"
                               R"({"rfilename":"model.safetensors"},{"rfilename":"x.md"}]})",
                       .headers = {}};
    }
    return request.path == kTree ? FakeReply{.status = 404, .body = "", .headers = {}}
                                 : answer(request);
  });
  const auto model = pull(hub);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  expect_weights_arrived();
}

TEST_F(HubTest, LeavesRoomOnTheDisk) {
  const FakeHub hub([&](const FakeRequest& request) { return answer(request); });
  options_.spare_bytes = std::uint64_t{1} << 60U;
  const auto model = pull(hub);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(hub.requests("/resolve/").empty());
}

TEST_F(HubTest, LetsOnePullOfAModelRunAtATime) {
  const FakeHub hub([&](const FakeRequest& request) { return answer(request); });
  fs::create_directories(folder());
  const int lock = ::open((folder() / ".kun-pull.lock").c_str(), O_RDWR | O_CREAT, 0644);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  const auto model = pull(hub);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kUnavailable);
  ::close(lock);
  EXPECT_TRUE(pull(hub).has_value());
}

std::vector<std::string> selected(const std::vector<std::string>& paths, const std::string& pattern,
                                  std::string* error = nullptr) {
  std::vector<HubFile> files;
  for (const std::string& path : paths) {
    HubFile file;
    file.path = path;
    files.push_back(file);
  }
  const auto chosen = select_files(files, pattern);
  std::vector<std::string> result;
  if (chosen) {
    for (const HubFile& file : *chosen) result.push_back(file.path);
  } else if (error != nullptr) {
    *error = chosen.error().message();
  }
  return result;
}

TEST(SelectFiles, AsksWhichOfSeveralGgufModelsIsMeant) {
  const std::vector<std::string> paths = {"README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf"};
  std::string error;
  EXPECT_TRUE(selected(paths, "", &error).empty());
  EXPECT_NE(error.find("m-Q4_K_M.gguf"), std::string::npos);
  EXPECT_NE(error.find("--file"), std::string::npos);
  EXPECT_EQ(selected(paths, "*Q8_0*"), std::vector<std::string>{"m-Q8_0.gguf"});
  EXPECT_EQ(selected({"README.md", "m.gguf"}, ""), std::vector<std::string>{"m.gguf"});
  EXPECT_TRUE(selected(paths, "*Q5*", &error).empty());
  EXPECT_NE(error.find("*Q5*"), std::string::npos);
}

TEST(SelectFiles, TakesAllPartsOfASplitGgufModel) {
  const std::vector<std::string> parts = {"q4/m-00001-of-00002.gguf", "q4/m-00002-of-00002.gguf"};
  std::vector<std::string> paths = parts;
  paths.push_back("q8/m.gguf");
  EXPECT_EQ(selected(paths, "q4/*"), parts);
  EXPECT_TRUE(selected(paths, "").empty());
}

TEST(SelectFiles, PrefersSafetensorsAndOneCopyOfThem) {
  EXPECT_EQ(selected({"a.gguf", "config.json", "consolidated.safetensors", "m.safetensors",
                      "m.safetensors.index.json", "x/m.safetensors", "pytorch_model.bin"},
                     ""),
            (std::vector<std::string>{"config.json", "m.safetensors", "m.safetensors.index.json"}));
  EXPECT_EQ(selected({"consolidated.safetensors"}, ""),
            std::vector<std::string>{"consolidated.safetensors"});
  EXPECT_TRUE(selected({"config.json", "pytorch_model.bin"}, "").empty());
}

TEST(HubDigest, AgreesWithSha256sumAndGit) {
  EXPECT_EQ(digest_of(DigestKind::kSha256, "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // git hash-object of a file with "hello\n"
  EXPECT_EQ(digest_of(DigestKind::kGitBlob, "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(digest_of(DigestKind::kNone, "abc"), "");
}

TEST(HubPaths, EncodesWhatUrlsCannotHold) {
  EXPECT_EQ(url_encode("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(url_encode("a b/\xc3\xa9?#%.bin", true), "a%20b/%C3%A9%3F%23%25.bin");
}

}  // namespace
}  // namespace kun
