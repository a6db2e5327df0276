// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The compressors that leave out zeros and lose nothing. They differ in the unit that is sent or left out:
//   rows    a row of the matrix. Embeddings are updated by rows.
//   coo     an element, as in most sparse formats.
//   blocks  a run of so many elements, as in OmniReduce (Fei et al., SIGCOMM 2021).
// A unit is kept if any bit of it is set, so -0 and NaN are kept.
//
// A payload holds values in the smallest of three forms, so it is never larger than the gradient.
//   `dense`   has all values.
//   `list`    has the values at listed positions, which ascend and have 32 bits each.
//   `bitmap`  has a bit for each position, and the values at the set bits. For shards of permuted rows
//             (core::RowOrder) this is Zen's hash bitmap (OSDI 2025, section 4). All shards together have one bit for
//             each row, whatever the number of shards.
//
// Payload: header (count = used bytes / 16); {number of kept units, form, width, 0}. A list then has its positions. A
// bitmap has the number of kept units before each run of units, and the bits. The values follow. Bytes behind them are
// left as they were.
//
// Bytes moved per element: encode reads 4 twice, the second time only for sent units. Decode writes 4 and reads the
// sent values. For lists of rows only listed rows are read and written.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>

#include "engine/compress/shared.h"
#include "engine/compress/simd/dense_kernels.h"
#include "engine/compress/sparse/rows.h"
#include "engine/compress/sparse/sparse_kernels.h"
#include "engine/compress/sparse/sparse_payload.h"

namespace gradtune::compress {
namespace {

// Writes scaled values; returns the bits of the largest |result|.
uint32_t write_scaled(EncodeRun run, int64_t begin, int64_t end, float* to, bool stream = false) {
  run.gradient += begin;
  run.residual = offset(run.residual, begin);
  run.residual_next = nullptr;
  run.n = static_cast<size_t>(end - begin);
  return encode_dense(core::DType::f32, run, reinterpret_cast<std::byte*>(to), stream);
}

bool is_there(const EncodeRun& run, int64_t begin, int64_t end) {
  uint32_t bits = 0;
  if (run.residual == nullptr) {
    for (int64_t i = begin; i < end; ++i) bits |= std::bit_cast<uint32_t>(run.gradient[i]);
  } else {
    for (int64_t i = begin; i < end; ++i) bits |= std::bit_cast<uint32_t>(run.gradient[i] + run.residual[i]);
  }
  return bits != 0;
}

class Sparse final : public HostCompressor, public RowCodec {
 public:
  Sparse(core::CompressorSpec spec, const core::CompressorTraits& traits, Grain grain)
      : HostCompressor(std::move(spec), traits), grain_(grain), id_(sparse_id(grain)) {}

  const RowCodec* rows() const override { return this; }

  int64_t scratch_bytes(const core::Extent& extent) const override {
    const SparseShape finest{extent.numel, 1};
    return section_bytes(finest.words() * 8) + section_bytes(finest.runs() * 4);
  }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.gradient.size());
    const SparseShape shape{n, width_of(job.work.row)};
    const EncodeRun all = run_of(job, 0, n);
    auto* const bits = reinterpret_cast<uint64_t*>(job.scratch.data());
    auto* const starts = reinterpret_cast<uint32_t*>(job.scratch.data() + section_bytes(shape.words() * 8));
    const auto elements = [&](int64_t begin, int64_t end) {
      return run_of(job, begin * shape.width, shape.end_of(end - 1));
    };
    for_ranges(queue, shape.units, shape.run(), [&](int64_t begin, int64_t end) {
      const EncodeRun run = elements(begin, end);
      starts[begin / shape.run()] =
          mark_units(run.gradient, run.residual, run.n, static_cast<size_t>(shape.width), bits + begin / 64);
    });
    uint32_t count = 0;
    for (int64_t r = 0; r < shape.runs(); ++r) count += std::exchange(starts[r], count);
    const bool has_last = shape.units > 0 && (bits[(shape.units - 1) / 64] >> ((shape.units - 1) % 64) & 1) != 0;
    const SparseLayout layout = choose_layout(shape, count, has_last);
    write_frame(job.payload, shape, layout, count);
    std::byte* const payload = job.payload.data();
    auto* const values = reinterpret_cast<float*>(payload + layout.values_at);
    if (layout.form == SparseForm::bitmap) {
      std::memcpy(payload + layout.starts_at, starts, static_cast<size_t>(shape.runs() * 4));
      std::memcpy(payload + layout.index_at, bits, static_cast<size_t>(shape.words() * 8));
    }
    Largest largest;
    for_ranges(queue, shape.units, shape.run(), [&](int64_t begin, int64_t end) {
      if (layout.form == SparseForm::dense) {
        const int64_t first = begin * shape.width;
        return largest.add(write_scaled(all, first, shape.end_of(end - 1), values + first, n * 4 >= kStreamBytes));
      }
      int64_t rank = starts[begin / shape.run()];
      if (layout.form == SparseForm::list) {
        auto* list = reinterpret_cast<uint32_t*>(payload + layout.index_at) + rank;
        for_bits(bits, begin, end, [&](int64_t unit) { *list++ = static_cast<uint32_t>(unit); });
      }
      if (shape.width == 1) return largest.add(write_marked(elements(begin, end), bits + begin / 64, values + rank));
      for_streaks(bits, begin, end, [&](int64_t first, int64_t last) {
        float* const to = values + rank * shape.width;
        largest.add(write_scaled(all, first * shape.width, shape.end_of(last - 1), to));
        rank += last - first;
      });
    });
    if (job.residual_next != nullptr && !job.add_to_residual_next) {
      for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
        std::fill(job.residual_next + begin, job.residual_next + end, 0.0F);
      });
    }
    return largest.get() < kInfinityBits;
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    const SparseShape shape{n, width_of(job.work.row)};
    if (Rejected bad = check_payloads(job.payloads, shape, queue)) return bad;
    for_ranges(queue, shape.units, shape.run(), [&](int64_t begin, int64_t end) {
      float* const out = job.out.data();
      if (!job.accumulate) std::fill(out + begin * shape.width, out + shape.end_of(end - 1), 0.0F);
      for (const std::span<const std::byte> payload : job.payloads) {
        SparseView(payload, shape).add_run(begin, end, out + begin * shape.width);
      }
    });
    return {};
  }

  void encode_rows(const EncodeRows& job, HostQueue& queue) const override;
  void decode_rows(const DecodeRows& job, HostQueue& queue) const override;
  core::Error defect_of_rows(const DecodeRows& job, size_t position) const override;

 private:
  int64_t width_of(int64_t row) const { return unit_width(grain_, spec(), row); }

  // Writes all of the payload except index and values.
  void write_frame(std::span<std::byte> payload, const SparseShape& shape, const SparseLayout& layout,
                   uint32_t count) const {
    write_header(payload, id_, shape.n, layout.bytes / kUsedUnit);
    const SparseHeader header{count, layout.form, static_cast<uint32_t>(shape.width), 0};
    std::memcpy(payload.data() + sizeof(PayloadHeader), &header, sizeof header);
    const auto zero = [&](int64_t begin, int64_t end) {
      std::memset(payload.data() + begin, 0, static_cast<size_t>(end - begin));
    };
    zero(layout.starts_at + layout.starts_bytes, layout.index_at);
    zero(layout.index_at + layout.index_bytes, layout.values_at);
    zero(layout.values_at + layout.values_bytes, layout.bytes);
  }

  Rejected check_payloads(std::span<const std::span<const std::byte>> payloads, const SparseShape& shape,
                          HostQueue& queue) const {
    const Counts counts{kSparseHeaderBytes / kUsedUnit, sparse_payload_bytes(shape.n) / kUsedUnit};
    if (Rejected bad = check_frames(payloads, sparse_payload_bytes(shape.n), id_, shape.n, counts)) return bad;
    for (size_t p = 0; p < payloads.size(); ++p) {
      if (auto what = defect_of_sparse(payloads[p], shape, queue)) return Rejection{p, std::move(*what)};
    }
    return {};
  }

  const Grain grain_;
  const uint32_t id_;
};

// --- lists of rows ---------------------------------------------------------------------------------------------------

void Sparse::encode_rows(const EncodeRows& job, HostQueue& /*queue*/) const {
  const Rows& rows = job.rows;
  const SparseShape shape{rows.rows * rows.width, width_of(rows.width)};
  core::check(static_cast<int64_t>(job.payload.size()) == sparse_payload_bytes(shape.n),
              "the payload has payload_bytes");
  const int64_t listed = static_cast<int64_t>(rows.at.size()), in_row = rows.width / shape.width;
  const EncodeRun all = run_of({.gradient = {rows.values, rows.at.size() * static_cast<size_t>(rows.width)},
                                .scale = job.scale,
                                .payload = {},
                                .scratch = {}},
                               0, 0);
  // A listed row counts as kept, whatever it holds; its parts count only if they are nonzero.
  const auto for_units = [&](const auto& body) {
    for (int64_t k = 0; k < listed; ++k) {
      const int64_t unit = (int64_t{rows.at[static_cast<size_t>(k)]} - rows.first) * in_row;
      for (int64_t i = 0; i < in_row; ++i) {
        const int64_t begin = k * rows.width + i * shape.width;
        if (in_row == 1 || is_there(all, begin, begin + shape.width)) body(unit + i, begin);
      }
    }
  };
  uint32_t count = 0;
  if (in_row == 1) {
    count = static_cast<uint32_t>(listed);
  } else {
    for_units([&](int64_t, int64_t) { ++count; });
  }
  const SparseLayout layout = choose_layout(shape, count, /*has_last=*/false);
  write_frame(job.payload, shape, layout, count);
  std::byte* const payload = job.payload.data();
  auto* const values = reinterpret_cast<float*>(payload + layout.values_at);
  uint32_t largest = 0;
  int64_t rank = 0;
  if (layout.form == SparseForm::dense) {
    std::memset(values, 0, static_cast<size_t>(layout.values_bytes));
  } else if (layout.form == SparseForm::bitmap) {
    std::memset(payload + layout.index_at, 0, static_cast<size_t>(layout.index_bytes));
  }
  auto* const list = reinterpret_cast<uint32_t*>(payload + layout.index_at);
  auto* const bits = reinterpret_cast<uint64_t*>(payload + layout.index_at);
  const bool lie_alike = in_row == 1 && layout.form != SparseForm::dense;
  if (lie_alike) largest = write_scaled(all, 0, listed * rows.width, values);
  for_units([&](int64_t unit, int64_t begin) {
    const int64_t at = layout.form == SparseForm::dense ? unit : rank;
    if (layout.form == SparseForm::list) list[rank] = static_cast<uint32_t>(unit);
    if (layout.form == SparseForm::bitmap) bits[unit / 64] |= uint64_t{1} << (unit % 64);
    ++rank;
    if (lie_alike) return;
    largest = std::max(largest, write_scaled(all, begin, begin + shape.width, values + at * shape.width));
  });
  if (layout.form == SparseForm::bitmap) {
    auto* const starts = reinterpret_cast<uint32_t*>(payload + layout.starts_at);
    uint32_t before = 0;
    for (int64_t r = 0; r < shape.runs(); ++r) {
      starts[r] = before;
      for (int64_t w = r * shape.run() / 64; w < std::min((r + 1) * shape.run() / 64, shape.words()); ++w) {
        before += static_cast<uint32_t>(std::popcount(bits[w]));
      }
    }
  }
  if (largest >= kInfinityBits) job.verdict->nonfinite = 1;
  job.verdict->used_bytes += layout.bytes;
}

void Sparse::decode_rows(const DecodeRows& job, HostQueue& queue) const {
  const SparseShape shape{job.rows * job.width, width_of(job.width)};
  if (const Rejected bad = check_payloads(job.payloads, shape, queue)) {
    if (job.verdict->rejected == 0) job.verdict->rejected = static_cast<uint32_t>(bad->position) + 1;
    return;
  }
  const int64_t in_row = job.width / shape.width;
  std::array<SparseView, 64> few;
  std::vector<SparseView> many(job.payloads.size() > few.size() ? job.payloads.size() : 0);
  const std::span<SparseView> views(many.empty() ? few.data() : many.data(), job.payloads.size());
  for (size_t p = 0; p < views.size(); ++p) {
    views[p] = SparseView(job.payloads[p], shape);
    views[p].seek(0);
  }
  RowBuffer& out = *job.out;
  // Room for another row.
  const auto append = [&](int64_t row) {
    core::check(out.count < out.most, "a list has room for all rows of its matrix");
    out.at[out.count] = static_cast<uint32_t>(job.first + row);
    return out.values + out.count++ * job.width;
  };
  for (;;) {
    SparseView* first = nullptr;
    int64_t unit = shape.units, next = shape.units;  // of the first view, and of another one
    for (SparseView& view : views) {
      next = std::min(next, std::max(unit, view.unit()));
      if (view.unit() >= unit) continue;
      unit = view.unit();
      first = &view;
    }
    if (first == nullptr) return;
    if (in_row == 1 && unit < next) {  // rows that one rank alone has, as many as stand together
      const float* const from = first->values();
      int64_t rows = 0;
      float* to = nullptr;
      for (; first->unit() < next && first->values() == from + rows * job.width; first->next()) {
        float* const place = append(first->unit());
        if (rows++ == 0) to = place;
      }
      begin_sums(from, static_cast<size_t>(rows * job.width), to);
      continue;
    }
    const int64_t row = unit / in_row;
    float* const to = append(row);
    std::fill(to, to + job.width, 0.0F);
    for (SparseView& view : views) {
      for (; view.unit() < (row + 1) * in_row; view.next()) {
        float* const part = to + (view.unit() - row * in_row) * shape.width;
        const float* const from = view.values();
        for (int64_t i = 0; i < shape.width; ++i) part[i] += from[i];
      }
    }
  }
}

core::Error Sparse::defect_of_rows(const DecodeRows& job, size_t position) const {
  const SparseShape shape{job.rows * job.width, width_of(job.width)};
  const Rejected bad = check_payloads(job.payloads.subspan(position, 1), shape, *make_serial_queue());
  core::check(bad.has_value(), "a payload that was rejected has a defect");
  return {core::Error::Code::corrupt, fmt::format("payload {} of {}: {}", position, job.payloads.size(), bad->what)};
}

// --- rows of the table -----------------------------------------------------------------------------------------------

template <Grain grain>
std::unique_ptr<Compressor> make(const core::CompressorSpec& spec, const core::CompressorTraits& traits) {
  return std::make_unique<Sparse>(spec, traits, grain);
}

template <Grain grain>
int64_t sparse_bytes(const core::CompressorSpec& spec, int64_t numel, int64_t row, double share) {
  return sparse_bytes_at(SparseShape(numel, unit_width(grain, spec, row)), share);
}

template <Grain grain>
core::CompressorTraits traits_of(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .fidelity = core::Fidelity::exact,
          .listed = grain == Grain::row ? core::Listed::always : core::Listed::never,  // for sparse tensors alone
          .summable = false,
          .error_feedback = false,
          .parameter_name = "",
          .takes_rows = true,
          .payload_bytes = [](const core::CompressorSpec&, const core::Extent& extent,
                              int) { return sparse_payload_bytes(extent.numel); },
          .used_bytes = sparse_used_bytes,
          .sparse_bytes = sparse_bytes<grain>,
          .carries_nonfinite = true,
          .host = {.feedback_reads = 4}};
}

}  // namespace

CompressorRow rows() {
  return {.traits = traits_of<Grain::row>("rows", "fp32 of the rows that are not zero"), .make = make<Grain::row>};
}

CompressorRow coo() {
  return {.traits = traits_of<Grain::element>("coo", "fp32 of the elements that are not zero"),
          .make = make<Grain::element>};
}

CompressorRow blocks() {
  static constexpr double kSearch[] = {64, 256, 1024};
  core::CompressorTraits traits = traits_of<Grain::block>("blocks", "fp32 of the blocks that are not zero");
  traits.parameter_name = "block";
  traits.parameter_default = 256;
  traits.parameter_min = 16;
  traits.parameter_max = 65536;
  traits.parameter_step = 16;
  traits.parameter_search = kSearch;
  return {.traits = traits, .make = make<Grain::block>};
}

}  // namespace gradtune::compress
