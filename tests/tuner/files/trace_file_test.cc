// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/version.h"

namespace gradtune::tuner {
namespace {

constexpr std::string_view kTrace = R"({"model": "m", "order": "backward", "tensors": [
  {"name": "b", "numel": 10, "ready_us": 0},
  {"name": "w", "numel": 3000, "ready_us": 12.5}]})";

std::string error_of(std::string text, std::string_view what, std::string_view with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  const auto trace = parse_trace(text.replace(at, what.size(), with));
  return trace.ok() ? "" : trace.error().message;
}

TEST(TraceFile, IsReadInItsOrder) {
  const auto read = parse_trace(kTrace);
  ASSERT_TRUE(read.ok());
  const TraceFile& trace = read.value();
  EXPECT_EQ(trace.model, "m");
  ASSERT_EQ(trace.table.tensors.size(), 2u);
  EXPECT_EQ(trace.table.tensors[1], (core::TensorInfo{.name = "w", .shape = {3000}, .numel = 3000, .ready_us = 12.5}));
}

TEST(TraceFile, NamesWhatDoesNotFit) {
  const std::string trace(kTrace);
  EXPECT_EQ(error_of(trace, "\"order\"", "\"colour\""),
            "trace: the key \"colour\" is unknown; known are model, tensors, order, ready_us, source");
  EXPECT_EQ(error_of(trace, "\"model\": \"m\", ", ""),
            "trace: the key \"model\" is missing; needed are model, tensors");
  EXPECT_EQ(error_of(trace, "3000", "-1"),
            "trace.tensors[1].numel: an integer from 0 to 1099511627776 is needed, found -1");
  EXPECT_EQ(error_of(trace, "12.5", "\"soon\""),
            "trace.tensors[1].ready_us: a number from 0 to 1000000000000 is needed, found \"soon\"");
  EXPECT_EQ(error_of(trace, "\"ready_us\": 0}", "\"ready_us\": 13}"),
            "trace.tensors[1].ready_us: 12.5 is before the tensor in front of it (13); backward order is needed");
  EXPECT_EQ(error_of(trace, "\"w\"", "\"b\""), "trace.tensors[1].name: \"b\" is the name of another tensor too");
  EXPECT_THAT(error_of(trace, "]}", "]"), testing::Not(testing::IsEmpty()));
}

TraceFile recorded() {
  TraceFile trace{.model = "m", .table = {}};
  trace.table.forward_us = 250.5;
  trace.table.update_element_us = 1.0 / 3000;
  trace.table.tensors = {{.name = "b", .shape = {10}, .numel = 10, .dtype = core::DType::bf16},
                         {.name = "w",
                          .shape = {300, 10},
                          .numel = 3000,
                          .dtype = core::DType::f16,
                          .ready_us = 12.5,
                          .read_us = 3,
                          .content = {.row = 10, .of_one = 0.125, .of_all = 0.25, .high_one = 0.5, .high_all = 0.75}}};
  return trace;
}

TEST(TraceFile, GivesBackAllThatIsKnownOfTheGradients) {
  const auto read = parse_trace(to_json(recorded()));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), recorded());
}

TEST(TraceFile, ARecordedOneNamesWhatDoesNotFit) {
  const std::string trace = to_json(recorded());
  EXPECT_EQ(error_of(trace, "gradtune.trace/2", "gradtune.trace/1"),
            "trace.schema: \"gradtune.trace/2\" is needed, found \"gradtune.trace/1\"; this is gradtune " +
                std::string(core::version()));
  EXPECT_EQ(error_of(trace, "\"float16\"", "\"float8\""), "trace.tensors[1].dtype: \"float8\" is unknown");
  EXPECT_EQ(error_of(trace, "0.125", "1.125"),
            "trace.tensors[1].content.of_one: a number from 0 to 1 is needed, found 1.125");
  EXPECT_EQ(error_of(trace, "250.5", "-1"), "trace.forward_us: a number from 0 to 1000000000000 is needed, found -1");
  EXPECT_EQ(error_of(trace, "\"w\"", "\"b\""), "trace.tensors[1].name: \"b\" is the name of another tensor too");
  for (size_t size = 0; size + 2 < trace.size(); ++size) EXPECT_FALSE(parse_trace(trace.substr(0, size)).ok()) << size;
}

TEST(TraceFile, EveryTruncationIsRefused) {
  for (size_t size = 0; size < kTrace.size(); ++size) EXPECT_FALSE(parse_trace(kTrace.substr(0, size)).ok()) << size;
}

}  // namespace
}  // namespace gradtune::tuner
