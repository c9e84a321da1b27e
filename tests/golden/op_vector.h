// One operator vector of another engine: a folder with inputs, expected outputs and tolerances.
#pragma once

#include <gtest/gtest.h>
#include <simdjson.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "device/ops.h"
#include "npy_file.h"
#include "tensor/float_formats.h"

namespace kun {

inline std::filesystem::path op_vector_copies() {
  return std::filesystem::path(KUN_TEST_DATA) / "op-goldens";
}

// One folder: what manifest.json says, and its arrays on demand.
class OpVector {
 public:
  explicit OpVector(const std::string& name) : folder_(op_vector_copies() / name) {
    root_ = parser_.load((folder_ / "manifest.json").string());
    absolute_ = root_["tol"]["atol"];
    relative_ = root_["tol"]["rtol"];
  }

  std::string op() const { return std::string(root_["op"].get_string().value()); }
  simdjson::dom::element argument(const char* name) const { return root_["args"][name]; }
  double number(const char* name) const { return argument(name).get_double(); }
  int integer(const char* name) const {
    return static_cast<int>(argument(name).get_int64().value());
  }
  bool has(const char* tensor) const { return !root_["tensors"][tensor].error(); }

  NpyFile file(const std::string& tensor) const {
    auto read = read_npy(folder_ / (tensor + ".npy"));
    CHECK(read.has_value());
    return *std::move(read);
  }
  std::vector<std::int64_t> shape(const std::string& tensor) const { return file(tensor).shape; }

  // Of F32 and BF16 tensors.
  std::vector<float> floats(const std::string& tensor) const {
    const NpyFile read = file(tensor);
    if (read.type == "<f4") return read.values<float>();
    CHECK(read.type == "<u2");
    std::vector<float> result;
    for (const std::uint16_t bits : read.values<std::uint16_t>()) {
      result.push_back(bf16_to_f32(bits));
    }
    return result;
  }

  std::vector<std::int32_t> integers(const std::string& tensor) const {
    std::vector<std::int32_t> result;
    for (const std::int64_t value : file(tensor).values<std::int64_t>()) {
      result.push_back(static_cast<std::int32_t>(value));
    }
    return result;
  }

  void expect(const std::string& tensor, const std::vector<float>& got) const {
    const std::vector<float> wanted = floats(tensor);
    ASSERT_EQ(got.size(), wanted.size()) << tensor;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double want{wanted[i]};
      ASSERT_NEAR(got[i], want, absolute_ + relative_ * std::fabs(want)) << tensor << ' ' << i;
    }
  }

 private:
  std::filesystem::path folder_;
  mutable simdjson::dom::parser parser_;
  simdjson::dom::element root_;
  double absolute_ = 0.0;
  double relative_ = 0.0;
};

inline TensorView view(std::vector<float>& data, std::initializer_list<std::int64_t> shape) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kF32, shape};
}
inline std::vector<float> zeros(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count));
}

// The operators of a mixture of experts; op_golden_test.cc runs them beside the others.
void run_router(Ops& ops, const OpVector& vector);
void run_experts(Ops& ops, const OpVector& vector);

}  // namespace kun
