// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// gradtune: an online autotuner for gradient communication in data-parallel training. Wrap the optimizer, train as
// before:
//
//   auto group = gradtune::init_process_group();      // RANK, WORLD_SIZE, ... as torchrun, Slurm or mpirun set them
//   torch::optim::SGD sgd(model->parameters(), 0.1);
//   auto optimizer = gradtune::wrap(sgd, *model, group);
//   for (auto& batch : loader) {
//     optimizer.zero_grad();
//     loss(model, batch).backward();                  // gradients travel meanwhile, and are averages when it returns
//     optimizer.step();
//   }
//   optimizer.export_strategy("strategy.json");
//
// Errors are exceptions (std::runtime_error) that say what was wrong and what is allowed; for errors between ranks also
// which rank reports, which peer is suspected, and the step. After such an error training can not go on in this
// process.
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

// Makes a process group (Gloo) from the variables of the launcher: torchrun (RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT; the agent's store where torchrun runs one), Slurm (SLURM_PROCID, SLURM_NTASKS, ...) or mpirun
// (OMPI_COMM_WORLD_*, PMI_*). Without any of them: a group of one. GLOO_SOCKET_IFNAME chooses the network interface,
// which it has to where the host's name resolves to a loopback address. A rank that does not come within `timeout_s`
// (0.01 to 1e6) ends in an error on all others that names it. May be called again, by all ranks, also while groups that
// it made before still live.
// From then on the process ignores SIGPIPE unless it handles it: a rank that is gone is an error, not the end.
c10::intrusive_ptr<c10d::ProcessGroup> init_process_group(double timeout_s = 300);

// Each option that is not set here is taken from the variable GRADTUNE_<NAME>, then from the file that GRADTUNE_CONFIG
// names (a JSON object), then from the default.
struct Options {
  // What may be changed about what is trained. exact: fp32 sums, nothing lossy (but exponents may travel in fewer
  // bits). half (default): also bfloat16 on the wire. lossy: also the compressors of the default list, and those that
  // `compressors` names.
  std::optional<std::string> fidelity = {};
  // Allow-list, such as {"topk:0.01"}; as a variable separated by commas. Naming a compressor outside the default list
  // is how a user takes responsibility for it. Default: all of the default list that the fidelity admits.
  std::optional<std::vector<std::string>> compressors = {};
  // The largest one-step error norm(p - decode(encode(p))) / norm(p), p = gradient + residual, of a bucket that is
  // compressed with loss: median of 32 steps, maximum over ranks. A strategy beyond it is not chosen. Where it was, the
  // baseline is in force at once, and then the strategy with that bucket sent as by the baseline, if that is still
  // proven faster; so it is with one whose residual runs away against the gradient. It bounds error, not accuracy: a
  // guard against change. Default: of a compressor that was not named, twice the largest error in the trainings that
  // admitted it; of any, twice what it was just before. A pinned strategy is dropped only if this option is set.
  std::optional<double> error_budget = {};
  // Steps before any lossy compressor may run. Default: as each one needs, which is 80 for int3packed and powersgd if
  // an optimizer is not SGD, else 0.
  std::optional<int64_t> lossy_after = {};
  std::optional<std::string> policy = {};  // auto (default), mergecomp, espresso, usbyte, zen, fixed, exhaustive
  // File to start from, as export_strategy wrote it. Of several, separated by commas, the first is taken that is for
  // the model, so that one variable serves a process with several models.
  std::optional<std::string> strategy = {};
  // Steps after which tuning ends and the baseline stays; default 400. 0: nothing is tuned or confirmed, the strategy
  // of the file (or the baseline) is pinned.
  std::optional<int64_t> tuning_budget = {};
  std::optional<double> tuning_share = {};    // the same as a share of time lost against the baseline; default 0.25
  std::optional<int64_t> memory_budget = {};  // bytes of residuals and payloads; default: no limit
  std::optional<int64_t> host_threads = {};   // oneTBB workers for placement host; default: cores minus one
  std::optional<double> timeout = {};         // seconds that any communication may take; default: the group's timeout
  // File (JSON lines) that rank 0 writes; where another journal is just being written to it, "NAME.2.EXT" and so on.
  std::optional<std::string> journal = {};
  std::optional<int64_t> seed = {};  // of the tuner's random choices and of random compressors; default 0
  std::optional<bool> quiet = {};    // no progress on standard error; default false
  // Buffers, such as the running statistics of BatchNorm, are those of rank 0 after wrap() and after every backward
  // pass, where DDP brings them before every forward pass; see also Optimizer::broadcast_buffers(). false: they are
  // each rank's own, and are not compared. Default true.
  std::optional<bool> broadcast_buffers = {};
  // Names of parameters, buffers or modules that stay each rank's own, such as the experts of a rank: they are not
  // sent, compared or averaged. Default: none.
  std::optional<std::vector<std::string>> ignore = {};
  // Whether gradients may travel on during the next forward pass, where that is proven faster: such a parameter is
  // updated when an operator of LibTorch is about to use it, on the thread that called step(), with the learning rate
  // and other options that step() found. Bits stay the same. Default false, as there are reads that no operator shows:
  // call Optimizer::synchronize() before torch::save(module), data_ptr() or an accessor of a parameter or of its state
  // in the optimizer, TorchScript, and forward passes on other threads. A gradient of a parameter whose update is still
  // to come is an error.
  // It is off, and one line says so, in a job that needs all gradients before step() (clipping by the norm, loss
  // scaling) or steps with a closure. Optimizers other than LibTorch's SGD, Adam, AdamW, RMSprop and Adagrad turn it
  // off too.
  std::optional<bool> forward_overlap = {};
  // What carries gradients on a CUDA device. gloo (default): they are copied to the host. nccl: NCCL, which is loaded
  // as libnccl.so.2 when it is needed. It has run with one rank on a GPU, not with more.
  std::optional<std::string> collectives = {};

  // Makes the communicators that gradtune needs, by name, instead of Gloo over the store of the group.
  std::function<c10::intrusive_ptr<c10d::ProcessGroup>(const std::string& name)> make_group = {};
};

class Session;

// The wrapped optimizer, or several of one model. Not copyable. Not thread-safe: used by the thread that trains.
// Wrapping the same optimizer again ends this wrap, which then refuses every call.
//
// When it is destroyed while an exception is on its way, or within a backward pass, the other ranks are told that this
// one failed, and end with an error that says so. They are told as well, and at once, when an exception ends a backward
// pass in which some gradient was ready already. One before that, also in the gradients of a gradient penalty, is as
// one in forward: if it is caught nobody is told, and others wait as they do for a slow rank.
class Optimizer {
 public:
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;
  ~Optimizer();

  // Drops gradients (what the C++ optimizers do by default): the next backward fills them without an addition. A
  // gradient is a view of memory that the next backward pass writes again: clone() what is to be kept.
  void zero_grad();

  // The user's optimizer, with the averaged gradients. A closure is evaluated once, gradients enabled, as SGD and Adam
  // do.
  void step();
  torch::Tensor step(const std::function<torch::Tensor()>& closure);

  // While it lives, backward passes only accumulate: guard all but the last of several backward passes before a step.
  // It can be moved, so that a pass may be guarded or not: std::optional<NoSync> guard; if (...) guard =
  // optimizer.no_sync();
  class [[nodiscard]] NoSync {
   public:
    NoSync(NoSync&& other) noexcept = default;
    NoSync& operator=(NoSync&& other) noexcept;
    ~NoSync();

   private:
    friend Optimizer;
    explicit NoSync(std::shared_ptr<int> guards);
    std::shared_ptr<int> guards_;  // how many live; null when moved from
  };
  NoSync no_sync();

  // With forward_overlap: waits for averages and does updates that are still to come. Before reads of parameters, of
  // their gradients or of the optimizer's state that no operator shows. Otherwise there is nothing to do.
  void synchronize();

  // Brings rank 0's buffers to all ranks, which call it together. They come at the end of each backward pass: this is
  // for what changed since, as by forward passes alone, before an evaluation.
  void broadcast_buffers();

  // The time of the step under way is not scored (evaluation, a checkpoint, ... happened in it).
  void exclude_step();

  // The user's optimizer, or one of several: hand this to a learning-rate scheduler. Calls synchronize(), so keep the
  // reference rather than asking in every step.
  torch::optim::Optimizer& inner(size_t index = 0);

  // State of the user's optimizer; of several, each in an archive of its own, named by its number.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  // The strategy that is committed, also while others are tried, with its evidence (schema gradtune.strategy/2). Before
  // anything is: that of the file that the job started from, until it is dropped, or else the baseline. Written by rank
  // 0, atomically; others return.
  void export_strategy(const std::string& path) const;

  // Checkpoints of what gradtune itself knows: how far tuning is and what it was told, residuals and state of
  // compressors, random state. Save model and optimizer beside it as ever; with all of them a job goes on as if it had
  // not ended: the same decisions for the same step times, the same bits.
  //
  // Called by all ranks, outside of backward passes; gradients are not part of it: neither those that were
  // accumulated, nor averages of a step that is left out. A folder holds one checkpoint of one job, a file for each
  // rank and checkpoint.json; it need not be shared between machines unless the number of ranks changes. The older
  // checkpoint in it stays until the new one is whole on disk; when saving fails (std::runtime_error, on all ranks,
  // with the rank and the cause) it is still there, and training may go on. The step that follows is not scored.
  //
  // Model and optimizer are loaded before wrap() (torch::load puts new tensors into the model), this after it. Files of
  // another model or another checkpoint, files that are cut off or changed are refused by name before anything is
  // changed. Tuning starts again, from the strategy that had been committed, where options that it depends on or the
  // machine are others, or after more than a million steps; residuals are taken over all the same. So it is for another
  // number of ranks, where every rank takes the mean of the old ranks' residuals: what is still to be applied to the
  // averaged gradient stays the same.
  void save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& folder);

  struct Progress {
    int64_t step = 0;      // steps done
    int64_t epoch = 0;     // number of the strategy in force, the same on all ranks
    std::string stage;     // observe, partition, race, confirm, watch, audit or imported; "follow" on ranks but 0
    std::string strategy;  // in force, for people
    // In which some rank met a NaN or Inf: residuals and state of compressors stay as before. Gradients hold it where
    // sums of numbers would (fp32, 16 bits, packed); in other buckets all become NaN, on all ranks, so that every
    // gradient scaler skips the step.
    int64_t nonfinite_steps = 0;
    int64_t late_updates = 0;                          // of parameters, so far, after their step(): forward_overlap
    double step_ms = 0;                                // the step before, this rank
    double encode_ms = 0, decode_ms = 0, wait_ms = 0;  // of it, on the thread that runs backward
  };
  Progress progress() const;

  // What tuning showed, the same on all ranks: they are told in the step after. Times in ms, maximum over ranks; gain =
  // 1 - committed / baseline.
  struct Result {
    bool decided = false;
    bool committed = false;
    double baseline_ms = 0;
    std::optional<double> committed_ms;
    std::optional<double> predicted_ms;  // of what was committed, where the policy has a model
    // The lower bound decided: it is above 0 where a strategy is committed, and too high with a probability of 4 %. The
    // upper one is too low with a probability of 2.5 %.
    double gain = 0, gain_low = 0, gain_high = 0;
    int64_t steps = 0;                    // of tuning, audits and further tunings included
    double cost_ms = 0;                   // sum of max(0, step - baseline) in these
    double cost_share = 0;                // the same as a share of 2,000 steps of the baseline
    std::optional<int64_t> first_commit;  // steps before the first strategy that was committed came into force
    // How the job stands and what led to it, in the words of the line that rank 0 prints when something is decided.
    std::string story;
    std::string strategy;     // label of what is committed; before that of what the job began with, or of the baseline
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

// Compares options, parameters and buffers over ranks (names, shapes, dtypes, memory formats, kinds of device, what is
// trainable), takes rank 0's values of them, and hooks the gradients. The module must be where it is to be trained
// already; it and the optimizer must outlive the result. Collective: every rank of the group calls it.
//
// Throws for: ranks that differ, with the ranks, the tensor and the property; sharded, sparse, complex or integer
// parameters, parameters on several devices, parameters in two groups or of another wrap that lives, optimizers that
// call their closure more than once (LBFGS), unknown options. What one rank throws the others are told at once. A loss
// with parameters of its own is wrapped with the model, as a module that holds both.
//
// Parameters, groups and buffers that are added, removed, unfrozen, moved or converted later are an error in the step
// in which that happens, and so are buffers whose shapes differ between ranks.
Optimizer wrap(torch::optim::Optimizer& optimizer, torch::nn::Module& module,
               const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options = {});

// Several optimizers of one module, such as one for its embeddings and one for the rest: step() steps all of them, in
// this order. `wrap({&a, &b}, *model, group)`. A step ends with step(). Where a program updates its parameters without
// it, a step is from the second update on what lies between two backward passes.
Optimizer wrap(const std::vector<torch::optim::Optimizer*>& optimizers, torch::nn::Module& module,
               const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options = {});

}  // namespace gradtune
