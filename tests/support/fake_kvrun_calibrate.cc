// The toy library's calibration: column i of layer l of an adapter of rank R keeps (i + 1) / (R + l) of the
// energy; a rank of 0 means 40. The file says what was asked for. A "slow" model takes its time for each
// token, a "devicefail" loses the device half way; one that is cancelled leaves the number of tokens that are
// done in the checkpoint, and of how many, from which the next call of as many goes on, and another is
// refused. A "fullsums" model finds no room for its sums. Reuse rates are of the text's length: an "unread"
// model loses the device while they are measured, an "idle" one takes its time, a "short" text has none. For
// an "hours" model there is time for half the tokens, in pieces of 64, and for some of the rates.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "tests/support/fake_kvrun.h"

using kvrun::fake::Fail;
using kvrun::fake::HandOut;

namespace {

nlohmann::json Layer(uint32_t layer, uint32_t rank) {
  nlohmann::json energy = nlohmann::json::array();
  for (uint32_t i = 0; i < rank; ++i) energy.push_back(double(i + 1) / (rank + layer));
  return {{"energy", energy}};
}

size_t Total(const kvrun_calibrate_options& options) {
  size_t total = 0;
  for (size_t i = 0; i < options.n_texts; ++i) total += options.counts[i];
  return total;
}

// False: it is another's.
bool Resume(const kvrun_calibrate_options& options, size_t* done) {
  *done = 0;
  if (options.restart != 0) return true;
  std::ifstream file(options.checkpoint);
  size_t of = 0;
  file >> *done;
  return !(file >> of) || of == Total(options);
}

kvrun_status FailAnother(const kvrun_calibrate_options& options) {
  return Fail(KVRUN_INVALID_ARGUMENT, fmt::format("{} is another calibration's", options.checkpoint));
}

void WriteCheckpoint(const kvrun_calibrate_options& options, size_t done) {
  std::ofstream(options.checkpoint) << done << " " << Total(options);
}

}  // namespace

void kvrun_reuse_options_init(kvrun_reuse_options* options) {
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_measure_reuse(kvrun_engine* engine, const kvrun_reuse_options* options,
                                 const char* adapter_path, const int32_t*, size_t count, char** json) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  if (!std::ifstream(adapter_path)) return Fail(KVRUN_NOT_FOUND, "there is no adapter");
  if (engine->model->Is("unread")) return Fail(KVRUN_DEVICE_ERROR, "the device was lost");
  for (size_t done = engine->model->Is("idle") ? 0 : count; done <= count; ++done) {
    if (done < count) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (options->progress(options->progress_user, KVRUN_PHASE_EVALUATE, done, count) != 0)
      return Fail(KVRUN_CANCELLED, "cancelled");
  }
  nlohmann::json rates = nlohmann::json::array();
  // A text of two has selections of 96 and 384, one of more no row at all for C = 2 M.
  for (const char* policy : {"fifo", "lru"}) {
    for (const uint32_t select : {96U, 384U}) {
      for (const uint32_t times : {1U, 2U}) {
        if (count < 2 || (count > 2 && times == 2)) continue;
        const double rate = (policy[0] == 'l' ? 0.5 : 0.4) + 0.1 * times + 0.001 * select / 96;
        rates.push_back({{"policy", policy},
                         {"group", 16},
                         {"select", select},
                         {"ctx", options->n_ctx},
                         {"capacity", select / 16 * times},
                         {"rate", rate}});
      }
    }
  }
  nlohmann::json info = {{"n_ctx", count}, {"rates", rates}};
  info["layers"] = nlohmann::json::array();
  if (!rates.empty() && options->skip_layers == 0)
    info["layers"] = {{{"kl", 0.01}, {"share", 1.5}}, {{"kl", 0.001}, {"share", 0.5}}};
  info["left_out"] = nlohmann::json::array();
  if (engine->model->Is("hours") && options->max_ms != 0)
    info["left_out"] = {"12 of 20 settings of reuse rates", "shares of layers"};
  if (rates.empty()) info["note"] = "no reuse rates: too short";
  return HandOut(info.dump(), json);
}

kvrun_status kvrun_calibrate_time_json(kvrun_engine* engine, const kvrun_calibrate_options* options,
                                       const kvrun_reuse_options* reuse, char** json) {
  const bool is_cut = engine->model->Is("hours") && options->max_ms != 0;
  const double all_s = engine->model->Is("hours") ? 1020 : reuse == nullptr ? 3 : 100;
  return HandOut(nlohmann::json{{"n_ctx", is_cut ? 64 : options->n_ctx},
                                {"sums_ms", options->max_ms / 2},
                                {"later_s", is_cut ? 3600 : 0},
                                {"seconds", is_cut ? options->max_ms / 1000 + 1 : all_s},
                                {"all_seconds", all_s}}
                     .dump(),
                 json);
}

void kvrun_calibrate_options_init(kvrun_calibrate_options* options) {
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_calibrate_checkpoint_json(kvrun_engine*, const kvrun_calibrate_options* options,
                                             char** json) {
  size_t resumed = 0;
  if (!Resume(*options, &resumed)) return FailAnother(*options);
  std::string note;
  if (resumed > 0) note = fmt::format("going on from {}", options->checkpoint);
  if (options->restart != 0) note = "starting anew, as asked";
  return HandOut(nlohmann::json{{"resumed_tokens", resumed}, {"n_tokens", 0}, {"note", note}}.dump(), json);
}

kvrun_status kvrun_calibrate(kvrun_engine* engine, const kvrun_calibrate_options* options, const char* path,
                             char** json) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  const std::string asked = fmt::format("kind {} rank {} ctx {} device {}", options->kind, options->rank,
                                        options->n_ctx, engine->device);
  std::string texts;
  for (size_t i = 0; i < options->n_texts; ++i) {
    texts += " |";
    for (size_t k = 0; k < options->counts[i]; ++k) texts += fmt::format(" {}", options->texts[i][k]);
  }
  const size_t given = Total(*options);
  const size_t total = engine->model->Is("hours") && options->max_ms != 0 ? given / 2 : given;
  size_t resumed = 0;
  if (!Resume(*options, &resumed)) return FailAnother(*options);
  for (size_t done = resumed; done <= total; ++done) {
    if (engine->model->Is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (engine->model->Is("devicefail") && done > total / 2)
      return Fail(KVRUN_DEVICE_ERROR, "the device was lost");
    if (options->progress(options->progress_user, KVRUN_PHASE_CALIBRATE, done, total) != 0) {
      if (done > 0) WriteCheckpoint(*options, done);
      return Fail(KVRUN_CANCELLED, "cancelled");
    }
  }
  if (engine->model->Is("fullsums") && options->sums != nullptr) {
    WriteCheckpoint(*options, total);
    return Fail(KVRUN_IO_ERROR, fmt::format("cannot write {}: no room", options->sums));
  }
  if (options->keep_checkpoint != 0) {
    WriteCheckpoint(*options, total);
  } else {
    std::remove(options->checkpoint);
  }
  if (options->sums != nullptr) std::ofstream(options->sums) << "sums";
  std::ofstream(path) << asked << texts;
  const uint32_t rank = options->rank == 0 ? 40 : options->rank;
  return HandOut(nlohmann::json{{"kind", options->kind},
                                {"rank", rank},
                                {"n_tokens", total},
                                {"n_tokens_given", given},
                                {"made_from", "tokens"},
                                {"n_pieces", options->n_texts},
                                {"resumed_tokens", resumed},
                                {"notes", nlohmann::json::array()},
                                {"fingerprint", "0123"},
                                {"layers", {Layer(0, rank), Layer(1, rank)}}}
                     .dump(),
                 json);
}
