#include "runtime/device/self_test_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/self_test_data.h"
#include "runtime/device/self_test_run.h"

namespace kvrun {
namespace {

std::vector<StepToken> TokensOf(const AttentionCase& c) {
  std::vector<StepToken> tokens;
  for (uint32_t t = 0; t < c.n_tokens; ++t) {
    tokens.push_back(
        {.id = 0, .position = c.position + t, .sequence = AttentionCase::kSequences - 1, .output_row = 0});
  }
  return tokens;
}

// KV entries as the device stores them; what they stand for goes to `values`.
std::vector<float> MakeKv(const AttentionCase& c, std::vector<float>& values) {
  const size_t count = c.kv_shape().size_bytes() / KvElementBytes(c.type);
  values = RandomFloats(count, 5);
  if (c.type == KvType::kF32) return values;
  std::vector<uint16_t> halves(count);
  std::transform(values.begin(), values.end(), halves.begin(), FloatToHalf);
  std::transform(halves.begin(), halves.end(), values.begin(), HalfToFloat);
  std::vector<float> stored(count / 2);
  std::memcpy(stored.data(), halves.data(), count * sizeof(uint16_t));
  return stored;
}

// The head's entry of K (plane 0) or V (plane 1) at a position, in a ring.
size_t EntryBegin(const AttentionCase& c, uint32_t sequence, uint32_t kv_head, uint32_t plane,
                  uint32_t position) {
  return ((size_t{sequence * AttentionCase::kKvHeads + kv_head} * 2 + plane) * AttentionCase::kContext +
          position % AttentionCase::kContext) *
         c.head_dim;
}

void AttendRow(const AttentionCase& c, const float* query, std::span<const float> kv, uint32_t kv_head,
               uint32_t position, double* output) {
  std::vector<double> weights(position + 1);
  double maximum = -INFINITY;
  const uint32_t n_seen = c.window_tokens > 0 ? std::min(c.window_tokens, position + 1) : position + 1;
  const uint32_t first = position + 1 - n_seen;
  for (uint32_t p = first; p <= position; ++p) {
    const size_t key = EntryBegin(c, AttentionCase::kSequences - 1, kv_head, 0, p);
    double score = 0.0;
    for (uint32_t i = 0; i < c.head_dim; ++i) score += double{query[i]} * kv[key + i];
    weights[p] = score / std::sqrt(c.head_dim);
    if (c.score_cap > 0.0F) weights[p] = c.score_cap * std::tanh(weights[p] / c.score_cap);
    maximum = std::max(maximum, weights[p]);
  }
  double total = 0.0;
  for (uint32_t p = first; p <= position; ++p) total += weights[p] = std::exp(weights[p] - maximum);
  for (uint32_t p = first; p <= position; ++p) {
    const size_t value = EntryBegin(c, AttentionCase::kSequences - 1, kv_head, 1, p);
    for (uint32_t i = 0; i < c.head_dim; ++i) output[i] += weights[p] / total * kv[value + i];
  }
}

// The angles, norms and query rows of a rope_store check.
struct RopeInputs {
  std::vector<float> qkv;
  std::vector<float> angles;
  std::vector<float> norms;
  uint32_t rotary_dim;
  bool halves;
  float epsilon = 1e-3F;
};

void NormAndRotate(const RopeInputs& in, uint32_t head_dim, uint32_t token, bool is_key, double* head) {
  double sum = 0.0;
  for (uint32_t i = 0; i < head_dim; ++i) sum += head[i] * head[i];
  const double factor = 1.0 / std::sqrt(sum / head_dim + in.epsilon);
  for (uint32_t i = 0; i < head_dim; ++i) head[i] *= factor * in.norms[(is_key ? head_dim : 0) + i];
  const uint32_t pairs = in.rotary_dim / 2;
  for (uint32_t i = 0; i < pairs; ++i) {
    const double cosine = in.angles[2 * (token * pairs + i)];
    const double sine = in.angles[2 * (token * pairs + i) + 1];
    double& a = head[in.halves ? i : 2 * i];
    double& b = head[in.halves ? i + pairs : 2 * i + 1];
    const double rotated = a * cosine - b * sine;
    b = a * sine + b * cosine;
    a = rotated;
  }
}

std::vector<float> DecodeKv(KvType type, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / KvElementBytes(type));
  if (type == KvType::kF32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<uint16_t> halves(values.size());
  std::memcpy(halves.data(), bytes.data(), bytes.size());
  std::transform(halves.begin(), halves.end(), values.begin(), HalfToFloat);
  return values;
}

}  // namespace

Result<std::string> CheckAttention(Device& device, const AttentionCase& c, bool in_parts, double tolerance) {
  SelfTestRun run(device);
  std::vector<float> qkv = RandomFloats(size_t{c.n_tokens} * c.qkv_stride(), 6);
  for (float& value : qkv) value *= 4.0F;  // so that some positions weigh much more than others
  std::vector<float> kv;
  const std::vector<float> stored = MakeKv(c, kv);
  std::vector<double> expected(size_t{c.n_tokens} * c.n_heads() * c.head_dim);
  AttentionArgs args{.qkv = run.Floats(qkv),
                     .step = run.Step(TokensOf(c)),
                     .kv = run.Floats(stored),
                     .kv_shape = c.kv_shape(),
                     .n_heads = c.n_heads(),
                     .n_tokens = c.n_tokens,
                     .output = run.Poisoned(expected.size()),
                     .window_tokens = c.window_tokens,
                     .score_cap = c.score_cap,
                     .of_prompt = c.n_tokens > 1};
  // Of two, the second is made first: of a buffer that has more rows on both sides.
  const uint32_t n_rows = c.n_tokens * c.n_heads();
  if (in_parts) args.parts_after = {run.Zeros(4 * args.parts_bytes()), 2 * n_rows};
  args.scratch = run.Zeros(device.AttendScratchBytes(args));
  run.Run([&](CommandList& list) { return list.Attend(args); });
  if (in_parts) {
    args.parts_before = args.parts_after;
    args.parts_after.first_row = n_rows;
    run.Run([&](CommandList& list) -> Status {
      KVRUN_RETURN_IF_ERROR(list.Attend(args));
      return list.FinishAttention(args);
    });
  }

  for (uint32_t t = 0; t < c.n_tokens; ++t) {
    for (uint32_t h = 0; h < c.n_heads(); ++h) {
      AttendRow(c, &qkv[size_t{t} * c.qkv_stride() + h * c.head_dim], kv, h / c.group, c.position + t,
                &expected[(size_t{t} * c.n_heads() + h) * c.head_dim]);
    }
  }
  return run.Compare(expected, args.output, tolerance);
}

Result<std::string> CheckAttendNew(Device& device, const AttentionCase& c, bool halves) {
  SelfTestRun run(device);
  const RopeInputs in{.qkv = RandomFloats(c.qkv_stride(), 6),
                      .angles = RandomFloats(c.head_dim, 8),
                      .norms = RandomFloats(size_t{2} * c.head_dim, 9),
                      .rotary_dim = c.head_dim - 16,
                      .halves = halves};
  std::vector<float> kv;
  const std::vector<float> stored = MakeKv(c, kv);
  std::vector<double> expected(size_t{c.n_heads()} * c.head_dim);
  AttentionArgs args{.qkv = run.Floats(in.qkv),
                     .step = run.Step(TokensOf(c)),
                     .kv = run.Floats(stored),
                     .kv_shape = c.kv_shape(),
                     .n_heads = c.n_heads(),
                     .n_tokens = 1,
                     .angles = run.Floats(in.angles),
                     .norms = run.Floats(in.norms),
                     .norm_epsilon = in.epsilon,
                     .rotary_dim = in.rotary_dim,
                     .rope_halves = halves,
                     .output = run.Poisoned(expected.size()),
                     .window_tokens = c.window_tokens,
                     .score_cap = c.score_cap};
  args.scratch = run.Zeros(device.AttendScratchBytes(args));
  run.Run([&](CommandList& list) { return list.AttendNew(args); });

  std::vector<double> rows(in.qkv.begin(), in.qkv.end());
  for (uint32_t h = 0; h < c.n_heads() + 2 * AttentionCase::kKvHeads; ++h) {
    double* head = &rows[size_t{h} * c.head_dim];
    const bool is_value = h >= c.n_heads() + AttentionCase::kKvHeads;
    if (!is_value) NormAndRotate(in, c.head_dim, 0, h >= c.n_heads(), head);
    if (h < c.n_heads()) continue;
    const uint32_t kv_head = (h - c.n_heads()) % AttentionCase::kKvHeads;
    const size_t entry = EntryBegin(c, AttentionCase::kSequences - 1, kv_head, is_value ? 1 : 0, c.position);
    for (uint32_t i = 0; i < c.head_dim; ++i) kv[entry + i] = static_cast<float>(head[i]);
  }
  const std::vector<float> queries(rows.begin(), rows.end());
  for (uint32_t h = 0; h < c.n_heads(); ++h) {
    AttendRow(c, &queries[size_t{h} * c.head_dim], kv, h / c.group, c.position,
              &expected[size_t{h} * c.head_dim]);
  }
  if (!run.status().ok()) return run.Compare({}, args.output, 0.0);
  const std::vector<float> found_kv = DecodeKv(c.type, run.Bytes(args.kv, c.kv_shape().size_bytes()));
  const double tolerance = c.type == KvType::kF16 ? 1e-3 : 2e-4;  // halves may be rounded to either neighbour
  const auto kept = run.Compare(std::vector<double>(kv.begin(), kv.end()), found_kv, tolerance);
  if (!kept.ok()) return Status(kept.status().code(), "KV: " + kept.status().message());
  return run.Compare(expected, args.output, tolerance);
}

Result<std::string> CheckRope(Device& device, const AttentionCase& c, bool halves) {
  SelfTestRun run(device);
  const RopeInputs in{.qkv = RandomFloats(size_t{c.n_tokens} * c.qkv_stride(), 7),
                      .angles = RandomFloats(size_t{c.n_tokens} * c.head_dim, 8),
                      .norms = RandomFloats(size_t{2} * c.head_dim, 9),
                      .rotary_dim = c.head_dim - 16,
                      .halves = halves};
  const uint64_t kv_bytes = c.kv_shape().size_bytes();
  const AttentionArgs args{.qkv = run.Floats(in.qkv),
                           .step = run.Step(TokensOf(c)),
                           .kv = run.Zeros(kv_bytes),
                           .kv_shape = c.kv_shape(),
                           .n_heads = c.n_heads(),
                           .n_tokens = c.n_tokens,
                           .angles = run.Floats(in.angles),
                           .norms = run.Floats(in.norms),
                           .norm_epsilon = in.epsilon,
                           .rotary_dim = in.rotary_dim,
                           .rope_halves = halves,
                           .window_tokens = c.window_tokens};
  run.Run([&](CommandList& list) { return list.RopeAndStore(args); });

  std::vector<double> expected(in.qkv.begin(), in.qkv.end());
  std::vector<double> expected_kv(kv_bytes / KvElementBytes(c.type));
  for (uint32_t t = 0; t < c.n_tokens; ++t) {
    for (uint32_t h = 0; h < c.n_heads() + 2 * AttentionCase::kKvHeads; ++h) {
      double* head = &expected[size_t{t} * c.qkv_stride() + h * c.head_dim];
      const bool is_value = h >= c.n_heads() + AttentionCase::kKvHeads;
      if (!is_value) NormAndRotate(in, c.head_dim, t, h >= c.n_heads(), head);
      if (h < c.n_heads()) continue;
      const uint32_t kv_head = (h - c.n_heads()) % AttentionCase::kKvHeads;
      std::copy_n(head, c.head_dim,
                  &expected_kv[EntryBegin(c, AttentionCase::kSequences - 1, kv_head, is_value ? 1 : 0,
                                          c.position + t)]);
    }
  }
  if (!run.status().ok()) return run.Compare({}, args.qkv, 0.0);
  const std::vector<float> found_kv = DecodeKv(c.type, run.Bytes(args.kv, kv_bytes));
  // Halves may be rounded to either neighbour.
  const auto stored = run.Compare(expected_kv, found_kv, c.type == KvType::kF16 ? 1e-3 : 1e-4);
  if (!stored.ok()) return Status(stored.status().code(), "KV: " + stored.status().message());
  return run.Compare(expected, args.qkv, 1e-4);
}

}  // namespace kvrun
