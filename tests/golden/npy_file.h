// Reads the .npy files of the operator vectors: version 1.0, C order, the four element types that
// occur there. The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace kun {

struct NpyFile {
  std::string type;                 // "<f4", "<u2", "<i4", "<i8"
  std::vector<std::int64_t> shape;  // [1] for a scalar
  std::vector<std::byte> bytes;     // little-endian, row-major

  std::int64_t count() const {
    std::int64_t product = 1;
    for (const std::int64_t dim : shape) product *= dim;
    return product;
  }

  template <class T>
  std::vector<T> values() const {
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), result.size() * sizeof(T));
    return result;
  }
};

inline std::size_t npy_element_bytes(const std::string& type) {
  if (type == "<u2") return 2;
  if (type == "<f4" || type == "<i4") return 4;
  return type == "<i8" ? 8 : 0;
}

// What stands between `open` and `close` after the key in the header's Python dictionary.
inline std::optional<std::string> npy_header_field(const std::string& header,
                                                   const std::string& key, char open, char close) {
  const std::size_t at = header.find("'" + key + "': ");
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = header.find(open, at + key.size() + 3);
  const std::size_t end = begin == std::string::npos ? begin : header.find(close, begin + 1);
  if (end == std::string::npos) return std::nullopt;
  return header.substr(begin + 1, end - begin - 1);
}

// Nothing when the file is not of the kind above or its length does not suit its shape.
inline std::optional<NpyFile> read_npy(const std::filesystem::path& path) {
  constexpr std::size_t kPreamble = 10;  // magic, version, length of the header (16 bits)
  std::ifstream in(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (all.size() < kPreamble || all.compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) != 0) {
    return std::nullopt;
  }
  const auto byte = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(all[i])}; };
  const std::size_t header_size = byte(8) + 256 * byte(9);
  if (all.size() < kPreamble + header_size) return std::nullopt;
  const std::string header = all.substr(kPreamble, header_size);
  const auto type = npy_header_field(header, "descr", '\'', '\'');
  const auto shape = npy_header_field(header, "shape", '(', ')');
  if (!type || !shape || header.find("'fortran_order': False") == std::string::npos) {
    return std::nullopt;
  }
  NpyFile file;
  file.type = *type;
  std::istringstream dims(*shape);
  for (std::string dim; std::getline(dims, dim, ',');) {
    std::istringstream digits(dim);
    std::int64_t value = 0;
    if (digits >> value) file.shape.push_back(value);
  }
  if (file.shape.empty()) file.shape.push_back(1);
  const std::size_t payload = all.size() - kPreamble - header_size;
  if (npy_element_bytes(file.type) == 0 ||
      payload != static_cast<std::size_t>(file.count()) * npy_element_bytes(file.type)) {
    return std::nullopt;
  }
  file.bytes.resize(payload);
  std::memcpy(file.bytes.data(), all.data() + kPreamble + header_size, payload);
  return file;
}

}  // namespace kun
