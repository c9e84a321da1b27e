#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kun {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() { std::filesystem::create_directories(folder_); }
  ~MappedFileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_ = std::filesystem::temp_directory_path() /
                                  ("kun_mapped_file_test_" + std::to_string(::getpid()));
};

TEST_F(MappedFileTest, ShowsTheBytesOfAFile) {
  std::ofstream(folder_ / "file") << "abc";
  const auto file = MappedFile::open(folder_ / "file");
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_EQ((*file)->bytes().size(), 3U);
  EXPECT_EQ((*file)->bytes()[2], std::byte{'c'});
}

TEST_F(MappedFileTest, SaysWhichFileItIsWhateverTookItsPlace) {
  std::ofstream(folder_ / "file") << "abc";
  const auto file = MappedFile::open(folder_ / "file");
  ASSERT_TRUE(file);
  const auto same = FileStamp::of(folder_ / "file");
  ASSERT_TRUE(same);
  EXPECT_EQ((*file)->stamp(), *same);
  EXPECT_EQ(same->bytes, 3);
  std::ofstream(folder_ / "other") << "ABC";
  std::filesystem::rename(folder_ / "other", folder_ / "file");
  const auto other = FileStamp::of(folder_ / "file");
  ASSERT_TRUE(other);
  EXPECT_NE((*file)->stamp(), *other);
  EXPECT_EQ(FileStamp::of(folder_ / "absent").error().code(), StatusCode::kNotFound);
}

TEST_F(MappedFileTest, MapsAnEmptyFile) {
  std::ofstream(folder_ / "empty").flush();
  const auto file = MappedFile::open(folder_ / "empty");
  ASSERT_TRUE(file);
  EXPECT_TRUE((*file)->bytes().empty());
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  for (const auto& path : {folder_, folder_ / "fifo", std::filesystem::path("/dev/zero")}) {
    const auto file = MappedFile::open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(MappedFile::open(folder_ / "absent").error().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kun
