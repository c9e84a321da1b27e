// A GGUF file, version 2 or 3: typed metadata and tensors, both as views into the mapped file.
//
// Everything is checked once, while parsing: counts against the bytes that are there, sizes against
// overflow, tensors against the end of the file and against each other. What this class hands out
// afterwards lies inside the file. Format: docs/gguf.md of ggml-org/ggml.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"

namespace kun {

enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One metadata value; an array when `type` says so. Views the file, owns nothing.
struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kU8;  // of the value, or of an array's elements
  bool is_array = false;
  std::uint64_t count = 1;           // elements
  std::span<const std::byte> bytes;  // the elements as stored; a string with its length before it

  // Element `index`, if it is of that kind: any integer that fits, any integer or float, ...
  // Requires: index < count.
  std::optional<std::int64_t> int_at(std::uint64_t index) const;
  std::optional<double> float_at(std::uint64_t index) const;
  std::optional<bool> bool_at(std::uint64_t index) const;
  // The strings of a string or of an array of strings; empty for other types.
  std::vector<std::string_view> strings() const;
};

struct GgufTensor {
  std::string_view name;
  int rank = 0;
  // The contiguous axis first: a matrix is {cols, rows}. 1 beyond the rank.
  std::array<std::int64_t, 4> dims{1, 1, 1, 1};
  std::uint32_t type = 0;  // see gguf_types.h
  // Empty when the type is unknown or retired, so that nobody can know the size.
  std::span<const std::byte> data;
};

class GgufFile {
 public:
  static Result<GgufFile> open(const std::filesystem::path& path);
  // Parses bytes that outlive the result; `name` is what errors call the file.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  // Of the opened file; nullptr when parsed from borrowed bytes.
  const FileStamp* stamp() const { return file_ == nullptr ? nullptr : &file_->stamp(); }
  std::uint32_t version() const { return version_; }

  // The value under a key; nullptr when absent. Sorted by key in metadata().
  const GgufValue* find(std::string_view key) const;
  std::span<const GgufValue> metadata() const { return metadata_; }

  // Scalars. Empty when absent or of another kind.
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::optional<std::int64_t> find_int(std::string_view key) const;
  std::optional<std::uint64_t> find_uint(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  // An array of strings (tokens, merges). Empty when absent or of another kind.
  std::optional<std::vector<std::string_view>> find_strings(std::string_view key) const;
  // An array of numbers or booleans, read by int_at, float_at, bool_at. nullptr as above.
  const GgufValue* find_array(std::string_view key) const;

  // In the order of the file.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;

 private:
  friend class GgufParser;
  GgufFile() = default;

  std::shared_ptr<const MappedFile> file_;  // null when parsed from borrowed bytes
  std::string name_;
  std::uint32_t version_ = 0;
  std::vector<GgufValue> metadata_;  // sorted by key
  std::vector<GgufTensor> tensors_;
  std::vector<std::uint32_t> tensors_by_name_;
};

}  // namespace kun
