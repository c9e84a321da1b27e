// Layout: Header, images (each at a multiple of 64), index. The header is written last. Numbers are
// little-endian as the machine has them: a cache never leaves its host.
#include "weights/packed_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/log.h"

namespace kun {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kMagic{'K', 'U', 'N', 'P', 'A', 'C', 'K', '1'};
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kEntryCountMax = 1 << 22;
constexpr std::uint64_t kTextBytesMax = 1 << 20;
constexpr std::string_view kSuffix = ".packed";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr int kCreateAttempts = 16;
// What is read from the disk before it is needed.
constexpr std::uint64_t kAheadBytes = std::uint64_t{32} << 20;

struct Header {
  std::array<char, 8> magic;
  std::uint64_t file_bytes;
  std::uint64_t index_offset;
  std::uint64_t index_bytes;
  std::uint64_t index_checksum;
  std::uint64_t unused[2];
  std::uint64_t checksum;  // of all before
};
static_assert(sizeof(Header) == kAlignment);

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::uint64_t checksum_of(const Header& header) {
  return checksum(std::as_bytes(std::span(&header, 1)).first(sizeof(Header) - 8));
}

std::string describe(const FileStamp& file) {
  return fmt::format("{} {}:{} {} {} {}\n", file.path.string(), file.device, file.inode, file.bytes,
                     file.modified, file.changed);
}

// The index, field by field.
class IndexWriter {
 public:
  void number(std::uint64_t value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    out_.append(bytes, sizeof(value));
  }
  void text(std::string_view value) {
    number(value.size());
    out_ += value;
  }
  const std::string& str() const { return out_; }

 private:
  std::string out_;
};

class IndexReader {
 public:
  explicit IndexReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool number(std::uint64_t& value) {
    if (bytes_.size() < sizeof(value)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_ = bytes_.subspan(sizeof(value));
    return true;
  }
  bool text(std::string& value) {
    std::uint64_t size = 0;
    if (!number(size) || size > kTextBytesMax || size > bytes_.size()) return false;
    value.assign(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::size_t>(size));
    bytes_ = bytes_.subspan(static_cast<std::size_t>(size));
    return true;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

// Removes what processes that are gone left behind: a writer holds a lock on its file. One that has
// made a file and not locked it yet finds it removed, and makes another (create_temporary).
void remove_abandoned(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().ends_with(kTemporarySuffix)) continue;
    const int descriptor = ::open(at->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    std::error_code ignored;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove(at->path(), ignored);
    ::close(descriptor);
  }
}

}  // namespace

PackedCache::PackedCache(fs::path folder, std::vector<FileStamp> sources, std::string_view packing)
    : folder_(std::move(folder)), sources_(std::move(sources)) {
  std::string family = fmt::format("{}\n", packing);
  std::string identity = family;
  for (const FileStamp& source : sources_) {
    identity += describe(source);
    family += source.path.string() + "\n";
  }
  if (sources_.empty() || packing.empty() || identity.size() > kTextBytesMax) return;
  identity_ = std::move(identity);
  family_ = fmt::format("{:016x}", checksum(bytes_of(family)));
  path_ = folder_ / fmt::format("{}-{:016x}{:016x}{}", family_, checksum(bytes_of(identity_)),
                                checksum(bytes_of(identity_), 1), kSuffix);
  if (read_index()) {
    remove_abandoned(folder_);
  } else {
    file_.reset();
    entries_.clear();
  }
}

PackedCache::~PackedCache() {
  wait();
  if (descriptor_ < 0) return;
  std::error_code ignored;
  fs::remove(temporary_, ignored);
  ::close(descriptor_);
}

bool PackedCache::read_index() {
  auto mapped = MappedFile::open(path_);
  if (!mapped) return false;
  file_ = *std::move(mapped);
  const std::span<const std::byte> bytes = file_->bytes();
  Header header{};
  if (bytes.size() < sizeof(header)) return false;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.checksum != checksum_of(header)) return false;
  const bool whole = header.file_bytes == bytes.size() && header.index_offset <= bytes.size() &&
                     header.index_bytes == bytes.size() - header.index_offset;
  if (!whole) return false;
  const auto index = bytes.subspan(static_cast<std::size_t>(header.index_offset));
  if (checksum(index) != header.index_checksum) return false;
  IndexReader reader(index);
  std::string identity;
  std::uint64_t count = 0;
  if (!reader.text(identity) || identity != identity_) return false;
  if (!reader.number(count) || count > kEntryCountMax) return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string key;
    Entry entry;
    const bool read = reader.text(key) && reader.text(entry.layout) &&
                      reader.number(entry.offset) && reader.number(entry.bytes) &&
                      reader.number(entry.checksum);
    if (!read || entry.offset > header.index_offset ||
        entry.bytes > header.index_offset - entry.offset) {
      return false;
    }
    entries_.emplace(std::move(key), std::move(entry));
  }
  return reader.at_end();
}

std::uint64_t PackedCache::image_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, entry] : entries_) bytes += entry.bytes;
  return bytes;
}

std::optional<PackedImage> PackedCache::find(std::string_view key) {
  const auto found = file_ == nullptr ? entries_.end() : entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  const Entry& entry = found->second;
  // Images are read in the order in which they were kept.
  const std::uint64_t wanted =
      std::min<std::uint64_t>(entry.offset + entry.bytes + kAheadBytes, file_->bytes().size());
  if (wanted > prefetched_) {
    const std::uint64_t first = std::max(prefetched_, entry.offset);
    prefetched_ = std::min<std::uint64_t>(wanted + kAheadBytes, file_->bytes().size());
    prefetch_pages(file_->bytes().subspan(static_cast<std::size_t>(first),
                                          static_cast<std::size_t>(prefetched_ - first)));
  }
  return PackedImage{entry.layout,
                     file_->bytes().subspan(static_cast<std::size_t>(entry.offset),
                                            static_cast<std::size_t>(entry.bytes)),
                     entry.checksum};
}

void PackedCache::reject(std::string_view key) {
  LOG(kWarning, fmt::format("{}: the packed weights of {} are damaged, the file is dropped",
                            path_.string(), key));
  std::error_code ignored;
  fs::remove(path_, ignored);
  entries_.clear();
  file_.reset();
  failed_ = true;  // what was read from it is not here to be written again
}

bool PackedCache::begin() {
  if (descriptor_ >= 0) return true;
  if (identity_.empty() || failed_ || found()) return false;
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!error) {
    remove_abandoned(folder_);
    errno = 0;
  }
  if (error || !create_temporary()) {
    give_up(error ? error.message() : std::strerror(errno));
    return false;
  }
  const Header empty{};
  return write(std::as_bytes(std::span(&empty, 1)));
}

// A file that nobody else has and that others see to be in use. Between its making and its locking
// others may take it for abandoned; then it has no name any more, and the next try makes another.
bool PackedCache::create_temporary() {
  std::random_device random;
  for (int attempt = 0; attempt < kCreateAttempts; ++attempt) {
    temporary_ =
        folder_ / fmt::format("{}-{}-{:08x}{}", family_, ::getpid(), random(), kTemporarySuffix);
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor_ < 0) return false;
    struct stat info {};
    const bool locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (locked && ::fstat(descriptor_, &info) == 0 && info.st_nlink > 0) return true;
    const int problem = errno;
    std::error_code ignored;
    fs::remove(temporary_, ignored);
    ::close(std::exchange(descriptor_, -1));
    errno = problem;
    if (!locked && problem != EWOULDBLOCK) return false;
  }
  return false;
}

void PackedCache::give_up(std::string_view what) {
  LOG(kWarning, fmt::format("packed weights are not kept in {}: {}", folder_.string(), what));
  failed_ = true;
  if (descriptor_ < 0) return;
  std::error_code ignored;
  fs::remove(temporary_, ignored);
  ::close(std::exchange(descriptor_, -1));
}

bool PackedCache::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      give_up(count < 0 ? std::strerror(errno) : "nothing was written");
      return false;
    }
    written_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

void PackedCache::add(std::string_view key, const PackedImage& image) {
  if (entries_.size() >= kEntryCountMax || !begin()) return;
  const std::array<std::byte, kAlignment> zeros{};
  const std::uint64_t gap = (kAlignment - written_ % kAlignment) % kAlignment;
  if (!write(std::span(zeros).first(static_cast<std::size_t>(gap)))) return;
  Entry entry{image.layout, written_, image.data.size(), image.checksum};
  if (!write(image.data)) return;
  entries_.insert_or_assign(std::string(key), std::move(entry));
}

bool PackedCache::write_index() {
  IndexWriter index;
  index.text(identity_);
  index.number(entries_.size());
  for (const auto& [key, entry] : entries_) {
    index.text(key);
    index.text(entry.layout);
    index.number(entry.offset);
    index.number(entry.bytes);
    index.number(entry.checksum);
  }
  Header header{};
  header.magic = kMagic;
  header.index_offset = written_;
  header.index_bytes = index.str().size();
  header.file_bytes = written_ + index.str().size();
  header.index_checksum = checksum(bytes_of(index.str()));
  header.checksum = checksum_of(header);
  if (!write(bytes_of(index.str()))) return false;
  if (::pwrite(descriptor_, &header, sizeof(header), 0) == sizeof(header)) return true;
  give_up(std::strerror(errno));
  return false;
}

// Whether some source is not the file that was opened any more, or was written to since.
bool PackedCache::sources_changed() const {
  return std::ranges::any_of(sources_, [](const FileStamp& source) {
    const Result<FileStamp> now = FileStamp::of(source.path);
    return !now || *now != source;
  });
}

void PackedCache::finish() {
  if (descriptor_ < 0 || failed_ || committer_.joinable()) return;
  if (sources_changed()) return give_up("the model's files changed while they were read");
  if (!write_index()) return;
  committer_ = std::thread([this] { commit(); });
}

// Data first, name second: whoever sees the name sees all of the data, also after a power cut.
void PackedCache::commit() {
  std::error_code error;
  if (::fsync(descriptor_) != 0) return give_up(std::strerror(errno));
  fs::rename(temporary_, path_, error);
  if (error) return give_up(error.message());
  ::close(std::exchange(descriptor_, -1));
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
  // Older files of this model and packing can never be found again.
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    const bool older = name.starts_with(family_ + "-") && name.ends_with(kSuffix);
    if (older && at->path() != path_) fs::remove(at->path(), ignored);
  }
}

void PackedCache::wait() {
  if (committer_.joinable()) committer_.join();
}

}  // namespace kun
