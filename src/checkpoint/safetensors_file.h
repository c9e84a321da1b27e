// A safetensors file: named tensors as views into the mapped file.
//
// The header is checked once, while parsing: the data is covered by the tensors without holes and
// without overlap, and each tensor's bytes are what its shape and type need. Format: README of
// huggingface/safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"

namespace kun {

struct SafetensorsTensor {
  std::string name;
  std::string_view dtype;  // as the file spells it: "BF16", "F8_E4M3"; a string of the program
  std::vector<std::int64_t> shape;  // row-major, the contiguous axis last
  std::span<const std::byte> data;
};

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  // Parses bytes that outlive the result; `name` is what errors call the file.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  // Of the opened file; nullptr when parsed from borrowed bytes.
  const FileStamp* stamp() const { return file_ == nullptr ? nullptr : &file_->stamp(); }

  // In the order of their data.
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  // nullptr when absent.
  const SafetensorsTensor* find(std::string_view name) const;

 private:
  friend class SafetensorsParser;
  SafetensorsFile() = default;

  std::shared_ptr<const MappedFile> file_;  // null when parsed from borrowed bytes
  std::string name_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::uint32_t> tensors_by_name_;
};

}  // namespace kun
