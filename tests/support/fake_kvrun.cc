// A stand-in for the library behind the C API, for tests of the command-line program: a toy "model" that is
// deterministic and needs neither a file nor a device. What it does wrong is chosen by the model's path:
//   missing, corrupt       kvrun_model_open fails         nobos        the file asks for no BOS
//   nodevice               kvrun_engine_create fails      nochat       the chat form is unknown
//   roomy                  trained with 4 Mi tokens        advising     its file advises how to sample
//   small                  trained with 64 tokens         slow         loading, prefill, decoding take time
//   devicefail             feeding fails                  transcript   answers with its whole context
//   endless                generates for long             loud         says on standard error that it decodes
//   lossy                  its vocabulary is ASCII         foreign      only kvrun_model_open_any takes it
//   wordy                  its file's name for it is long   words     a vocabulary alone
//   pondering              thinks "Hm: 1 + 1." first     breaks       a prompt with "!" fails in a batch
// Tokens 0..255 are bytes; the control tokens follow.
#include "tests/support/fake_kvrun.h"

#include <fmt/format.h>
#include <kvrun/kvrun.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

using kvrun::fake::Fail;
using kvrun::fake::HandOut;
using kvrun::fake::kBos;
using kvrun::fake::kEnd;
using kvrun::fake::kVocabSize;
using kvrun::fake::TextOf;

namespace {

constexpr const char* kForeign = "foreign: the architecture is not supported";
constexpr const char* kWords = "words: it holds no tensors";
constexpr std::string_view kControl[] = {"<bos>", "<start>", "<end>"};

thread_local std::string last_error;

}  // namespace

kvrun_status kvrun::fake::Fail(kvrun_status status, const std::string& message) {
  last_error = message;
  return status;
}

kvrun_status kvrun::fake::HandOut(const std::string& text, char** out) {
  *out = strdup(text.c_str());
  return KVRUN_OK;
}

std::string kvrun::fake::TextOf(int32_t token) {
  if (token >= kBos) return std::string(kControl[token - kBos]);
  return std::string(1, static_cast<char>(token));
}

const char* kvrun_version(void) { return "0.1.0 (fake)"; }
const char* kvrun_last_error(void) { return last_error.c_str(); }
void kvrun_string_free(char* text) { std::free(text); }

const char* kvrun_status_name(kvrun_status status) {
  static constexpr const char* kNames[] = {"ok",           "invalid argument", "not found",     "corrupt",
                                           "unsupported",  "out of memory",    "context full",  "io error",
                                           "device error", "cancelled",        "internal error"};
  return kNames[status];
}

kvrun_status kvrun_devices_json(char** json) {
  if (std::getenv("FAKE_NO_DEVICE") != nullptr) return HandOut("[]", json);
  return HandOut(R"([{"index": 0, "name": "Fake GPU", "kind": "cpu", "api_version": "1.1", "driver": "fake 1",
                      "memory_bytes": 1073741824, "usable": true, "reason": ""},
                     {"index": 1, "name": "Fake CPU", "kind": "cpu", "api_version": "", "driver": "fake host",
                      "memory_bytes": 2147483648, "usable": true, "reason": ""},
                     {"index": null, "name": "/icd.d/fake.json", "kind": "driver", "api_version": "",
                      "driver": "", "memory_bytes": null, "usable": false, "reason": "it crashed"}])",
                 json);
}

// Says that it was called: a handler may call write.
void kvrun_interrupt_trials(void) {
  if (std::getenv("FAKE_LOUD_TRIALS") == nullptr) return;
  static constexpr std::string_view kText = "the toy's trials are interrupted\n";
  (void)!write(STDERR_FILENO, kText.data(), kText.size());
}

kvrun_status kvrun_retry_drivers(void) {
  std::fputs("the toy's drivers are tried again\n", stderr);
  return KVRUN_OK;
}

kvrun_status kvrun_doctor_within_json(const char* device, uint32_t max_ms, kvrun_progress_fn progress,
                                      void* user, char** json) {
  if (device != nullptr && std::string_view(device) == "none") {
    return Fail(KVRUN_NOT_FOUND, "no device is named none");
  }
  if (progress(user, KVRUN_PHASE_SELF_TEST, 1, 2) != 0) return Fail(KVRUN_CANCELLED, "cancelled");
  progress(user, KVRUN_PHASE_SELF_TEST, 2, 2);
  if (std::getenv("FAKE_NO_DEVICE") != nullptr) return HandOut(R"({"passed": false, "devices": []})", json);
  const bool passed = std::getenv("FAKE_BAD_KERNEL") == nullptr;
  const bool is_slow = std::getenv("FAKE_SLOW_TESTS") != nullptr;
  const nlohmann::json test = {{"name", "matvec_q4_1"}, {"passed", passed}, {"detail", "error 0.5"}};
  return HandOut(nlohmann::json{{"passed", passed},
                                {"devices",
                                 {{{"name", "Fake GPU"},
                                   {"driver", "fake 1"},
                                   {"limits", {{"max_binding_bytes", 134217728}}},
                                   {"plan", {{"tile", 4}}},
                                   {"tests", {test}},
                                   {"n_left_out", is_slow && max_ms != 0 ? max_ms / 1000 : 0}}}}}
                     .dump(),
                 json);
}

kvrun_status kvrun_model_open(const char* path, kvrun_model** model) {
  const kvrun_model opened{path};
  if (opened.Is("missing")) return Fail(KVRUN_NOT_FOUND, opened.path + ": no such file");
  if (opened.Is("corrupt")) return Fail(KVRUN_CORRUPT, opened.path + ": bad magic");
  if (opened.Is("foreign")) return Fail(KVRUN_UNSUPPORTED, kForeign);
  if (opened.Is("words")) return Fail(KVRUN_UNSUPPORTED, kWords);
  *model = new kvrun_model(opened);
  return KVRUN_OK;
}
kvrun_status kvrun_model_open_any(const char* path, kvrun_model** model) {
  const kvrun_model opened{path};
  if (!opened.Is("foreign") && !opened.Is("words")) return kvrun_model_open(path, model);
  *model = new kvrun_model(opened);
  return KVRUN_OK;
}
void kvrun_model_close(kvrun_model* model) { delete model; }

static nlohmann::json SamplingInfo(const kvrun_model& model) {
  if (!model.Is("advising")) {
    return {{"temperature", nullptr}, {"top_k", nullptr}, {"top_p", nullptr}, {"min_p", nullptr}};
  }
  return {{"temperature", 0.25},
          {"top_k", 20},
          {"top_p", nullptr},
          {"min_p", nullptr},
          {"ignored", {"general.sampling.min_p is nan"}}};
}

kvrun_status kvrun_model_info_json(const kvrun_model* model, uint32_t context, char** json) {
  const uint32_t at = context == 0 ? kvrun_model_context_train(model) : context;
  if (model->Is("foreign")) {
    return HandOut(nlohmann::json{{"architecture", "foreign"},
                                  {"file_bytes", 1048576},
                                  {"n_layers", nullptr},
                                  {"n_vocab", kVocabSize},
                                  {"tensor_types", {{"F32", 1}, {"type 39", 2}}},
                                  {"kv_bytes", nullptr},
                                  {"unsupported", kForeign}}
                       .dump(),
                   json);
  }
  if (model->Is("words")) {
    return HandOut(
        nlohmann::json{{"architecture", "fake"},
                       {"file_bytes", 1024},
                       {"vocabulary", {{"tokens", kVocabSize}, {"merges", nullptr}, {"bos", kBos}}},
                       {"tensor_types", nlohmann::json::object()},
                       {"parameters", 0},
                       {"unsupported", kWords}}
            .dump(),
        json);
  }
  return HandOut(nlohmann::json{{"architecture", "fake"},
                                {"name", std::string(model->Is("wordy") ? 100000 : 4, 'x')},
                                {"file_bytes", 1048576},
                                {"n_layers", 2},
                                {"chat_form", nullptr},
                                {"sampling", SamplingInfo(*model)},
                                {"tensor_types", {{"F32", 3}}},
                                {"parameters", model->Is("tiny") ? 100'000'000 : 2'000'000'000},
                                {"kv_bytes_per_token", 1024},
                                {"kv_bytes", uint64_t{1024} * at},
                                {"context", at},
                                {"unsupported", nullptr}}
                     .dump(),
                 json);
}

uint32_t kvrun_model_vocab_size(const kvrun_model*) { return kVocabSize; }
uint32_t kvrun_model_context_train(const kvrun_model* model) {
  return model->Is("small") ? 64 : model->Is("endless") ? 1U << 20 : model->Is("roomy") ? 1U << 22 : 4096;
}
int kvrun_model_adds_bos(const kvrun_model* model) { return model->Is("nobos") ? 0 : 1; }
int kvrun_model_is_end_of_generation(const kvrun_model*, int32_t token) { return token == kEnd; }

kvrun_status kvrun_tokenize(const kvrun_model* model, const char* text, size_t text_bytes, uint32_t flags,
                            int32_t* ids, size_t* count) {
  std::vector<int32_t> tokens;
  const bool asked = (flags & KVRUN_ENCODE_BOS_IF_ASKED) != 0 && kvrun_model_adds_bos(model) != 0;
  if (asked || (flags & KVRUN_ENCODE_ADD_BOS) != 0) tokens.push_back(kBos);
  std::string_view rest(text, text_bytes);
  while (!rest.empty()) {
    int32_t token = static_cast<unsigned char>(rest[0]);
    for (int32_t i = 0; i < 3 && (flags & KVRUN_ENCODE_PARSE_SPECIAL) != 0; ++i) {
      if (rest.starts_with(kControl[i])) token = kBos + i;
    }
    // A "coarse" model's tokens have 64 KiB.
    rest.remove_prefix(model->Is("coarse") ? std::min<size_t>(rest.size(), 65536) : TextOf(token).size());
    tokens.push_back(token);
  }
  if (tokens.size() <= *count) std::copy(tokens.begin(), tokens.end(), ids);
  *count = tokens.size();
  return KVRUN_OK;
}

kvrun_status kvrun_detokenize(const kvrun_model*, const int32_t* ids, size_t count, char* text,
                              size_t* bytes) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += TextOf(ids[i]);
  if (all.size() <= *bytes) std::copy(all.begin(), all.end(), text);
  *bytes = all.size();
  return KVRUN_OK;
}

// A "lossy" model cannot say what is not ASCII.
kvrun_status kvrun_count_lost_bytes(const kvrun_model* model, const char* text, size_t text_bytes, uint32_t,
                                    uint64_t* lost_bytes) {
  const auto lost = [](char c) { return (static_cast<unsigned char>(c) & 0x80) != 0; };
  *lost_bytes = model->Is("lossy") ? std::count_if(text, text + text_bytes, lost) : 0;
  return KVRUN_OK;
}

void kvrun_engine_options_init(kvrun_engine_options* options) {
  *options = {};
  options->struct_size = sizeof *options;
}

kvrun_status kvrun_engine_create(const kvrun_model* model, const kvrun_engine_options* options,
                                 kvrun_engine** engine) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  if (model->Is("nodevice")) return Fail(KVRUN_NOT_FOUND, "no Vulkan device was found");
  for (uint64_t done = 0; done <= 10; ++done) {
    if (model->Is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (options->progress(options->progress_user, KVRUN_PHASE_LOAD, done << 20, 10 << 20) != 0) {
      return Fail(KVRUN_CANCELLED, "cancelled");
    }
  }
  *engine = new kvrun_engine{model,
                             options->device == nullptr ? "auto" : options->device,
                             options->profile != 0,
                             options->exact_activations != 0,
                             options->n_threads,
                             options->instruction_set == nullptr ? "" : options->instruction_set,
                             options->remeasure != 0};
  return KVRUN_OK;
}
void kvrun_engine_destroy(kvrun_engine* engine) { delete engine; }

kvrun_status kvrun_engine_info_json(const kvrun_engine* engine, char** json) {
  nlohmann::json notes = {"tiles of 4"};
  if (engine->n_threads != 0) notes.push_back(fmt::format("{} threads", engine->n_threads));
  if (!engine->instruction_set.empty()) notes.push_back("computing with " + engine->instruction_set);
  if (engine->exact_activations) notes.push_back("float activations");
  if (engine->remeasure) notes.push_back("devices are measured again");
  return HandOut(
      nlohmann::json{{"device", "Fake " + engine->device}, {"is_cpu", true}, {"notes", notes}}.dump(), json);
}
