// Hand-made files for the tests of this module: right ones, and wrong ones in any way wished for.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kun {

// What the test program has allocated so far (allocated_bytes_test.cc).
extern std::atomic<std::size_t> allocated_bytes;

// Writes GGUF field by field; the caller decides about every number, also about wrong ones.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  GgufBytes& raw(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  GgufBytes& text(std::string_view value) { return put<std::uint64_t>(value.size()).raw(value); }
  GgufBytes& header(std::uint64_t tensor_count, std::uint64_t value_count,
                    std::uint32_t version = 3) {
    return raw("GGUF").put(version).put(tensor_count).put(value_count);
  }
  template <class T>
  GgufBytes& value(std::string_view key, std::uint32_t type, T number) {
    return text(key).put(type).put(number);
  }
  GgufBytes& string_value(std::string_view key, std::string_view value) {
    return text(key).put<std::uint32_t>(8).text(value);
  }
  GgufBytes& array(std::string_view key, std::uint32_t element_type, std::uint64_t count) {
    return text(key).put<std::uint32_t>(9).put(element_type).put(count);
  }
  GgufBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& dims,
                    std::uint32_t type, std::uint64_t offset) {
    text(name).put(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) put(dim);
    return put(type).put(offset);
  }
  GgufBytes& pad(std::size_t alignment = 32) {
    while (bytes_.size() % alignment != 0) bytes_ += '\0';
    return *this;
  }
  GgufBytes& zeros(std::size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

inline std::string safetensors_bytes(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  out += header;
  out.append(data_bytes, '\x01');
  return out;
}

// A copy on the heap of exactly the file's size, so that a sanitizer sees any step beyond it.
class HeapBytes {
 public:
  explicit HeapBytes(std::string_view text)
      : size_(text.size()), bytes_(new std::byte[size_ + (size_ == 0 ? 1 : 0)]) {
    if (size_ > 0) std::memcpy(bytes_.get(), text.data(), size_);
  }
  std::span<const std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A folder of its own for one test, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("kun_checkpoint_test_" + std::to_string(::getpid()) + "_" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kun
