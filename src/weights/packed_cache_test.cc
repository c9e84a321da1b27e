// A cache that is found must be whole and of the files that are there now; everything else that can
// go wrong must leave no trace but the time it took.
#include "weights/packed_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace kun {
namespace {

namespace fs = std::filesystem;

class PackedCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    static std::atomic<int> counter{0};
    folder_ = fs::temp_directory_path() /
              ("kun_packed_cache_" + std::to_string(::getpid()) + "_" + std::to_string(counter++));
    fs::create_directories(folder_);
    source_ = folder_ / "model.safetensors";
    write_source("weights");
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  void write_source(const std::string& text) const { std::ofstream(source_) << text; }
  fs::path cache_folder() const { return folder_ / "cache"; }
  std::unique_ptr<PackedCache> open(std::string_view packing = "panels") const {
    return open_for(*FileStamp::of(source_), packing);
  }
  std::unique_ptr<PackedCache> open_for(const FileStamp& source,
                                        std::string_view packing = "panels") const {
    return std::make_unique<PackedCache>(cache_folder(), std::vector{source}, packing);
  }
  static PackedImage image(const std::string& layout, const std::string& data) {
    return {layout, std::as_bytes(std::span(data.data(), data.size())), data.size()};
  }
  // Three matrices, committed.
  void fill(std::string_view packing = "panels") const { fill(*open(packing)); }
  void fill(PackedCache& cache) const {
    cache.add("a", image("la", a_));
    cache.add("b", image("lb", b_));
    cache.add("empty", image("", ""));
    cache.finish();
    cache.wait();
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(cache_folder(), ignored)) {
      out.push_back(entry.path());
    }
    return out;
  }
  void expect_whole(PackedCache& cache) const {
    ASSERT_TRUE(cache.found());
    for (const auto& [key, layout, data] :
         {std::tuple{"a", "la", &a_}, std::tuple{"b", "lb", &b_}}) {
      const auto found = cache.find(key);
      ASSERT_TRUE(found) << key;
      EXPECT_EQ(found->layout, layout);
      EXPECT_EQ(found->checksum, data->size());
      ASSERT_EQ(found->data.size(), data->size());
      EXPECT_EQ(std::memcmp(found->data.data(), data->data(), data->size()), 0);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found->data.data()) % 64, 0U);
    }
    EXPECT_TRUE(cache.find("empty"));
    EXPECT_FALSE(cache.find("c"));
  }

  fs::path folder_;
  fs::path source_;
  std::string a_ = std::string(100000, 'a');
  std::string b_ = std::string(77, 'b');
};

TEST_F(PackedCacheTest, GivesBackWhatWasKept) {
  EXPECT_FALSE(open()->found());
  fill();
  expect_whole(*open());
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(PackedCacheTest, KeepsNothingThatWasNotFinished) {
  {
    const auto cache = open();
    cache->add("a", image("la", a_));
    EXPECT_EQ(files().size(), 1U);
  }
  EXPECT_TRUE(files().empty());
  EXPECT_FALSE(open()->found());
}

TEST_F(PackedCacheTest, ForgetsWhenASourceChanges) {
  fill();
  const auto time = fs::last_write_time(source_);
  write_source("WEIGHTS");  // as long as before
  fs::last_write_time(source_, time);
  EXPECT_FALSE(open()->found());
  fill();
  expect_whole(*open());
  EXPECT_EQ(files().size(), 1U);  // the older one is gone
}

// The loader maps a model's files and opens the cache afterwards; meanwhile `kun pull` may put new
// ones in their place. What was packed of the old file must never be found for the new one.
TEST_F(PackedCacheTest, BelongsToTheFileThatWasMappedAndNotToTheOneThatTookItsPlace) {
  const auto mapped = MappedFile::open(source_);
  ASSERT_TRUE(mapped);
  std::ofstream(folder_ / "new") << "another model, pulled meanwhile";
  fs::rename(folder_ / "new", source_);
  fill(*open_for((*mapped)->stamp()));
  EXPECT_FALSE(open()->found());
  EXPECT_TRUE(files().empty());  // nobody could ever find it
}

TEST_F(PackedCacheTest, KeepsNothingOfAFileThatWasWrittenToWhileItWasRead) {
  const auto cache = open();
  cache->add("a", image("la", a_));
  cache->add("b", image("lb", b_));
  write_source("WEIGHTS that grew");
  cache->finish();
  cache->wait();
  EXPECT_TRUE(files().empty());
  EXPECT_FALSE(open()->found());
}

TEST_F(PackedCacheTest, KeepsOnePackingApartFromAnother) {
  fill("int8");
  EXPECT_FALSE(open("int4")->found());
  fill("int4");
  expect_whole(*open("int8"));
  expect_whole(*open("int4"));
  EXPECT_EQ(files().size(), 2U);
}

TEST_F(PackedCacheTest, IsOffWithoutSourcesOrPacking) {
  PackedCache none(cache_folder(), std::vector<FileStamp>(), "panels");
  none.add("a", image("la", a_));
  none.finish();
  const auto unnamed = open("");
  unnamed->add("a", image("la", a_));
  unnamed->finish();
  EXPECT_TRUE(files().empty());
}

TEST_F(PackedCacheTest, BelievesNoFileThatWasCutOrChanged) {
  fill();
  const fs::path path = files().front();
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto write = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  };
  for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 97) {
    write(whole.substr(0, size));
    EXPECT_FALSE(open()->found()) << size;
  }
  write(whole + "x");
  EXPECT_FALSE(open()->found());
  // Header and index: any changed bit. The images have checksums of their own.
  std::uint64_t index = 0;
  std::memcpy(&index, whole.data() + 16, sizeof(index));
  ASSERT_LT(index, whole.size());
  for (std::size_t i = 0; i < whole.size(); i = i == 63 ? static_cast<std::size_t>(index) : i + 1) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    write(changed);
    EXPECT_FALSE(open()->found()) << i;
  }
  write(whole);
  expect_whole(*open());
}

TEST_F(PackedCacheTest, DropsAFileWhoseImageIsDamaged) {
  fill();
  const auto cache = open();
  ASSERT_TRUE(cache->found());
  cache->reject("a");
  EXPECT_FALSE(cache->found());
  EXPECT_FALSE(cache->find("b"));
  EXPECT_TRUE(files().empty());
  cache->add("a", image("la", a_));  // the rest is not at hand: nothing is kept this time
  cache->finish();
  EXPECT_TRUE(files().empty());
}

TEST_F(PackedCacheTest, SurvivesBeingKilledWhileWriting) {
  for (int round = 0; round < 10; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto cache = open();
      const std::string data(1 << 20, 'x');
      for (int i = 0;; ++i) cache->add(std::to_string(i), image("l", data));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + 7 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_FALSE(open()->found());
  }
  fill();  // removes what the dead left behind
  EXPECT_EQ(files().size(), 1U);
  expect_whole(*open());
}

// A crash of yesterday, and today's start finds a cache that another process has written since.
TEST_F(PackedCacheTest, RemovesWhatTheDeadLeftAlsoWhenItFindsACache) {
  fill();
  std::ofstream(cache_folder() / "dead.tmp") << "half a cache";
  EXPECT_EQ(files().size(), 2U);
  expect_whole(*open());
  EXPECT_EQ(files().size(), 1U);
}

// Between the making of a file and its locking another process may take it for abandoned.
TEST_F(PackedCacheTest, WritesAlsoWhileOthersCleanUp) {
  std::atomic<bool> done{false};
  std::thread cleaner([&] {
    while (!done) {
      std::error_code failed;
      for (fs::directory_iterator at(cache_folder(), failed), end; !failed && at != end;
           at.increment(failed)) {
        if (at->path().extension() != ".tmp") continue;
        const int descriptor = ::open(at->path().c_str(), O_RDWR | O_CLOEXEC);
        if (descriptor < 0) continue;
        std::error_code ignored;
        if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove(at->path(), ignored);
        ::close(descriptor);
      }
    }
  });
  int kept = 0;
  for (int round = 0; round < 200; ++round) {
    const auto cache = open();
    cache->add("b", image("lb", b_));
    kept += files().size() == 1 ? 1 : 0;  // none: it was taken away, or not made again
  }
  done = true;
  cleaner.join();
  EXPECT_EQ(kept, 200);
}

TEST_F(PackedCacheTest, LeavesTheFilesOfTheLivingAlone) {
  const auto slow = open();
  slow->add("a", image("la", a_));
  fill();
  slow->add("b", image("lb", b_));
  slow->add("empty", image("", ""));
  slow->finish();
  slow->wait();
  expect_whole(*open());
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(PackedCacheTest, LetsManyProcessesWriteAtOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int round = 0; round < 5; ++round) {
        const auto cache = open();
        if (cache->found()) {
          const auto found = cache->find("a");
          const bool whole = found && found->data.size() == a_.size() &&
                             std::memcmp(found->data.data(), a_.data(), a_.size()) == 0;
          if (!whole) ::_exit(1);
        } else {
          fill();
        }
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  expect_whole(*open());
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(PackedCacheTest, GivesUpQuietlyWhenTheDiskIsFull) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{50000, 50000};
    ::setrlimit(RLIMIT_FSIZE, &small);  // writes beyond it fail, as on a full disk
    const auto cache = open();
    cache->add("b", image("lb", b_));
    cache->add("a", image("la", a_));
    cache->add("b", image("lb", b_));
    cache->finish();
    cache->wait();
    ::_exit(files().empty() && !open()->found() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(files().empty());
}

TEST_F(PackedCacheTest, DoesWithoutAFolderItCannotUse) {
  std::ofstream(cache_folder()) << "a file where the folder should be";
  const auto cache = open();
  cache->add("a", image("la", a_));
  cache->finish();
  cache->wait();
  EXPECT_FALSE(open()->found());
}

}  // namespace
}  // namespace kun
