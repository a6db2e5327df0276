// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains real models on a device without hardware (fake_device.h), on real ranks over Gloo. The parameters are those
// of training on the CPU, bit for bit, with the same strategy. Every kind of missing wait between streams changes
// them.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"
#include "examples/train_fashion_mnist/data.h"
#include "policies/cost/cost_fit.h"
#include "policies/cost/cost_model.h"
#include "tests/hooks/device_job.h"
#include "tests/hooks/fake_device.h"
#include "tests/hooks/fake_kernels.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/nccl_jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
// copied: the device only copies, the host compresses.
enum class Where : uint8_t { cpu, copied, kernels };

DeviceJob at(Where where, DeviceJob job) {
  if (where != Where::cpu) job.device = fake_device();
  if (where == Where::kernels) job.make_kernels = [](c10::Device) { return fake_kernels(); };
  return job;
}

// Faults that are removed before the session ends, which then waits for all work under way.
struct Planted {
  explicit Planted(const FakeDeviceFaults& faults) { set_faults(faults); }
  ~Planted() { set_faults({}); }
};

Parameters train(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const DeviceJob& job,
                 const FakeDeviceFaults& faults) {
  return train(rank, group, job, [&] { return std::make_shared<Planted>(faults); });
}

// --- the device ------------------------------------------------------------------------------------------------------

TEST(FakeDevice, ComputesAsTheCpu) {
  const auto trained = [](DeviceModelKind kind, c10::Device device) {
    DeviceModel model(kind, device, torch::kFloat);
    torch::optim::Adam adam(model.parameters(), 0.01);
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      model.loss(make_data(0, step)).backward();
      adam.step();
    }
    return model.on_cpu();
  };
  for (const DeviceModelKind kind : {DeviceModelKind::mlp, DeviceModelKind::transformer}) {
    EXPECT_TRUE(same_bits(trained(kind, torch::kCPU), trained(kind, fake_device())));
  }
}

// --- training --------------------------------------------------------------------------------------------------------

// Images of a rank, from the first step on.
std::function<Data(int)> fashion_mnist(const Rank& rank) {
  const auto all = std::make_shared<Dataset>(load_fashion_mnist(kFashionMnistFolder, "t10k"));
  const auto batches = std::make_shared<Batches>(*all, /*batch_size=*/32, rank.rank, rank.size, /*seed=*/1);
  return [all, batches](int) {
    Batch batch = batches->next();
    return Data{batch.images.flatten(1), batch.labels};
  };
}

Parameters train_model(DeviceModelKind model, const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       DeviceJob job) {
  job.model = model;
  if (model == DeviceModelKind::images) job.data = fashion_mnist(rank);
  return train(rank, group, job);
}

// At exact and on two ranks, tuning never changes a bit: the order of two summands does not matter.
void expect_bits_while_tuning(DeviceModelKind model) {
  run_ranks(2, [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    const Parameters on_cpu = train_model(model, rank, group, {.fidelity = "exact", .steps = 40});
    for (const Where where : {Where::copied, Where::kernels}) {
      const DeviceJob job{.fidelity = "exact", .steps = 40, .tuning_budget = 30};
      EXPECT_TRUE(same_bits(on_cpu, train_model(model, rank, group, at(where, job))));
    }
  });
}

TEST(DeviceTraining, ATunedJobAtExactHasTheBitsOfTheCpu) { expect_bits_while_tuning(DeviceModelKind::mlp); }
TEST(DeviceTraining, ATunedTransformerHasTheBitsOfTheCpu) { expect_bits_while_tuning(DeviceModelKind::transformer); }
TEST(DeviceTraining, ATunedJobOnFashionMnistHasTheBitsOfTheCpu) { expect_bits_while_tuning(DeviceModelKind::images); }
TEST(DeviceTraining, ATunedJobWithSparseGradientsHasTheBitsOfTheCpu) {
  expect_bits_while_tuning(DeviceModelKind::table);
}

// Tests strategies that do not change.
void expect_bits_at_each_fidelity(DeviceModelKind model, int size) {
  run_ranks(size, [&](const Rank& rank) {
    const DeviceJob jobs[] = {
        {.option = "all_reduce", .fidelity = "exact"},
        {.option = "bf16: encode@device all_reduce decode@device", .fidelity = "half"},
        {.option = "int8: encode@device all_to_all decode@device encode@device all_gather decode@host"},
        {.option = "topk:0.05: encode@device all_gather decode@device"}};
    fake_device();
    const auto group = make_group();
    for (const DeviceJob& job : jobs) {
      const Parameters on_cpu = train_model(model, rank, group, job);
      for (const Where where : {Where::copied, Where::kernels}) {
        EXPECT_TRUE(same_bits(on_cpu, train_model(model, rank, group, at(where, job)))) << job.option;
      }
    }
  });
}

TEST(DeviceTraining, FashionMnistOnTwoRanksHasTheBitsOfTheCpu) {
  expect_bits_at_each_fidelity(DeviceModelKind::images, 2);
}
TEST(DeviceTraining, FashionMnistOnFourRanksHasTheBitsOfTheCpu) {
  expect_bits_at_each_fidelity(DeviceModelKind::images, 4);
}
TEST(DeviceTraining, ATransformerOnTwoRanksHasTheBitsOfTheCpu) {
  expect_bits_at_each_fidelity(DeviceModelKind::transformer, 2);
}
TEST(DeviceTraining, ATransformerOnFourRanksHasTheBitsOfTheCpu) {
  expect_bits_at_each_fidelity(DeviceModelKind::transformer, 4);
}

// Each piece of work on the model's stream takes a millisecond more, while the host requests all of it at once.
TEST(DeviceTraining, ATunedJobPlansWithWhatItsDeviceDoes) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  run_ranks(2, [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    FakeDeviceFaults faults;
    faults.delay_us = [](const std::string& stream) { return stream == "current" ? 1'000 : 0; };
    train(rank, group, at(Where::kernels, {.steps = 40, .tuning_budget = 30, .journal = journal}), faults);
    if (rank.rank != 0) return;
    const auto read = tuner::read_journal(journal);
    ASSERT_TRUE(read.ok()) << read.error().message;
    const tuner::JournalFile& file = read.value();
    EXPECT_EQ(file.job.machine.on_device,
              (policies::OnDevice{.gradients = true, .collectives = false, .kernels = true}));
    EXPECT_EQ(file.job.machine.cores.computing, 0) << "of the host's cores backward needs none";
    const std::vector<double> ready_us = policies::ready_times_us(file.job.table);
    EXPECT_GE(ready_us.back(), 2000) << "two layers are behind the last one";
    ASSERT_FALSE(file.reports.empty());
    EXPECT_GE(file.reports.back().compute_ms_min, 6) << "what the device computes is no wait for the exchange";
    int to_host = 0, to_device = 0;
    for (const tuner::Timing& timing : file.timings) {
      for (const policies::TimedOp& op : timing.ops) {
        if (op.step != policies::kToHostStep && op.step != policies::kToDeviceStep) continue;
        EXPECT_GT(op.bytes, 0);
        EXPECT_GE(op.end_us, op.begin_us);
        ++(op.step == policies::kToHostStep ? to_host : to_device);
      }
    }
    EXPECT_GT(to_host, 0);
    EXPECT_GT(to_device, 0);
    const policies::CostTable fitted =
        policies::fit_cost(file.runs(), file.job.table, file.job.ranks, compress::known_traits(), {}, file.job.machine)
            .table;
    EXPECT_GT(fitted.to_host.us(1000), 0);
  });
}

TEST(DeviceTraining, OfASparseTableGoRowsAlone) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  run_ranks(2, [&](const Rank& rank) {
    fake_device();
    const DeviceJob job{.fidelity = "exact", .steps = 12, .tuning_budget = 10, .journal = journal};
    train_model(DeviceModelKind::table, rank, make_group(), at(Where::kernels, job));
  });
  const tuner::JournalFile file = tuner::read_journal(journal).value();
  int64_t sent = 0, table = 0;
  for (const policies::TimedOp& op : file.timings.at(0).ops) {
    if (op.step == 1) sent += op.bytes;  // the collective of the baseline
  }
  for (const core::TensorInfo& tensor : file.job.table.tensors) table = std::max(table, 4 * tensor.numel);
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, table / 20) << "of 5000 rows a rank uses 40";
}

TEST(DeviceTraining, ADeviceWithoutTimesIsTunedByWholeSteps) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  run_ranks(2, [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    const DeviceJob job{.fidelity = "exact", .steps = 40, .tuning_budget = 30, .journal = journal};
    const Parameters on_cpu = train(rank, group, {.fidelity = "exact", .steps = 40});
    set_faults({.times_events = false});
    EXPECT_TRUE(same_bits(on_cpu, train(rank, group, at(Where::kernels, job))));
    set_faults({});
    if (rank.rank != 0) return;
    const auto read = tuner::read_journal(journal);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_TRUE(read.value().timings.empty());
    EXPECT_FALSE(read.value().reports.empty());
  });
}

void expect_bits_of_the_cpu(int size, torch::ScalarType type) {
  run_ranks(size, [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : kDeviceOptions) {
      const Parameters on_cpu = train(rank, group, {.option = option, .type = type});
      for (const Where where : {Where::copied, Where::kernels}) {
        EXPECT_TRUE(same_bits(on_cpu, train(rank, group, at(where, {.option = option, .type = type})))) << option;
      }
    }
  });
}

TEST(DeviceTraining, EveryKindOfProgramHasTheBitsOfTheCpu) { expect_bits_of_the_cpu(2, torch::kFloat); }
TEST(DeviceTraining, FourRanksHaveTheBitsOfTheCpu) { expect_bits_of_the_cpu(4, torch::kFloat); }
TEST(DeviceTraining, GradientsOfBfloat16HaveTheBitsOfTheCpu) { expect_bits_of_the_cpu(2, torch::kBFloat16); }
TEST(DeviceTraining, GradientsOfFloat16HaveTheBitsOfTheCpu) { expect_bits_of_the_cpu(2, torch::kHalf); }

// The device's thread ends the pass over the second layer while the outer one waits on the host's. If both ended the
// exchange, error feedback would be applied twice.
TEST(DeviceTraining, BackwardInsideBackwardOfTheHostIsOneExchange) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : {"all_reduce", "topk:0.05: encode@device all_gather decode@device"}) {
      int exchanges = 0;
      const DeviceJob job{
          .model = DeviceModelKind::nested, .option = option, .steps = 20, .averaged = [&] { ++exchanges; }};
      const Parameters on_cpu = train(rank, group, job);
      EXPECT_EQ(std::exchange(exchanges, 0), job.steps);
      for (const Where where : {Where::copied, Where::kernels}) {
        EXPECT_TRUE(same_bits(on_cpu, train(rank, group, at(where, job)))) << option;
        EXPECT_EQ(std::exchange(exchanges, 0), job.steps) << option;
      }
    }
  });
}

TEST(DeviceTraining, DoublePrecisionIsNeverCompressedAndHasTheBitsOfTheCpu) {
  run_ranks(2, [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    const Parameters on_cpu = train(rank, group, {.fidelity = "exact", .steps = 40, .type = torch::kDouble});
    ASSERT_EQ(on_cpu[0].scalar_type(), torch::kDouble);
    const DeviceJob tuned{.fidelity = "lossy", .steps = 40, .type = torch::kDouble, .tuning_budget = 30};
    for (const Where where : {Where::cpu, Where::copied, Where::kernels}) {
      EXPECT_TRUE(same_bits(on_cpu, train(rank, group, at(where, tuned)))) << static_cast<int>(where);
    }
  });
}

// As loss scaling does: all ranks skip the step, and residuals are unchanged.
TEST(DeviceTraining, StepsThatAreNotFiniteLeaveResidualsAsTheyWere) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : {"all_reduce", "topk:0.05: encode@device all_gather decode@device"}) {
      const Parameters on_cpu = train(rank, group, {.option = option, .bad_step = 2});
      for (const Where where : {Where::copied, Where::kernels}) {
        EXPECT_TRUE(same_bits(on_cpu, train(rank, group, at(where, {.option = option, .bad_step = 2})))) << option;
      }
    }
  });
}

// The first parameter's gradient is the last one, so the other rank already waits for data that does not come.
TEST(DeviceTraining, AfterAPassThatWasLeftAllRanksEndWithAnError) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const Where where : {Where::cpu, Where::copied, Where::kernels}) {
      const std::string error =
          message_of([&] { train(rank, group, at(where, {.option = "all_reduce", .left_step = 2})); });
      EXPECT_THAT(error, HasSubstr("a backward pass ended with an exception"));
      if (rank.rank == 1) {
        EXPECT_THAT(error, HasSubstr("another rank failed: rank 0 at step 2"));
      }
    }
  });
}

// Residuals and the state of compressors are on the device, and in the checkpoint.
TEST(DeviceTraining, AJobGoesOnFromItsCheckpoint) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : kDeviceOptions) {
      const Parameters whole = train(rank, group, {.option = option});
      for (const Where where : {Where::cpu, Where::copied, Where::kernels}) {
        EXPECT_TRUE(same_bits(whole, train(rank, group, at(where, {.option = option, .reloaded_step = 3})))) << option;
      }
    }
  });
}

TEST(DeviceTraining, AnUpdateWithinBackwardIsAnError) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const Where where : {Where::cpu, Where::copied, Where::kernels}) {
      EXPECT_THAT(message_of([&] { train(rank, group, at(where, {.option = "all_reduce", .changed_step = 2})); }),
                  HasSubstr("parameters were changed within a backward pass"));
    }
  });
}

// Requested work continues on the device when training has ended, and its memory stays until then.
TEST(DeviceTraining, ASessionThatEndsWithinAPassWaitsForItsStreams) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const std::string slow : {"codec", "to_host", "to_device"}) {
      FakeDeviceFaults faults;
      faults.delay_us = [&](const std::string& stream) { return stream == slow ? 20'000 : 0; };
      set_faults(faults);
      const DeviceJob job{.option = kDeviceOptions[5], .left_step = 1};
      EXPECT_THAT(message_of([&] { train(rank, group, at(Where::kernels, job)); }),
                  HasSubstr("ended with an exception"));
      EXPECT_TRUE(freed_memory_is_intact()) << slow;
      set_faults({});
    }
  });
}

// The user chooses the current device of the training thread, as with DDP.
TEST(DeviceTraining, ThreadsOfASessionHaveItsDeviceAsTheirCurrentOne) {
  run_ranks(2, [](const Rank& rank) {
    const c10::Device device = fake_device();
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    const auto group = make_group();
    for (const Where where : {Where::copied, Where::kernels})
      train(rank, group, at(where, {.option = kDeviceOptions[5]}));
    EXPECT_EQ(event_calls_of_strangers(), 0);
  });
}

// --- over NCCL -------------------------------------------------------------------------------------------------------

const OverNccl kOverFakeNccl{.place =
                                 [](const Rank&, DeviceJob job) {
                                   fake_device();
                                   return at(Where::kernels, std::move(job));
                                 },
                             .environment = {{"GRADTUNE_NCCL_LIBRARY", FAKE_NCCL}}};

TEST(DeviceTraining, OverNcclTwoRanksHaveTheValuesOfGloo) { expect_values_of_gloo(kOverFakeNccl, 2); }
TEST(DeviceTraining, OverNcclThreeRanksHaveTheValuesOfGloo) { expect_values_of_gloo(kOverFakeNccl, 3); }
TEST(DeviceTraining, OverNcclATunedJobAtExactHasTheBitsOfOneThatIsNot) { expect_bits_while_tuning(kOverFakeNccl); }
TEST(DeviceTraining, OverNcclADeadRankIsNamed) { expect_a_dead_rank_to_be_named(kOverFakeNccl); }
TEST(DeviceTraining, OverNcclAFrozenRankIsNamed) { expect_a_frozen_rank_to_be_named(kOverFakeNccl); }

TEST(DeviceTraining, OverNcclItHasTheBitsOfTheCpu) {
  const auto body = [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : kDeviceOptions) {
      const Parameters on_cpu = train(rank, group, {.option = option});
      for (const Where where : {Where::copied, Where::kernels}) {
        const DeviceJob job{.option = option, .collectives = "nccl"};
        EXPECT_TRUE(same_bits(on_cpu, train(rank, group, at(where, job)))) << option;
      }
    }
    const DeviceJob bad{.option = kDeviceOptions[5], .bad_step = 2};
    DeviceJob over_nccl = at(Where::kernels, bad);
    over_nccl.collectives = "nccl";
    EXPECT_TRUE(same_bits(train(rank, group, bad), train(rank, group, over_nccl)));
  };
  run_ranks(2, body, {.environment = kOverFakeNccl.environment});
}

// A process group that says that it has such a backend for the device; gradtune does not use it.
class NamedBackend final : public c10d::Backend {
 public:
  NamedBackend(std::string name, const c10d::ProcessGroup& group)
      : Backend(group.getRank(), group.getSize()), name_(std::move(name)) {}
  const std::string getBackendName() const override { return name_; }

 private:
  const std::string name_;
};

c10::intrusive_ptr<c10d::ProcessGroup> make_group_with(const std::string& backend) {
  auto group = make_group();
  if (!backend.empty()) {
    group->setBackend(fake_device().type(), c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<NamedBackend>(backend, *group));
  }
  return group;
}

TEST(DeviceTraining, GradientsGoAsTheGroupsOnUnlessTheOptionNamesAnother) {
  const struct {
    const char *backend, *option, *transport;
    bool is_on_device;
  } table[] = {
      {"", "auto", "gloo (the process group has no backend for fake)", false},
      {"gloo", "auto", "gloo (the process group's backend for fake)", false},
      {"nccl", "auto", "nccl (the process group's backend for fake)", true},
      {"mpi", "auto",
       "gloo (the process group's backend for fake is mpi, of which gradtune can not make groups of its own)", false},
      {"nccl", "gloo", "gloo (option collectives)", false},
      {"gloo", "nccl", "nccl (option collectives)", true},
  };
  const TempFolder folder;
  const auto body = [&](const Rank& rank) {
    fake_device();
    const Parameters on_cpu = train(rank, make_group(), {.option = kDeviceOptions[5]});
    for (size_t i = 0; i < std::size(table); ++i) {
      const std::string journal = folder.path(std::to_string(i) + ".jsonl");
      const DeviceJob job{.option = kDeviceOptions[5], .collectives = table[i].option, .journal = journal};
      EXPECT_TRUE(same_bits(on_cpu, train(rank, make_group_with(table[i].backend), at(Where::kernels, job))));
      if (rank.rank != 0) continue;
      const auto read = tuner::read_journal(journal);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read.value().transport, table[i].transport);
      EXPECT_EQ(read.value().job.machine.on_device.collectives, table[i].is_on_device) << table[i].transport;
    }
  };
  run_ranks(2, body, {.environment = {{"GRADTUNE_NCCL_LIBRARY", FAKE_NCCL}}});
}

TEST(DeviceTraining, RanksWhoseGroupsCarryGradientsInOtherWaysAreRefused) {
  const auto body = [](const Rank& rank) {
    fake_device();
    const auto group = make_group_with(rank.rank == 0 ? "nccl" : "gloo");
    EXPECT_THAT(message_of([&] { train(rank, group, at(Where::kernels, {.option = "all_reduce"})); }),
                AllOf(HasSubstr("what carries gradients differs between ranks"),
                      HasSubstr("it is gloo (the process group's backend for fake) on rank 1 and nccl (the process "
                                "group's backend for fake) on rank 0")));
  };
  run_ranks(2, body, {.environment = {{"GRADTUNE_NCCL_LIBRARY", FAKE_NCCL}}});
}

TEST(DeviceTraining, ATunedJobOverNcclKnowsItsLinks) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  const auto body = [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    train(rank, group,
          at(Where::kernels, {.steps = 40, .tuning_budget = 30, .collectives = "nccl", .journal = journal}));
    if (rank.rank != 0) return;
    const auto read = tuner::read_journal(journal);
    ASSERT_TRUE(read.ok()) << read.error().message;
    const policies::Machine& machine = read.value().job.machine;
    EXPECT_EQ(machine.on_device, (policies::OnDevice{.gradients = true, .collectives = true, .kernels = true}));
    EXPECT_GT(machine.idle_links.flat.message_us, 0);
    EXPECT_GT(machine.idle_links.flat.byte_us, 0);
    EXPECT_EQ(machine.cores.network, 0) << "of the host's cores collectives of a device need none";
  };
  run_ranks(2, body, {.environment = {{"GRADTUNE_NCCL_LIBRARY", FAKE_NCCL}}});
}

TEST(DeviceTraining, WithoutTheLibraryOfNcclAllRanksSaySo) {
  const auto body = [](const Rank& rank) {
    const auto group = make_group();
    EXPECT_THAT(
        message_of([&] { train(rank, group, at(Where::copied, {.collectives = "nccl"})); }),
        AllOf(HasSubstr("collectives of NCCL need the library libnccl_of_nobody.so, which can not be loaded"),
              HasSubstr("GRADTUNE_NCCL_LIBRARY names another file, and option collectives \"gloo\" needs none")));
  };
  run_ranks(2, body, {.environment = {{"GRADTUNE_NCCL_LIBRARY", "libnccl_of_nobody.so"}}});
}

TEST(DeviceTraining, NcclIsRefusedForParametersOnTheCpu) {
  run_ranks(1, [](const Rank& rank) {
    const auto group = make_group();
    EXPECT_THAT(
        message_of([&] { train(rank, group, {.collectives = "nccl"}); }),
        HasSubstr("option collectives is \"nccl\", which is for parameters on a CUDA device, and these are on the "
                  "CPU; allowed are auto and gloo"));
  });
}

// --- missing waits ---------------------------------------------------------------------------------------------------

struct Edge {
  const char *from, *to, *slow;
};

// The stream in question is slow, so the old memory content is read.
void expect_seen(const Edge& edge, Where where, const char* option) {
  run_ranks(2, [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    const DeviceJob job = at(where, {.option = option, .steps = 4});
    const Parameters right = train(rank, group, job);
    FakeDeviceFaults faults;
    faults.delay_us = [&](const std::string& stream) { return stream == edge.slow ? 3'000 : 0; };
    EXPECT_TRUE(same_bits(right, train(rank, group, job, faults))) << "work that is slow changes nothing";
    faults.skips_wait = [&](const std::string& from, const std::string& to) {
      return from == edge.from && to == edge.to;
    };
    bool is_right = true;  // data that is decoded too early may be no payload
    const std::string error = message_of([&] { is_right = same_bits(right, train(rank, group, job, faults)); });
    EXPECT_TRUE(!is_right || error != "no error") << edge.from << " -> " << edge.to;
  });
}

constexpr const char* kTopk = "topk:0.05: encode@device all_gather decode@device";

TEST(MissingWait, OfAnEncodeForItsGradientIsSeen) {
  expect_seen({"current", "codec", "current"}, Where::kernels, kTopk);
}
TEST(MissingWait, OfACopyForAnEncodeIsSeen) { expect_seen({"codec", "to_host", "codec"}, Where::kernels, kTopk); }
TEST(MissingWait, OfACopyForItsGradientIsSeen) { expect_seen({"current", "to_host", "current"}, Where::copied, kTopk); }
TEST(MissingWait, OfSendingForACopyIsSeen) { expect_seen({"to_host", "host", "to_host"}, Where::copied, kTopk); }
TEST(MissingWait, OfADecodeForWhatWasReceivedIsSeen) {
  expect_seen({"to_device", "codec", "to_device"}, Where::kernels, kTopk);
}
TEST(MissingWait, OfTheOptimizerForADecodeIsSeen) { expect_seen({"codec", "host", "codec"}, Where::kernels, kTopk); }
TEST(MissingWait, OfTheOptimizerForACopyIsSeen) {
  expect_seen({"to_device", "host", "to_device"}, Where::copied, kTopk);
}

// Ranks may be built differently: kernels decide where work is done, and not what is sent.
TEST(DeviceTraining, RanksWithAndWithoutKernelsHaveTheBitsOfTheCpu) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : kDeviceOptions) {
      const Parameters on_cpu = train(rank, group, {.option = option});
      const Where where = rank.rank == 0 ? Where::kernels : Where::copied;
      EXPECT_TRUE(same_bits(on_cpu, train(rank, group, at(where, {.option = option})))) << option;
    }
  });
}

// --- what is refused -------------------------------------------------------------------------------------------------

TEST(DeviceTraining, RanksOnOtherKindsOfDevicesAreRefused) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    const DeviceJob job = at(rank.rank == 0 ? Where::cpu : Where::kernels, {.option = "all_reduce"});
    EXPECT_THAT(message_of([&] { train(rank, group, job); }),
                HasSubstr(": device is fake on rank 1 and cpu on rank 0"));
  });
}

TEST(DeviceTraining, ParametersOnSeveralDevicesAreRefusedByName) {
  run_ranks(1, [](const Rank&) {
    const auto group = make_group();
    struct Mixed final : torch::nn::Module {
      Mixed() {
        register_parameter("here", torch::ones({2}));
        register_parameter("there", torch::ones({2}).to(fake_device()));
      }
    } model;
    torch::optim::SGD sgd(model.parameters(), 0.1);
    EXPECT_THAT(message_of([&] { wrap(sgd, model, group, quiet()); }),
                HasSubstr("parameter there is on fake:0, parameter here on cpu; all that require "
                          "gradients have to be on one device of each rank"));
  });
}

}  // namespace
}  // namespace gradtune::test
