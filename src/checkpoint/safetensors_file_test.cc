// Every rule of the format, broken once; the names follow the errors of the reference
// implementation (SafeTensorError in huggingface/safetensors).
#include "checkpoint/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/safetensors_index.h"
#include "checkpoint/test_files.h"

namespace kun {
namespace {

using ::testing::HasSubstr;

std::string error_of_bytes(const std::string& bytes) {
  const HeapBytes heap(bytes);
  const auto file = SafetensorsFile::parse(heap.span(), "x.safetensors");
  return file.has_value() ? "no error" : file.error().message();
}

std::string error_of(std::string_view header, std::size_t data_bytes = 8) {
  return error_of_bytes(safetensors_bytes(header, data_bytes));
}

constexpr std::string_view kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
    R"("a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}  )";

TEST(SafetensorsFile, ReadsTensorsInTheOrderOfTheirData) {
  const HeapBytes heap(safetensors_bytes(kGood, 8));
  const auto file = SafetensorsFile::parse(heap.span(), "x.safetensors");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  ASSERT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->tensors()[0].name, "a");
  const SafetensorsTensor* b = file->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, "BF16");
  EXPECT_EQ(b->shape, std::vector<std::int64_t>{2});
  EXPECT_EQ(b->data.size(), 4U);
  EXPECT_EQ(b->data.data(), heap.span().data() + 8 + kGood.size() + 4);
  EXPECT_EQ(file->find("c"), nullptr);
}

TEST(SafetensorsFile, AcceptsScalarsEmptyTensorsAndFilesWithoutAny) {
  EXPECT_EQ(error_of(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4), "no error");
  EXPECT_EQ(error_of(R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})", 0), "no error");
  EXPECT_EQ(error_of("{}", 0), "no error");
  EXPECT_EQ(error_of(R"({"f":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2), "no error");
}

TEST(SafetensorsFile, RefusesAHeaderThatIsNoHeader) {
  EXPECT_THAT(error_of_bytes(""), HasSubstr("shorter than 8 bytes"));
  EXPECT_THAT(error_of_bytes("1234567"), HasSubstr("shorter than 8 bytes"));
  EXPECT_THAT(error_of_bytes(std::string(8, '\0')), HasSubstr("does not start with '{'"));
  EXPECT_THAT(error_of_bytes(std::string(8, '\xff')), HasSubstr("at most 100000000"));
  EXPECT_THAT(error_of_bytes(std::string("\x10\0\0\0\0\0\0\0{}", 10)),
              HasSubstr("claims 16 bytes, the file has only 2 left"));
  EXPECT_THAT(error_of(" {}", 0), HasSubstr("does not start with '{'"));
  EXPECT_THAT(error_of("[]", 0), HasSubstr("does not start with '{'"));
  EXPECT_THAT(error_of("{", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{} {}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{\"\xff\":1}", 0), HasSubstr("not valid JSON"));
}

TEST(SafetensorsFile, RefusesBadEntries) {
  EXPECT_THAT(error_of(R"({"t":1})"), HasSubstr("tensor 't' is not described by an object"));
  EXPECT_THAT(error_of(R"({"t":{}})"), HasSubstr("needs all of dtype, shape and data_offsets"));
  EXPECT_THAT(error_of(R"({"t":{"dtype":1}})"), HasSubstr("a dtype that is no string"));
  const auto with = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return error_of("{\"t\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":" +
                    std::string(shape) + ",\"data_offsets\":" + std::string(offsets) + "}}");
  };
  EXPECT_EQ(with("F32", "[2]", "[0,8]"), "no error");
  EXPECT_THAT(with("Q4", "[2]", "[0,8]"), HasSubstr("the unknown dtype 'Q4'"));
  EXPECT_THAT(with("F32", "2", "[0,8]"), HasSubstr("a shape that is no list of sizes"));
  EXPECT_THAT(with("F32", "[-2]", "[0,8]"), HasSubstr("a shape that is no list of sizes"));
  EXPECT_THAT(with("F32", "[2.0]", "[0,8]"), HasSubstr("a shape that is no list of sizes"));
  EXPECT_THAT(with("F32", "[\"2\"]", "[0,8]"), HasSubstr("a shape that is no list of sizes"));
  EXPECT_THAT(with("F32", "[18446744073709551615]", "[0,8]"), HasSubstr("no list of sizes"));
  EXPECT_THAT(with("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,8]"),
              HasSubstr("no list of sizes"));
  EXPECT_THAT(with("F32", "[2]", "[0]"), HasSubstr("no pair of positions"));
  EXPECT_THAT(with("F32", "[2]", "[0,8,8]"), HasSubstr("no pair of positions"));
  EXPECT_THAT(with("F32", "[2]", "[-1,8]"), HasSubstr("no pair of positions"));
  EXPECT_THAT(with("F32", "[2]", "[8,0]"), HasSubstr("ends before it begins"));
  EXPECT_THAT(with("F32", "[2]", "[8,16]"), HasSubstr("beyond the end of the file"));
  EXPECT_THAT(with("F32", "[3]", "[0,8]"), HasSubstr("needs 12 bytes by its shape and has 8"));
  EXPECT_THAT(with("F4", "[3]", "[0,8]"), HasSubstr("does not fill its last byte"));
  EXPECT_THAT(with("F32", "[4294967296,4294967296]", "[0,8]"), HasSubstr("more elements"));
  EXPECT_THAT(with("F32", "[4611686018427387905,4]", "[0,8]"), HasSubstr("more elements"));
}

TEST(SafetensorsFile, RefusesDuplicates) {
  constexpr std::string_view kEntry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const std::string twice = "{\"t\":" + std::string(kEntry) + ",\"t\":" + std::string(kEntry) + "}";
  EXPECT_THAT(error_of(twice, 0), HasSubstr("tensor 't' appears twice"));
  const std::string escaped =
      "{\"t\":" + std::string(kEntry) + ",\"\\u0074\":" + std::string(kEntry) + "}";
  EXPECT_THAT(error_of(escaped, 0), HasSubstr("tensor 't' appears twice"));
  EXPECT_THAT(error_of(R"({"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
              HasSubstr("two fields 'dtype'"));
  EXPECT_THAT(error_of(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("twice"));
}

TEST(SafetensorsFile, RefusesOverlapsAndHoles) {
  const auto two = [](std::string_view a, std::string_view b, std::size_t data_bytes) {
    return error_of(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + std::string(a) +
            "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + std::string(b) + "}}",
        data_bytes);
  };
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "no error");
  EXPECT_THAT(two("[0,4]", "[0,4]", 8), HasSubstr("tensor 'b' overlaps another tensor"));
  EXPECT_THAT(two("[0,4]", "[2,6]", 8), HasSubstr("tensor 'b' overlaps another tensor"));
  EXPECT_THAT(two("[0,4]", "[5,9]", 9), HasSubstr("tensor 'b' has bytes before it"));
  EXPECT_THAT(two("[1,5]", "[5,9]", 9), HasSubstr("tensor 'a' has bytes before it"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 9), HasSubstr("goes on after the last tensor"));
  EXPECT_THAT(error_of("{}", 1), HasSubstr("goes on after the last tensor"));
}

TEST(SafetensorsFile, RefusesMetadataThatIsNoMapOfStrings) {
  EXPECT_THAT(error_of(R"({"__metadata__":[]})", 0), HasSubstr("not a map of strings"));
  EXPECT_THAT(error_of(R"({"__metadata__":{"a":1}})", 0), HasSubstr("not a map of strings"));
  EXPECT_THAT(error_of(R"({"__metadata__":{"a":{"b":"c"}}})", 0),
              HasSubstr("not a map of strings"));
}

TEST(SafetensorsFile, SurvivesTruncationAtEveryByte) {
  const std::string bytes =
      read_file(KUN_TEST_DATA "/tiny-models/llama-gqa-llama3/model.safetensors");
  ASSERT_GT(bytes.size(), 1000U);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const HeapBytes heap(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(SafetensorsFile::parse(heap.span(), "x").has_value()) << "truncated to " << size;
  }
  EXPECT_EQ(error_of_bytes(bytes), "no error");
}

TEST(SafetensorsFile, SurvivesEveryFlippedBitOfItsHeader) {
  std::string bytes = read_file(KUN_TEST_DATA "/tiny-models/llama-gqa-llama3/model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * (length + 8); ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const HeapBytes heap(bytes);
    refused += !SafetensorsFile::parse(heap.span(), "x").has_value();
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
  EXPECT_GT(refused, 1000);
}

std::string index_error(std::string_view json) {
  const auto index = parse_safetensors_index(json, "index.json");
  return index.has_value() ? "no error" : index.error().message();
}

TEST(SafetensorsIndex, MapsTensorsToFiles) {
  const auto index = parse_safetensors_index(
      R"({"metadata":{"total_size":1},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})",
      "index.json");
  ASSERT_TRUE(index.has_value()) << index.error().message();
  EXPECT_EQ(index->at("a"), "m-1.safetensors");
  EXPECT_EQ(index->at("b"), "m-2.safetensors");
}

TEST(SafetensorsIndex, RefusesFilesOutsideOfTheFolder) {
  for (const char* name :
       {"../m.safetensors", "/etc/m.safetensors", "a/m.safetensors", ".safetensors", "m.bin", "",
        "m\\\\n.safetensors", "a\\u0000.safetensors"}) {
    EXPECT_THAT(index_error(std::string(R"({"weight_map":{"a":")") + name + "\"}}"),
                HasSubstr("tensor 'a' does not name a .safetensors file of the same folder"))
        << name;
  }
}

TEST(SafetensorsIndex, RefusesWhatIsNoIndex) {
  for (const char* json : {"", "[]", "{}", "null", R"({"weight_map":[]})", R"({"weight_map":1})"}) {
    EXPECT_THAT(index_error(json), HasSubstr("no map 'weight_map'")) << json;
  }
  EXPECT_THAT(index_error(R"({"weight_map":{}})"), HasSubstr("names no tensors"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":["m"]}})"), HasSubstr("tensor 'a'"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":"m.safetensors","a":"n.safetensors"}})"),
              HasSubstr("tensor 'a' appears twice"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":"m.safetensors")"), HasSubstr("index.json"));
}

}  // namespace
}  // namespace kun
