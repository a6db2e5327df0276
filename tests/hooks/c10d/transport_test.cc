// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/transport.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace gradtune {
namespace {

using testing::HasSubstr;
using Choice = TransportChoice;

TEST(Transport, FollowsTheGroupUnlessTheOptionNamesOne) {
  constexpr auto kAuto = Collectives::automatic, kGloo = Collectives::gloo, kNccl = Collectives::nccl;
  constexpr auto gloo = Transport::gloo, nccl = Transport::nccl, given = Transport::given;
  const std::string cuda = "the process group's backend for cuda", cpu = "the process group's backend for cpu",
                    own = ", of which gradtune can not make groups of its own", paced = "GRADTUNE_PACING_MBIT paces it",
                    option = "option collectives", makes = "it makes gradtune's groups";
  const struct {
    TransportFacts facts;
    Choice choice;
  } table[] = {
      // The group decides.
      {{kAuto, "cpu", "gloo"}, {gloo, cpu}},
      {{kAuto, "cuda", "gloo"}, {gloo, cuda}},
      {{kAuto, "cuda", "nccl"}, {nccl, cuda}},
      {{kAuto, "fake", "nccl"}, {nccl, "the process group's backend for fake"}},
      {{kAuto, "cpu", ""}, {gloo, "the process group has no backend for cpu"}},
      {{kAuto, "cuda", ""}, {gloo, "the process group has no backend for cuda"}},
      {{kAuto, "cpu", "mpi"}, {gloo, cpu + " is mpi" + own}},
      {{kAuto, "cuda", "ucc"}, {gloo, cuda + " is ucc" + own}},
      {{kAuto, "xpu", "xccl"}, {gloo, "the process group's backend for xpu is xccl" + own}},
      {{kAuto, "cpu", "nccl"}, {gloo, cpu + " is nccl" + own}},
      // The option decides.
      {{kGloo, "cpu", "mpi"}, {gloo, option}},
      {{kGloo, "cuda", "nccl"}, {gloo, option}},
      {{kNccl, "cuda", "gloo"}, {nccl, option}},
      {{kNccl, "cuda", ""}, {nccl, option}},
      // The user made gradtune's groups, or their link.
      {{kAuto, "cuda", "nccl", true}, {given, makes}},
      {{kGloo, "cpu", "gloo", true}, {given, makes}},
      {{kAuto, "cuda", "nccl", false, true}, {gloo, paced}},
      {{kAuto, "cpu", "gloo", true, true}, {given, makes}},
      {{kGloo, "cuda", "nccl", false, true}, {gloo, option}},
  };
  for (const auto& [facts, choice] : table) {
    const auto chosen = choose_transport(facts);
    ASSERT_TRUE(chosen.ok()) << chosen.error().message;
    EXPECT_EQ(chosen.value(), choice) << to_text(chosen.value()) << ", expected " << to_text(choice);
  }
}

TEST(Transport, NcclIsRefusedByNameWhereItCanNotBe) {
  const auto refusal = [](const TransportFacts& facts) {
    const auto chosen = choose_transport(facts);
    return chosen.ok() ? to_text(chosen.value()) : chosen.error().message;
  };
  EXPECT_EQ(refusal({Collectives::nccl, "cpu", "gloo"}),
            "option collectives is \"nccl\", which is for parameters on a CUDA device, and these are on the CPU; "
            "allowed are auto and gloo");
  EXPECT_THAT(refusal({Collectives::nccl, "cuda", "nccl", true}),
              HasSubstr("is \"nccl\", and make_group makes other communicators; allowed is one of both"));
  EXPECT_THAT(refusal({Collectives::nccl, "cuda", "nccl", false, true}),
              HasSubstr("is \"nccl\", and GRADTUNE_PACING_MBIT paces other communicators; allowed is one of both"));
}

TEST(Transport, NcclIsRefusedByNameInABuildThatLacksIt) {
  const auto chosen = [](Collectives option, const std::string& backend, bool has_make_group) {
    const auto choice = choose_transport({.option = option,
                                          .device = "cuda",
                                          .backend = backend,
                                          .has_make_group = has_make_group,
                                          .no_nccl = "this build is old"});
    return choice.ok() ? to_text(choice.value()) : choice.error().message;
  };
  EXPECT_EQ(chosen(Collectives::automatic, "nccl", false),
            "gradients can not go over nccl (the process group's backend for cuda): this build is old; allowed is gloo "
            "(option collectives)");
  EXPECT_THAT(chosen(Collectives::nccl, "gloo", false), HasSubstr("over nccl (option collectives): this build is old"));
  EXPECT_EQ(chosen(Collectives::gloo, "nccl", false), "gloo (option collectives)");
  EXPECT_EQ(chosen(Collectives::automatic, "gloo", false), "gloo (the process group's backend for cuda)");
  EXPECT_EQ(chosen(Collectives::automatic, "nccl", true), "make_group (it makes gradtune's groups)");
}

TEST(Transport, ItsTextBeginsWithItsName) {
  EXPECT_EQ(to_text({Transport::nccl, "why"}), "nccl (why)");
  EXPECT_EQ(to_text({Transport::gloo, "why"}), "gloo (why)");
  EXPECT_EQ(to_text({Transport::given, "why"}), "make_group (why)");
}

}  // namespace
}  // namespace gradtune
