// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/fields.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "engine/core/measurement.h"

namespace gradtune::core {
namespace {

struct Record {
  int32_t slot = 1;
  bool is_old = false, is_new = true;
};
constexpr auto kFields =
    std::tuple{Field{"slot", &Record::slot, FieldKind::slot}, Field{"is_old", &Record::is_old, FieldKind::flag},
               Field{"is_new", &Record::is_new, FieldKind::flag, /*is_optional=*/true}};

TEST(Fields, AreVisitedInOrderWithTheirMembers) {
  Record record;
  std::string text;
  for_each_field(kFields, [&](const auto& field) {
    text += std::string(field.name) + (field.is_optional ? "?" : "") + "=" + std::to_string(record.*field.member) + " ";
    record.*field.member = {};
  });
  EXPECT_EQ(text, "slot=1 is_old=0 is_new?=1 ");
  EXPECT_EQ(record.slot, 0);
  EXPECT_FALSE(record.is_new);
}

TEST(Fields, AreCountedByType) {
  EXPECT_EQ(count_fields<bool>(kFields), 2);
  EXPECT_EQ((count_fields<bool, int32_t>(kFields)), 3);
  EXPECT_EQ(count_fields<double>(kFields), 0);
}

TEST(Fields, OfAReportHaveNamesOfTheirOwnAndKindsThatFitTheirTypes) {
  std::set<std::string_view> names;
  for_each_field(kStepReportFields, [&]<typename Value>(const Field<StepReport, Value>& field) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_EQ(field.kind == FieldKind::flag, (std::is_same_v<Value, bool>)) << field.name;
    EXPECT_EQ(field.kind == FieldKind::ms, (std::is_same_v<Value, double>)) << field.name;
    EXPECT_EQ(field.kind == FieldKind::step, (std::is_same_v<Value, int64_t>)) << field.name;
    EXPECT_EQ(field.kind == FieldKind::excess, (std::is_same_v<Value, Excess>)) << field.name;
  });
}

}  // namespace
}  // namespace gradtune::core
