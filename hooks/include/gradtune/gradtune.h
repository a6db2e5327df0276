// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// gradtune: an online autotuner for gradient communication in data-parallel training. Wrap the optimizer and train
// as before:
//
//   auto group = gradtune::init_process_group();  // reads the variables of torchrun, Slurm or mpirun
//   torch::optim::SGD sgd(model->parameters(), 0.1);
//   auto optimizer = gradtune::wrap(sgd, *model, group);
//
//   for (auto& batch : loader) {
//     optimizer.zero_grad();
//     loss(model, batch).backward();  // gradients are communicated meanwhile, and are averages afterwards
//     optimizer.step();
//   }
//   optimizer.export_strategy("strategy.json");
//
// Errors are exceptions (std::runtime_error) that say what was wrong and what is allowed. Errors between ranks also
// name the rank that reports, the rank that is suspected, and the step. After an error between ranks, training
// cannot go on in this process.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradtune {

// Makes a process group (Gloo) from the launcher's variables: torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
// the agent's store if torchrun runs one), Slurm (SLURM_PROCID, SLURM_NTASKS, ...) or mpirun (OMPI_COMM_WORLD_*,
// PMI_*). Without any of them it is a group of one. GLOO_SOCKET_IFNAME chooses the network interface; it must be set
// if the host's name resolves to a loopback address. If a rank does not join within `timeout_s` seconds (0.01 to
// 1e6), all others throw an error that names it. All ranks may call this again, also while earlier groups still
// live.
// From then on the process ignores SIGPIPE, unless it has a handler for it: a lost rank is an error and does not end
// the process.
c10::intrusive_ptr<c10d::ProcessGroup> init_process_group(double timeout_s = 300);

// An option that is not set here is taken from the variable GRADTUNE_<NAME>, then from the JSON object in the file
// that GRADTUNE_CONFIG names, then from the default.
struct Options {
  // Changes to training that tuning may make: exact, half (also 16 bits on the wire) or lossy (also lossy compressors,
  // with error feedback). Default: half.
  // exact: fp32 sums; exponents may be sent in fewer bits. lossy: the compressors of the default list, and those that
  // `compressors` names.
  std::optional<std::string> fidelity = {};
  // Compressors that are allowed, such as topk:0.02 or bf16. Default: the default list.
  // A compressor outside the default list is used only if it is named here, on the user's own responsibility. "none"
  // allows no compressor. Words of the variable are separated by commas.
  std::optional<std::vector<std::string>> compressors = {};
  // Largest one-step error of a compressed bucket, relative to its norm. Default: twice the error seen in trainings, or
  // just before.
  // The error is norm(p - decode(encode(p))) / norm(p), with p = gradient + residual: median of 32 steps, maximum over
  // ranks. A strategy above it is not chosen. If the strategy in force exceeds it, the baseline takes over at once.
  // Then the same strategy is tried with that bucket sent as in the baseline, and kept if it is still proven faster.
  // The same happens if a residual grows without bound against the gradient. The budget bounds the compression error,
  // not the accuracy: it is a guard against change. A pinned strategy is dropped only if this option is set.
  std::optional<double> error_budget = {};
  // File to start from, as export_strategy() wrote it. Default: none.
  // "none" is no file either, and overrides the variable.
  // In a list of files, separated by commas, the first one for this model is used, so that one variable serves a
  // process with several models.
  std::optional<std::string> strategy = {};
  // Steps after which tuning ends; with 0 nothing is tuned, and the strategy of the file (or the baseline) is pinned.
  // Default: 400.
  std::optional<int64_t> tuning_budget = {};
  // Seconds that one communication may take. Default: the process group's.
  std::optional<double> timeout = {};
  // Transport of gradients: auto (nccl if it is the process group's backend for their device, else gloo), gloo (through
  // the host) or nccl. Default: auto.
  // All ranks must come to the same one. NCCL is loaded as libnccl.so.2 when it is needed. It has run with one rank on
  // a GPU, not with more.
  std::optional<std::string> collectives = {};
  // File (JSON lines) to which rank 0 writes every step, measurement and decision. Default: none.
  // If another journal is being written to it, the name is "NAME.2.EXT" and so on.
  std::optional<std::string> journal = {};
  // No progress on standard error. Default: false.
  std::optional<bool> quiet = {};
  // All ranks get rank 0's buffers, such as the running statistics of BatchNorm, after wrap() and after every backward
  // pass. Default: true.
  // DDP sends them before every forward pass instead; see also Optimizer::broadcast_buffers(). With false each rank
  // keeps its own buffers, and they are not compared.
  std::optional<bool> broadcast_buffers = {};
  // Names of parameters, buffers or modules that each rank keeps for itself, such as a rank's experts: they are not
  // sent, compared or averaged. Default: none.
  std::optional<std::vector<std::string>> ignore = {};

  // Options for experts.

  // The policy that proposes strategies: auto, mergecomp, fixed or exhaustive. Default: auto.
  std::optional<std::string> policy = {};
  // Share of time lost against the baseline after which tuning ends. Default: 0.25.
  std::optional<double> tuning_share = {};
  // Steps before any lossy compressor may run. Default: the need of each compressor.
  // The need is 80 for int3packed and powersgd if an optimizer is not SGD, else 0.
  std::optional<int64_t> lossy_after = {};
  // Bytes of residuals and payloads. Default: no limit.
  std::optional<int64_t> memory_budget = {};
  // Threads that may compress beside the training thread. Default: cores - 1.
  std::optional<int64_t> host_threads = {};
  // Seed of the tuner's random choices and of random compressors. Default: 0.
  std::optional<int64_t> seed = {};
  // Gradients may stay in flight during the next forward pass, if that is proven faster. Default: false.
  // Such a parameter is updated when a LibTorch operator is about to use it, on the thread that called step(), with the
  // learning rate and other options that step() found. Results are bit-identical. A gradient of a parameter whose
  // update is still pending is an error.
  // The default is false because no operator shows some reads. Call Optimizer::synchronize() before
  // torch::save(module), before data_ptr() or an accessor of a parameter or its optimizer state, before TorchScript,
  // and before forward passes on other threads.
  // The option turns itself off, with one line that says so, in a job that needs all gradients before step()
  // (clipping by the norm, loss scaling) or that steps with a closure. It also does so for optimizers other than
  // LibTorch's SGD, Adam, AdamW, RMSprop and Adagrad.
  std::optional<bool> forward_overlap = {};

  // Makes the communicators that gradtune needs, by name. Default: Gloo over the store of the group.
  std::function<c10::intrusive_ptr<c10d::ProcessGroup>(const std::string& name)> make_group = {};
};

class Session;

// The wrapped optimizer, or several optimizers of one model. Not copyable. Not thread-safe: only the training thread
// may use it. Wrapping the same optimizer again ends this wrap, which then refuses every call.
//
// If it is destroyed while an exception propagates, or within a backward pass, the other ranks are told that this
// one failed, and they end with an error that says so. They are also told at once when an exception ends a backward
// pass in which some gradient was ready. An exception before the first gradient, also in a pass for a gradient
// penalty, is like one in forward. If the program catches it, no rank is told, and others wait as for a slow rank.
class Optimizer {
 public:
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;
  ~Optimizer();

  // Drops gradients, as C++ optimizers do by default: the next backward pass writes them without an addition. A
  // gradient is a view of memory that the next backward pass overwrites, so clone() it to keep it.
  void zero_grad();

  // Runs the user's optimizer with the averaged gradients. A closure is evaluated once, with gradients enabled, as
  // in SGD and Adam.
  void step();
  torch::Tensor step(const std::function<torch::Tensor()>& closure);

  // While a NoSync lives, backward passes only accumulate. Guard all but the last of several backward passes before
  // a step. It can be moved, so that a guard can depend on a condition:
  //   std::optional<NoSync> guard;
  //   if (...) guard = optimizer.no_sync();
  class [[nodiscard]] NoSync {
   public:
    NoSync(NoSync&& other) noexcept = default;
    NoSync& operator=(NoSync&& other) noexcept;
    ~NoSync();

   private:
    friend Optimizer;
    explicit NoSync(std::shared_ptr<int> guards);
    std::shared_ptr<int> guards_;  // number of live guards; null when moved from
  };
  NoSync no_sync();

  // With forward_overlap: waits for averages and does pending updates. Call it before reads of parameters, of their
  // gradients or of the optimizer's state that no operator shows. Otherwise it does nothing.
  void synchronize();

  // Sends rank 0's buffers to all ranks; all ranks must call it. Each backward pass does this at its end. Call it
  // for later changes, such as those of forward passes alone, before an evaluation.
  void broadcast_buffers();

  // Excludes the time of the current step from tuning, for example because of an evaluation or a checkpoint in it.
  void exclude_step();

  // The user's optimizer, or one of several: hand this to a learning-rate scheduler. Calls synchronize(), so keep
  // the reference rather than call it in every step.
  torch::optim::Optimizer& inner(size_t index = 0);

  // The state of the user's optimizer. With several optimizers, each has its own archive, named by its number.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  // Writes the committed strategy, also while others are tried, with its evidence (schema gradtune.strategy/2).
  // Before a commit, it is the strategy file that the job started from, until that is dropped, or else the baseline.
  // Rank 0 writes the file atomically; other ranks return.
  void export_strategy(const std::string& path) const;

  // Checkpoints of gradtune's own state: the state of tuning and its measurements, residuals, compressor state and
  // random state. Save the model and the optimizer beside it as usual. A job that loads all of them continues as if
  // it had not ended: the same decisions for the same step times, and the same bits.
  //
  // All ranks must call these, outside of backward passes. Gradients are not saved: neither accumulated ones nor
  // averages that no step() used. A folder holds one checkpoint of one job: a file for each rank, and
  // checkpoint.json. Machines need not share the folder unless the world size changes. The older checkpoint in it
  // stays until the new one is complete on disk. If saving fails, all ranks throw std::runtime_error with the rank
  // and the cause. The older checkpoint is still there then, and training may go on. The following step is not
  // scored.
  //
  // Load the model and the optimizer before wrap() (torch::load puts new tensors into the model), and this after it.
  // Files of another model or another checkpoint, truncated files and changed files are refused by name, before
  // anything is changed. Tuning starts again, from the committed strategy, if the machine or an option that tuning
  // depends on has changed, or after more than a million steps; residuals are kept. The same happens with another
  // world size. Then every rank takes the mean of the old ranks' residuals, so that the sum still to be applied to
  // the averaged gradient stays the same.
  void save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& folder);

  struct Progress {
    int64_t step = 0;      // steps done
    int64_t epoch = 0;     // number of the strategy in force, the same on all ranks
    std::string stage;     // observe, partition, race, confirm, watch, audit or imported; "follow" on all ranks but 0
    std::string strategy;  // in force, for people
    // Steps in which some rank met a NaN or Inf. Residuals and compressor state stay as before such a step. The
    // averages hold it where sums of numbers would (fp32, 16 bits, packed). In other buckets all elements become
    // NaN, on all ranks, so that every gradient scaler skips the step.
    int64_t nonfinite_steps = 0;
    int64_t late_updates = 0;                          // parameters updated after their step() so far: forward_overlap
    double step_ms = 0;                                // the previous step on this rank
    double encode_ms = 0, decode_ms = 0, wait_ms = 0;  // parts of it, on the thread that runs backward
    int64_t bytes = 0;                                 // sent for gradients in it, by the busiest link in one direction
  };
  Progress progress() const;

  // The result of tuning, the same on all ranks; ranks other than 0 get it one step later. Times are in ms, maximum
  // over ranks; gain = 1 - committed / baseline.
  struct Result {
    bool decided = false;
    bool committed = false;
    double baseline_ms = 0;
    std::optional<double> committed_ms;
    std::optional<double> predicted_ms;  // of the committed strategy, if the policy has a model
    // The lower bound decides: it is above 0 if a strategy is committed, and is too high with a probability of 4 %.
    // The upper bound is too low with a probability of 2.5 %.
    double gain = 0, gain_low = 0, gain_high = 0;
    int64_t steps = 0;                    // of tuning, with audits and repeated tuning
    double cost_ms = 0;                   // sum of max(0, step - baseline) in these
    double cost_share = 0;                // the same as a share of 2,000 steps of the baseline
    std::optional<int64_t> first_commit;  // steps before the first committed strategy came into force
    // The state of the job and the reasons for it, in the words of the line that rank 0 prints at a decision.
    std::string story;
    std::string strategy;  // label of the committed strategy; before a commit, of the initial strategy or the baseline
    std::string description;  // its buckets, for people
    std::string fidelity;
  };
  Result result() const;

 private:
  friend Optimizer wrap(const std::vector<torch::optim::Optimizer*>&, torch::nn::Module&,
                        const c10::intrusive_ptr<c10d::ProcessGroup>&, const Options&);
  Optimizer(std::unique_ptr<Session> session, std::vector<torch::optim::Optimizer*> inner);
  Session& session() const;
  std::unique_ptr<Session> session_;
  std::vector<torch::optim::Optimizer*> inner_;
};

// Compares options, parameters and buffers over ranks (names, shapes, dtypes, memory formats, kinds of device, which
// parameters are trainable), copies rank 0's values of parameters and buffers to all ranks, and hooks the gradients.
// The module must already be on the device where it is trained. The module and the optimizer must outlive the
// result. Collective: every rank of the group calls it.
//
// Throws in these cases:
// - Ranks differ; the error names the ranks, the tensor and the property.
// - Parameters are sharded, sparse, complex or integer, are on several devices, are in two groups, or belong to
//   another live wrap.
// - An optimizer calls its closure more than once (LBFGS).
// - An option is unknown.
// If one rank throws, the others are told at once. A loss with parameters of its own is wrapped with the model, as
// one module that holds both.
//
// If parameters, groups or buffers are added, removed, unfrozen, moved or converted later, that step ends in an
// error. The same holds if the shapes of buffers differ between ranks.
Optimizer wrap(torch::optim::Optimizer& optimizer, torch::nn::Module& module,
               const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options = {});

// Several optimizers of one module, such as one for its embeddings and one for the rest: `wrap({&a, &b}, *model,
// group)`. step() steps all of them, in this order, and ends the step. If a program updates its parameters without
// step(), then from the second such update on a step is the time between two backward passes.
Optimizer wrap(const std::vector<torch::optim::Optimizer*>& optimizers, torch::nn::Module& module,
               const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options = {});

}  // namespace gradtune
