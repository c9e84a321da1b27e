// Good files read right; bad ones, after the kinds that broke other programs (the HANDCRAFTED list
// of llama.cpp's tests/test-gguf.cpp; CVE-2024-21802 and its like, CVE-2025-0317, CVE-2026-53923),
// are refused with a sentence that names the problem.
#include "checkpoint/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/gguf_types.h"
#include "checkpoint/test_files.h"

namespace kun {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kU8 = 0;
constexpr std::uint32_t kU32 = 4;
constexpr std::uint32_t kI32 = 5;
constexpr std::uint32_t kF32 = 6;
constexpr std::uint32_t kBool = 7;
constexpr std::uint32_t kString = 8;
constexpr std::uint32_t kArray = 9;
constexpr std::uint32_t kU64 = 10;
constexpr std::uint32_t kI64 = 11;
constexpr std::uint32_t kF64 = 12;
constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;

const std::string kTinyGguf = KUN_TEST_DATA "/tiny-models/llama-gqa-llama3/model.gguf";

std::string error_of(const std::string& bytes) {
  const HeapBytes heap(bytes);
  const auto file = GgufFile::parse(heap.span(), "x.gguf");
  return file.has_value() ? "no error" : file.error().message();
}

// A file with one F32 tensor "t" of 8 values.
GgufBytes one_tensor(const std::vector<std::uint64_t>& dims = {8}, std::uint32_t type = 0,
                     std::uint64_t offset = 0) {
  GgufBytes file;
  file.header(1, 0).tensor("t", dims, type, offset).pad().zeros(32);
  return file;
}

TEST(GgufFile, ReadsScalarsOfEveryType) {
  GgufBytes bytes;
  bytes.header(0, 9)
      .value<std::uint8_t>("u8", kU8, 200)
      .value<std::uint32_t>("u32", kU32, 4000000000U)
      .value<std::int32_t>("i32", kI32, -5)
      .value<float>("f32", kF32, 1.5F)
      .value<std::uint8_t>("bool", kBool, 1)
      .string_value("string", "text")
      .value<std::uint64_t>("u64", kU64, std::numeric_limits<std::uint64_t>::max())
      .value<std::int64_t>("i64", kI64, -7)
      .value<double>("f64", kF64, 0.1);
  const HeapBytes heap(bytes.str());
  const auto file = GgufFile::parse(heap.span(), "x.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(file->find_uint("u8"), 200U);
  EXPECT_EQ(file->find_uint("u32"), 4000000000U);
  EXPECT_EQ(file->find_int("i32"), -5);
  EXPECT_EQ(file->find_uint("i32"), std::nullopt);  // negative
  EXPECT_EQ(file->find_float("f32"), 1.5);
  EXPECT_EQ(file->find_float("i32"), -5.0);
  EXPECT_EQ(file->find_bool("bool"), true);
  EXPECT_EQ(file->find_string("string"), "text");
  EXPECT_EQ(file->find_int("u64"), std::nullopt);  // does not fit
  EXPECT_EQ(file->find_int("i64"), -7);
  EXPECT_EQ(file->find_float("f64"), 0.1);
  EXPECT_EQ(file->find_int("absent"), std::nullopt);
  EXPECT_EQ(file->find_int("string"), std::nullopt);
  EXPECT_EQ(file->find_string("u32"), std::nullopt);
}

TEST(GgufFile, ReadsArraysInPlace) {
  GgufBytes bytes;
  bytes.header(0, 3).array("ids", kI32, 2).put<std::int32_t>(-1).put<std::int32_t>(7);
  bytes.array("words", kString, 2).text("a").text("");
  bytes.array("nested", kArray, 1).put(kU8).put<std::uint64_t>(2).put<std::uint16_t>(0);
  const HeapBytes heap(bytes.str());
  const auto file = GgufFile::parse(heap.span(), "x.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const GgufValue* ids = file->find_array("ids");
  ASSERT_NE(ids, nullptr);
  EXPECT_EQ(ids->count, 2U);
  EXPECT_EQ(ids->int_at(0), -1);
  EXPECT_EQ(ids->int_at(1), 7);
  EXPECT_GE(ids->bytes.data(), heap.span().data());  // a view, no copy
  const std::vector<std::string_view> words{"a", ""};
  EXPECT_EQ(file->find_strings("words"), words);
  EXPECT_EQ(file->find_array("words"), nullptr);
  EXPECT_EQ(file->find_array("nested"), nullptr);
  EXPECT_NE(file->find("nested"), nullptr);
  EXPECT_EQ(file->find_int("ids"), std::nullopt);
}

TEST(GgufFile, ReadsTensorsAsViewsWithTheContiguousAxisFirst) {
  GgufBytes bytes;
  bytes.header(2, 0).tensor("b", {4, 2}, 0, 32).tensor("a", {32}, 8, 0).pad().zeros(64);
  const HeapBytes heap(bytes.str());
  const auto file = GgufFile::parse(heap.span(), "x.gguf");
  EXPECT_EQ(file.has_value(), false) << "Q8_0 needs 34 bytes and would overlap";

  GgufBytes good;
  good.header(2, 0).tensor("b", {4, 2}, 0, 64).tensor("a", {32}, 8, 0).pad().zeros(96);
  const HeapBytes good_heap(good.str());
  const auto good_file = GgufFile::parse(good_heap.span(), "x.gguf");
  ASSERT_TRUE(good_file.has_value()) << good_file.error().message();
  const GgufTensor* a = good_file->find_tensor("a");
  const GgufTensor* b = good_file->find_tensor("b");
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(a->data.size(), 34U);
  EXPECT_EQ(b->data.size(), 32U);
  EXPECT_EQ(b->data.data() - a->data.data(), 64);
  EXPECT_EQ(b->dims[0], 4);
  EXPECT_EQ(b->dims[1], 2);
  EXPECT_EQ(b->rank, 2);
  EXPECT_EQ(good_file->tensors()[0].name, "b");
  EXPECT_EQ(good_file->find_tensor("c"), nullptr);
}

TEST(GgufFile, HonoursTheAlignmentOfTheFile) {
  GgufBytes bytes;
  bytes.header(1, 1).value<std::uint32_t>("general.alignment", kU32, 64);
  bytes.tensor("t", {8}, 0, 64).pad(64).zeros(96);
  EXPECT_EQ(error_of(bytes.str()), "no error");
  GgufBytes off;
  off.header(1, 1).value<std::uint32_t>("general.alignment", kU32, 64);
  off.tensor("t", {8}, 0, 32).pad(64).zeros(96);
  EXPECT_THAT(error_of(off.str()), HasSubstr("tensor 't' lies at offset 32"));
}

TEST(GgufFile, ReadsARealVocabulary) {
  const std::filesystem::path path = KUN_SHARED_DATA "/gguf-vocab/ggml-vocab-deepseek-llm.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(file->find_string("tokenizer.ggml.model"), "gpt2");
  const auto tokens = file->find_strings("tokenizer.ggml.tokens");
  ASSERT_TRUE(tokens.has_value());
  EXPECT_GT(tokens->size(), 100000U);
  const GgufValue* types = file->find_array("tokenizer.ggml.token_type");
  ASSERT_NE(types, nullptr);
  EXPECT_EQ(types->count, tokens->size());
}

TEST(GgufFile, RefusesABadHeader) {
  EXPECT_THAT(error_of(""), HasSubstr("x.gguf: not a GGUF file"));
  EXPECT_THAT(error_of("GGU"), HasSubstr("not a GGUF file"));
  EXPECT_THAT(error_of("GGML....................."), HasSubstr("not a GGUF file"));
  EXPECT_THAT(error_of("GGUF"), HasSubstr("ends inside its header"));
  EXPECT_THAT(error_of(GgufBytes().header(0, 0, 1).str()), HasSubstr("version 1"));
  EXPECT_THAT(error_of(GgufBytes().header(0, 0, 4).str()), HasSubstr("version 4"));
  EXPECT_THAT(error_of(GgufBytes().header(0, 0, 0).str()), HasSubstr("version 0"));
  EXPECT_THAT(error_of(GgufBytes().header(0, 0, 0x03000000).str()), HasSubstr("big-endian"));
  EXPECT_EQ(error_of(GgufBytes().header(0, 0, 2).str()), "no error");
  EXPECT_EQ(error_of(GgufBytes().header(0, 0, 3).str()), "no error");
}

TEST(GgufFile, RefusesCountsThatTheFileCannotHoldWithoutAllocating) {
  for (const std::uint64_t count : {std::uint64_t{1000}, kHuge, ~std::uint64_t{0}}) {
    const std::string values = GgufBytes().header(0, count).zeros(200).str();
    const std::string tensors = GgufBytes().header(count, 0).zeros(200).str();
    const std::string strings = GgufBytes().header(0, 1).array("a", kString, count).zeros(64).str();
    const std::string numbers = GgufBytes().header(0, 1).array("a", kF64, count).zeros(64).str();
    const std::string arrays = GgufBytes().header(0, 1).array("a", kArray, count).zeros(64).str();
    const std::string text =
        GgufBytes().header(0, 1).text("k").put(kString).put(count).zeros(64).str();
    const std::string key = GgufBytes().header(0, 1).put(count).zeros(64).str();
    const std::string name = GgufBytes().header(1, 0).put(count).zeros(64).str();
    for (const auto& bytes : {values, tensors, strings, numbers, arrays, text, key, name}) {
      const HeapBytes heap(bytes);
      const std::size_t before = allocated_bytes;
      const auto file = GgufFile::parse(heap.span(), "x.gguf");
      EXPECT_FALSE(file.has_value());
      EXPECT_LT(allocated_bytes - before, 4096U);
    }
    EXPECT_THAT(error_of(values), HasSubstr("metadata values, more than the file can hold"));
    EXPECT_THAT(error_of(tensors), HasSubstr("tensors, more than the file can hold"));
    EXPECT_THAT(error_of(strings), HasSubstr("ends inside metadata key 'a'"));
  }
}

TEST(GgufFile, AllocatesInProportionToTheFile) {
  // As many entries as possible, as small as possible.
  constexpr int kCount = 20000;
  GgufBytes bytes;
  bytes.header(0, kCount);
  for (int i = 0; i < kCount; ++i) bytes.value<std::uint8_t>(std::to_string(i), kU8, 0);
  const HeapBytes heap(bytes.str());
  const std::size_t before = allocated_bytes;
  const auto file = GgufFile::parse(heap.span(), "x.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_LT(allocated_bytes - before, 16 * bytes.str().size());
}

TEST(GgufFile, RefusesBadMetadata) {
  const auto one = [](auto fill) {
    GgufBytes bytes;
    bytes.header(0, 1);
    fill(bytes);
    return error_of(bytes.zeros(16).str());
  };
  EXPECT_THAT(one([](GgufBytes& b) { b.value<std::uint64_t>("", kU8, 0); }),
              HasSubstr("a metadata key is 0 bytes long"));
  EXPECT_THAT(one([](GgufBytes& b) { b.value(std::string(65536, 'k'), kU8, 0); }),
              HasSubstr("a metadata key is 65536 bytes long"));
  EXPECT_THAT(one([](GgufBytes& b) { b.value<std::uint64_t>("k", 13, 0); }),
              HasSubstr("metadata key 'k' has the unknown type 13"));
  EXPECT_THAT(one([](GgufBytes& b) { b.array("k", 13, 0); }), HasSubstr("unknown type 13"));
  EXPECT_THAT(one([](GgufBytes& b) { b.value<std::uint8_t>("k", kBool, 2); }),
              HasSubstr("a boolean that is neither 0 nor 1"));
  EXPECT_THAT(one([](GgufBytes& b) {
                b.array("k", kArray, 1);
                for (int i = 0; i < 9; ++i) b.put(kArray).put<std::uint64_t>(1);
              }),
              HasSubstr("nests arrays too deeply"));
  GgufBytes twice;
  twice.header(0, 2).value<std::uint32_t>("k", kU32, 1).value<std::uint32_t>("k", kU32, 1);
  EXPECT_THAT(error_of(twice.str()), HasSubstr("metadata key 'k' appears twice"));
}

TEST(GgufFile, RefusesAlignmentsThatAreNoPowersOfTwo) {
  const auto with = [](std::uint32_t alignment) {
    GgufBytes bytes;
    bytes.header(1, 1).value("general.alignment", kU32, alignment);
    return error_of(bytes.tensor("t", {8}, 0, 0).pad().zeros(64).str());
  };
  EXPECT_THAT(with(0), HasSubstr("general.alignment is 0"));
  EXPECT_THAT(with(3), HasSubstr("general.alignment is 3"));
  EXPECT_THAT(with(0xFFFFFFFF), HasSubstr("must be a power of two"));
  EXPECT_THAT(with(0x80000000), HasSubstr("ends before the data"));
  GgufBytes text;
  text.header(0, 1).string_value("general.alignment", "32");
  EXPECT_THAT(error_of(text.str()), HasSubstr("must be a 32-bit unsigned integer"));
}

TEST(GgufFile, RefusesBadTensorEntries) {
  EXPECT_EQ(error_of(one_tensor().str()), "no error");
  EXPECT_THAT(error_of(one_tensor({1, 1, 1, 1, 1}).str()), HasSubstr("has 5 dimensions"));
  EXPECT_THAT(error_of(one_tensor({0}).str()), HasSubstr("a dimension of 0"));
  EXPECT_THAT(error_of(one_tensor({~std::uint64_t{0}}).str()), HasSubstr("a dimension of -1"));
  EXPECT_THAT(error_of(one_tensor({8}, 0, 1).str()), HasSubstr("lies at offset 1"));
  EXPECT_THAT(error_of(one_tensor({8}, 0, 32).str()), HasSubstr("beyond the end of the file"));
  EXPECT_THAT(error_of(one_tensor({8}, 0, ~std::uint64_t{31}).str()),
              HasSubstr("beyond the end of the file"));
  EXPECT_THAT(error_of(one_tensor({9}).str()), HasSubstr("beyond the end of the file"));
  EXPECT_THAT(error_of(one_tensor({8}, 2).str()), HasSubstr("Q4_0 needs a multiple of 32"));
  for (const std::string& name : {std::string(), std::string(65, 'n')}) {
    GgufBytes bytes;
    bytes.header(1, 0).tensor(name, {8}, 0, 0).pad().zeros(32);
    EXPECT_THAT(error_of(bytes.str()), HasSubstr("must have 1 to 64"));
  }
  GgufBytes twice;
  twice.header(2, 0).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).pad().zeros(64);
  EXPECT_THAT(error_of(twice.str()), HasSubstr("tensor 't' appears twice"));
  GgufBytes overlap;
  overlap.header(2, 0).tensor("t", {16}, 0, 0).tensor("u", {8}, 0, 32).pad().zeros(64);
  EXPECT_THAT(error_of(overlap.str()), HasSubstr("tensors 't' and 'u' overlap"));
}

TEST(GgufFile, RefusesSizesThatOverflowAnInteger) {
  const std::uint64_t k31 = std::uint64_t{1} << 31;
  const std::uint64_t k32 = std::uint64_t{1} << 32;
  // Products just beyond 2^31, 2^32, 2^63 and 2^64: in elements, and once multiplied into bytes.
  const std::vector<std::vector<std::uint64_t>> shapes{
      {k31 + 8},     {k32 + 8},   {65536, 65537},  {k32, k32},           {k31, k31, 4},
      {1, k32, k32}, {kHuge, 16}, {kHuge * 4 + 8}, {k32 + 8, k32, 1, 1}, {3, 3, 3, kHuge}};
  for (const auto& shape : shapes) {
    for (const std::uint32_t type : {0U, 8U, 12U, 28U, 999U}) {
      const std::string error = error_of(one_tensor(shape, type).str());
      const bool unknown_and_small = type == 999 && error == "no error";
      EXPECT_TRUE(unknown_and_small || error.find("tensor 't'") != std::string::npos) << error;
      EXPECT_TRUE(type == 999 || error != "no error");
    }
  }
}

TEST(GgufFile, KeepsTensorsOfUnknownTypesForTheDayTheyAreUsed) {
  const std::string bytes = one_tensor({8}, 999).str();
  const HeapBytes heap(bytes);
  const auto file = GgufFile::parse(heap.span(), "x.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_TRUE(file->tensors()[0].data.empty());
  EXPECT_EQ(gguf_tensor_type_name(999), "type 999");
  EXPECT_EQ(gguf_tensor_type_name(16), "IQ2_XXS");
  EXPECT_EQ(gguf_tensor_type_name(4), "Q4_2");
}

TEST(GgufFile, EscapesNamesInErrors) {
  GgufBytes bytes;
  bytes.header(0, 1).value<std::uint64_t>("a\n\x1b[31m", 13, 0);
  EXPECT_THAT(error_of(bytes.str()), HasSubstr("'a\\x0a\\x1b[31m'"));
}

// Looks at everything a parsed file offers.
std::size_t touch(const GgufFile& file) {
  std::size_t sum = 0;
  for (const GgufValue& value : file.metadata()) {
    for (const std::string_view text : value.strings()) sum += text.size();
    if (file.find_array(value.key) == nullptr) continue;
    sum += static_cast<std::size_t>(value.int_at(value.count - (value.count > 0)).value_or(0));
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.data.empty()) continue;
    sum += static_cast<std::size_t>(tensor.data.front()) +
           static_cast<std::size_t>(tensor.data.back());
  }
  return sum;
}

TEST(GgufFile, SurvivesTruncationAtEveryByte) {
  const std::string bytes = read_file(kTinyGguf);
  ASSERT_GT(bytes.size(), 1000U);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const HeapBytes heap(std::string_view(bytes).substr(0, size));
    const auto file = GgufFile::parse(heap.span(), "x.gguf");
    ASSERT_FALSE(file.has_value()) << "truncated to " << size;
  }
  EXPECT_EQ(error_of(bytes), "no error");
}

TEST(GgufFile, SurvivesEveryFlippedBitOfItsHeader) {
  std::string bytes = read_file(kTinyGguf);
  const auto whole = GgufFile::open(kTinyGguf);
  ASSERT_TRUE(whole.has_value());
  std::size_t data_bytes = 0;
  for (const GgufTensor& tensor : whole->tensors()) data_bytes += tensor.data.size();
  const std::size_t header_bytes = bytes.size() - data_bytes;
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * header_bytes; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const HeapBytes heap(bytes);
    const auto file = GgufFile::parse(heap.span(), "x.gguf");
    if (file.has_value()) {
      touch(*file);
    } else {
      ++refused;
    }
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace kun
