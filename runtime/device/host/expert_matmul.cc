// Products with the experts that tokens use. Uses (a token's of an expert) are sorted by expert; those of one
// expert are a *segment*, whose rows of activations meet the expert's panels as a matrix's do. Segments are
// taken in batches, so that what is gathered and rounded of the activations does not grow with the prompt.
#include <algorithm>
#include <bit>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/matrix.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/rounded_rows.h"

namespace kvrun::host {
namespace {

// Of a batch's activations.
constexpr size_t kBatchBytes = size_t{6} << 20;

struct Segment {
  uint32_t expert = 0;
  uint32_t first_use = 0;  // of those that are sorted
  uint32_t n_uses = 0;
  uint32_t first_group = 0;  // of kMaskRows rows, of the batch's
  size_t begin = 0;          // bytes, of the batch's activations
};

class ExpertProducts {
 public:
  ExpertProducts(ThreadPool& pool, const ExpertMatMulArgs& args, bool exact);
  void Run();

 private:
  static constexpr size_t kGroupRows = RoundedRows::kMaskRows;

  void SortUses();
  size_t RowsBytes(uint32_t n_rows) const;
  // The segment of the next expert that is used, from `expert` on; false: there is none.
  bool NextSegment(uint32_t* expert, Segment* segment) const;
  // As many as fit from `expert` on, which becomes the next one's; at least one, but where there is none.
  uint32_t TakeBatch(uint32_t* expert);
  void GatherBatch(uint32_t n_segments);
  void GatherGroup(const Segment& segment, uint32_t group, uint32_t worker);
  void MultiplyBatch(uint32_t n_segments);
  // With rows [begin, end) of the segment's expert.
  void MultiplyRows(const Segment& segment, size_t begin, size_t end, uint32_t worker);
  void StoreTile(const Segment& segment, const TileSums& sums, size_t first_row, uint32_t n, size_t panel_row,
                 size_t begin, size_t end) const;

  // Of a use: all of a token's uses have the same, or each has its own.
  const float* InputOf(uint32_t use) const {
    return input_ + size_t{is_sum() ? use : use / args_.n_used} * layout_.n_cols;
  }
  bool is_sum() const { return args_.weights != nullptr; }
  // Of float types kernels round nothing.
  size_t CountWide(size_t n_rows) const {
    return rounds_ ? RoundedRows::CountWide(kernels_, layout_.type, n_rows) : 0;
  }
  RoundedRows RowsOf(const Segment& segment) const {
    return {rows_ + segment.begin, segment.n_uses, CountWide(segment.n_uses), layout_.n_blocks};
  }
  std::byte* WorkerMemory(uint32_t worker) const { return workers_ + worker * worker_bytes_; }

  ThreadPool& pool_;
  const ExpertMatMulArgs& args_;
  const HostMatrix& matrix_;
  const PanelLayout& layout_;
  MatMulKernels kernels_;
  bool rounds_;
  bool shares_row_;  // all uses have the same input, which is rounded once
  const float* input_;
  uint32_t n_experts_;
  uint32_t n_uses_;
  // Scratch: of each expert where its uses begin, and an end; uses, sorted; a batch's segments; a panel, or a
  // group of rows, for each worker; a batch's activations.
  uint32_t* begins_ = nullptr;
  uint32_t* uses_ = nullptr;
  Segment* segments_ = nullptr;
  std::byte* workers_ = nullptr;
  std::byte* rows_ = nullptr;
  size_t worker_bytes_ = 0;
};

ExpertProducts::ExpertProducts(ThreadPool& pool, const ExpertMatMulArgs& args, bool exact)
    : pool_(pool),
      args_(args),
      matrix_(static_cast<const HostMatrix&>(*args.weight)),
      layout_(matrix_.layout()),
      kernels_(GetMatMulKernels()),
      // Float weights have no steps that would be coarser than those of rounded activations.
      rounds_(!exact && layout_.n_blocks != 0),
      shares_row_(args.n_tokens == 1 && args.weights == nullptr),
      input_(Data<float>(args.input)),
      n_experts_(matrix_.n_rows() / args.n_rows),
      n_uses_(args.n_tokens * args.n_used) {
  const size_t panel_bytes =
      rounds_ ? layout_.n_blocks * kMaxUnpackedBytes : size_t{layout_.n_cols} * kPanelRows * sizeof(float);
  const size_t group_bytes = kGroupRows * layout_.n_cols * sizeof(float);
  worker_bytes_ = RoundUp<size_t>(std::max(panel_bytes, group_bytes), 64);
  // Rows of a batch: one segment may have more than fit, all of a use at most.
  const size_t most_rows_bytes = std::max(kBatchBytes, RowsBytes(args.n_tokens));
  const size_t sorted_bytes = RoundUp<size_t>((n_experts_ + 1 + n_uses_) * sizeof(uint32_t), 64);
  const size_t segments_bytes = RoundUp<size_t>(std::min(n_experts_, n_uses_) * sizeof(Segment), 64);
  const size_t rows_bytes = std::min(n_uses_ * RowsBytes(1), most_rows_bytes);
  const size_t shared = sorted_bytes + segments_bytes + rows_bytes;
  std::byte* const memory = pool.Scratch(0, worker_bytes_ + CeilDiv<size_t>(shared, pool.size()));
  workers_ = memory;
  begins_ = reinterpret_cast<uint32_t*>(memory + worker_bytes_ * pool.size());
  uses_ = begins_ + n_experts_ + 1;
  segments_ = reinterpret_cast<Segment*>(reinterpret_cast<std::byte*>(begins_) + sorted_bytes);
  rows_ = reinterpret_cast<std::byte*>(segments_) + segments_bytes;
}

size_t ExpertProducts::RowsBytes(uint32_t n_rows) const {
  const size_t bytes =
      rounds_ ? RoundedRows::Bytes(n_rows, RoundedRows::CountWide(kernels_, layout_.type, n_rows),
                                   layout_.n_blocks)
              : size_t{n_rows} * layout_.n_cols * sizeof(float);
  return RoundUp<size_t>(bytes, 64);
}

// A counting sort: by expert, then as they come.
void ExpertProducts::SortUses() {
  const auto* const ids = Data<uint32_t>(args_.ids);
  std::fill_n(begins_, n_experts_ + 1, 0U);
  for (uint32_t use = 0; use < n_uses_; ++use) {
    KVRUN_CHECK(ids[use] < n_experts_);
    ++begins_[ids[use]];
  }
  uint32_t end = 0;
  for (uint32_t expert = 0; expert <= n_experts_; ++expert) begins_[expert] = end += begins_[expert];
  for (uint32_t use = n_uses_; use-- > 0;) uses_[--begins_[ids[use]]] = use;
}

bool ExpertProducts::NextSegment(uint32_t* expert, Segment* segment) const {
  while (*expert < n_experts_ && begins_[*expert] == begins_[*expert + 1]) ++*expert;
  if (*expert == n_experts_) return false;
  segment->expert = *expert;
  segment->first_use = begins_[*expert];
  segment->n_uses = begins_[*expert + 1] - segment->first_use;
  return true;
}

uint32_t ExpertProducts::TakeBatch(uint32_t* expert) {
  uint32_t n = 0;
  uint32_t n_groups = 0;
  size_t bytes = 0;
  Segment segment;
  for (; NextSegment(expert, &segment); ++*expert) {
    KVRUN_CHECK(!shares_row_ || segment.n_uses == 1);
    const size_t segment_bytes = shares_row_ ? 0 : RowsBytes(segment.n_uses);
    if (n > 0 && bytes + segment_bytes > kBatchBytes) break;
    segment.first_group = n_groups;
    segment.begin = bytes;
    n_groups += CeilDiv<uint32_t>(segment.n_uses, kGroupRows);
    bytes += segment_bytes;
    segments_[n++] = segment;
  }
  return n;
}

void ExpertProducts::GatherGroup(const Segment& segment, uint32_t group, uint32_t worker) {
  const size_t first = size_t{group} * kGroupRows;
  const size_t n = std::min(kGroupRows, segment.n_uses - first);
  const size_t row_bytes = size_t{layout_.n_cols} * sizeof(float);
  const uint32_t* const uses = uses_ + segment.first_use + first;
  std::byte* const to = rounds_ ? WorkerMemory(worker) : rows_ + segment.begin + first * row_bytes;
  const float* x = reinterpret_cast<const float*>(to);
  if (n == 1 && rounds_)
    x = InputOf(uses[0]);
  else
    for (size_t i = 0; i < n; ++i) std::memcpy(to + i * row_bytes, InputOf(uses[i]), row_bytes);
  if (rounds_) RowsOf(segment).Round(kernels_, layout_.type, x, first, n);
}

void ExpertProducts::GatherBatch(uint32_t n_segments) {
  if (shares_row_) return GatherGroup(segments_[0], 0, 0);
  const Segment& last = segments_[n_segments - 1];
  const uint32_t n_groups = last.first_group + CeilDiv<uint32_t>(last.n_uses, kGroupRows);
  const auto gather = [&](size_t begin, size_t end, uint32_t worker) {
    const Segment* segment = segments_;
    for (auto group = static_cast<uint32_t>(begin); group < end; ++group) {
      while (segment + 1 < segments_ + n_segments && segment[1].first_group <= group) ++segment;
      GatherGroup(*segment, group - segment->first_group, worker);
    }
  };
  const uint32_t n_uses = last.first_use + last.n_uses - segments_[0].first_use;
  if (size_t{n_uses} * layout_.n_cols <= kSerialElements)
    gather(0, n_groups, 0);
  else
    pool_.ParallelFor(n_groups, 1, gather);
}

// Sums of a token's uses go to the same rows, which then are one worker's.
void ExpertProducts::MultiplyBatch(uint32_t n_segments) {
  const size_t n_rows = args_.n_rows;
  const size_t n_parts = CeilDiv<size_t>(n_rows, kPanelRows);
  uint32_t most_uses = 0;
  for (uint32_t i = 0; i < n_segments; ++i) most_uses = std::max(most_uses, segments_[i].n_uses);
  const bool takes_tiles =
      rounds_ && kernels_.begin_int8 != nullptr && most_uses >= kernels_.int8_tile_tokens;
  pool_.ParallelFor(
      is_sum() ? n_parts : n_parts * n_segments, 1, [&](size_t begin, size_t end, uint32_t worker) {
        if (takes_tiles) kernels_.begin_int8();
        for (size_t i = 0; is_sum() && i < n_segments; ++i) {
          MultiplyRows(segments_[i], begin * kPanelRows, std::min(n_rows, end * kPanelRows), worker);
        }
        for (size_t i = begin / n_parts; !is_sum() && i * n_parts < end; ++i) {
          const size_t first = std::max(begin, i * n_parts) - i * n_parts;
          const size_t last = std::min(end - i * n_parts, n_parts);
          MultiplyRows(segments_[i], first * kPanelRows, std::min(n_rows, last * kPanelRows), worker);
        }
        if (takes_tiles) kernels_.end_int8();
      });
}

// Panels that begin before the expert's first row, or end after its last one, are its in part.
void ExpertProducts::MultiplyRows(const Segment& segment, size_t begin, size_t end, uint32_t worker) {
  const size_t base = size_t{segment.expert} * args_.n_rows;
  const size_t n_rows = shares_row_ ? 1 : segment.n_uses;
  const bool unpacks = rounds_ && kernels_.unpack != nullptr && n_rows >= kUnpackFromRows &&
                       layout_.n_blocks * kMaxUnpackedBytes <= kMaxUnpackedPanelBytes;
  const bool decodes = !rounds_ && layout_.n_blocks != 0;
  const RoundedRows rounded = RowsOf(segment);
  const float* floats = reinterpret_cast<const float*>(rows_ + segment.begin);
  const uint32_t tile_rows = rounds_ ? kernels_.int8_tile_tokens : kernels_.tile_tokens;
  const size_t chunk = rounds_ ? ChunkRows(layout_.n_blocks, rounded.n_wide > 0) : n_rows;
  alignas(64) TileSums sums;
  for (size_t first = 0; first < n_rows; first += chunk) {
    const size_t last = std::min(first + chunk, n_rows);
    for (size_t row = (base + begin) / kPanelRows * kPanelRows; row < base + end; row += kPanelRows) {
      const std::byte* panel = matrix_.panel(row / kPanelRows);
      std::byte* made = unpacks || decodes ? WorkerMemory(worker) : nullptr;
      if (decodes) kernels_.decode(layout_, panel, reinterpret_cast<float*>(made));
      if (unpacks && !kernels_.unpack(layout_, panel, made)) made = nullptr;
      for (size_t t = first; t < last;) {
        const auto n = static_cast<uint32_t>(std::min<size_t>(tile_rows, std::bit_floor(last - t)));
        if (rounds_) {
          rounded.Multiply(kernels_, layout_, panel, made, t, n, sums);
        } else {
          kernels_.multiply_float(decodes ? TensorType::kF32 : layout_.type, decodes ? made : panel,
                                  layout_.n_cols, floats + t * layout_.n_cols, n, sums);
        }
        StoreTile(segment, sums, t, n, row, base + begin, base + end);
        t += n;
      }
    }
  }
}

void ExpertProducts::StoreTile(const Segment& segment, const TileSums& sums, size_t first_row, uint32_t n,
                               size_t panel_row, size_t begin, size_t end) const {
  const size_t first = std::max(begin, panel_row);
  const size_t n_lanes = std::min(end, panel_row + kPanelRows) - first;
  const size_t row = first - size_t{segment.expert} * args_.n_rows;
  for (uint32_t t = 0; t < n; ++t) {
    const uint32_t use = uses_[segment.first_use + first_row + t];
    const float* const from = sums[t] + (first - panel_row);
    float* const to =
        Data<float>(args_.output) + size_t{is_sum() ? use / args_.n_used : use} * args_.n_rows + row;
    if (!is_sum()) {
      std::memcpy(to, from, n_lanes * sizeof(float));
      continue;
    }
    const float weight = Data<float>(args_.weights)[use];
    for (size_t i = 0; i < n_lanes; ++i) to[i] += weight * from[i];
  }
}

void ExpertProducts::Run() {
  SortUses();
  for (uint32_t expert = 0;;) {
    const uint32_t n_segments = TakeBatch(&expert);
    if (n_segments == 0) return;
    GatherBatch(n_segments);
    MultiplyBatch(n_segments);
  }
}

}  // namespace

void ExpertMatMul(ThreadPool& pool, const ExpertMatMulArgs& args, bool exact) {
  if (args.n_tokens == 0 || args.n_used == 0 || args.n_rows == 0) return;
  KVRUN_CHECK(args.weight->n_rows() % args.n_rows == 0);
  ExpertProducts(pool, args, exact).Run();
}

}  // namespace kvrun::host
