#include "server/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kun {
namespace {

TEST(JsonWriter, PutsCommasWhereTheyBelong) {
  JsonWriter json;
  json.begin_object().key("a").begin_array().integer(1).integer(2).begin_object().end_object();
  json.end_array().key("b").null().key("c").boolean(true).key("d").raw("[3]").end_object();
  EXPECT_EQ(json.take(), R"({"a":[1,2,{}],"b":null,"c":true,"d":[3]})");
}

TEST(JsonWriter, WritesTheShortestFloatThatReadsBack) {
  JsonWriter json;
  json.begin_array().number(0.7).number(0.1F).number(-0.5F).number(1e-7F).number(-9999.0F);
  json.number(std::numeric_limits<float>::infinity()).number(std::nan("")).end_array();
  EXPECT_EQ(json.take(), "[0.7,0.1,-0.5,1e-07,-9999,null,null]");
}

TEST(JsonWriter, EscapesAndRepairsStrings) {
  JsonWriter json;
  json.string("\"\\\n\r\t\x01\x1f é\xFFz");
  EXPECT_EQ(json.take(), "\"\\\"\\\\\\n\\r\\t\\u0001\\u001f é\xEF\xBF\xBDz\"");
}

}  // namespace
}  // namespace kun
