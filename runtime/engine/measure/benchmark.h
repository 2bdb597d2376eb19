// How fast prefill and decoding are at given depths of the context, with the statistics of the KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/measure/work_kinds.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/kv/plan/kv_report.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/kv/serve/read_log.h"
#include "runtime/model/model.h"

namespace kvrun {

struct BenchmarkOptions {
  KvSettings kv;
  std::vector<uint32_t> depths;  // tokens that are there before the measured ones
  uint32_t n_prompt = 0;         // prefilled from an empty context; 0: none
  uint32_t n_decode = 0;         // decoded at each depth; 0: none
  uint32_t n_sequences = 1;      // decoded together
  uint32_t n_repetitions = 3;
  bool fill_random = false;  // the KV at a depth is random, and choices are replayed with...
  double hit_rate = 0.0;     // this share of groups that the step before has chosen too
  bool io_only = false;      // repeats the reads of the last run, without computing
  bool weight_reads = true;  // measures, after decoding, how fast the device reads weights: 0.1 s
};

// What decoding reads of the weights, beside what the device can read.
struct WeightReads {
  uint64_t step_bytes = 0;    // of the weights, each once
  double bytes_per_s = 0.0;   // those, by the median run
  double stream_per_s = 0.0;  // bytes: a buffer as large, read from begin to end without any arithmetic
};

// Rates of a model of which only the first layers were timed: what layers take by themselves, which is the
// difference to half as many of them in the same run, is scaled; the rest is as it was.
struct WholeModelRates {
  uint32_t n_layers = 0;
  std::vector<double> prefill_tps;  // of each run
  std::vector<double> decode_tps;   // of each run, over all sequences
};

// Of a step of `n_whole` layers, from steps of n_few < n_many of them; in the unit of `few` and `many`.
double TimeOfWhole(double few, uint32_t n_few, double many, uint32_t n_many, uint32_t n_whole);

// At one depth. A context is as long as the depth and the tokens that are decoded need, or the prompt.
struct BenchmarkResult {
  uint32_t depth = 0;
  uint32_t n_layers = 0;                   // that were timed
  std::optional<WholeModelRates> whole;    // where the model has more of them (Model::n_layers_whole)
  std::vector<double> prefill_tps;         // of each run
  std::vector<double> decode_tps;          // of each run, over all sequences
  uint64_t decode_tokens = 0;              // of the report's run
  std::optional<KvReport> report;          // of the last run that decoded; nothing where no records are kept
  std::vector<Device::MemoryPart> memory;  // during the last run
  std::vector<OperationTime> operations;   // of the report's run; empty without profiling
  std::vector<std::vector<OperationTime>> operations_of_runs;  // of each run that decoded
  std::vector<OperationTime> prompt_operations;                // of the last run that prefilled
  std::vector<WorkTime> step_work;                             // of a decode step, by `operations`
  std::vector<WorkTime> prompt_work;                           // of a prompt, by `prompt_operations`
  double stream_per_s = 0.0;  // bytes that the device reads: WeightReads; also where operations were timed
  std::optional<RepeatedReads> io;
  std::vector<std::string> notes;      // of the KV plan, for people
  std::string part_note;               // for people, of a part of a model; may be empty
  std::optional<WeightReads> weights;  // where decoding was measured, and they were wanted
};

// Holds the lock all the time. progress(done, total), in tokens, answers true to cancel; it may be empty.
Result<std::vector<BenchmarkResult>> RunBenchmark(const Model& model,
                                                  std::shared_ptr<const DeviceWeights> weights,
                                                  Device& device, std::mutex* device_mutex,
                                                  const BenchmarkOptions& options,
                                                  const std::function<bool(uint64_t, uint64_t)>& progress);

}  // namespace kvrun
