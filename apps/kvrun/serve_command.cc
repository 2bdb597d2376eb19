// kvrun serve: answers programs that speak to an OpenAI server, and people on a page.
#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/interrupt.h"
#include "apps/common/report.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/answer_collector.h"
#include "apps/kvrun/chat_sampling.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/generation.h"
#include "apps/kvrun/kept_documents.h"
#include "apps/kvrun/long_document.h"
#include "apps/kvrun/request_scheduler.h"
#include "apps/kvserve/http_server.h"
#include "apps/kvserve/service.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kPatienceSeconds = 10;  // for answers that are under way, when the server ends
constexpr uint32_t kWaitMs = 200;          // between two looks at whether it is to end

struct ServeOptions {
  SharedOptions shared;
  GenerationOptions generation;
  PromptForm form;
  Keeping keeping;
  serve::HttpOptions http;
  uint32_t port = 8080;
  std::string api_key_file;
  uint32_t n_parallel = 4;
  uint32_t queue = 64;
  const OptionSet* set = nullptr;
};

// The server's handlers use the service and the scheduler, whose requests use the service: whatever happens,
// they end in this order.
class EndInOrder {
 public:
  EndInOrder(std::unique_ptr<serve::HttpServer>* server, Scheduler* scheduler)
      : server_(server), scheduler_(scheduler) {}
  EndInOrder(const EndInOrder&) = delete;
  EndInOrder& operator=(const EndInOrder&) = delete;
  ~EndInOrder() {
    server_->reset();
    scheduler_->reset();
  }

 private:
  std::unique_ptr<serve::HttpServer>* server_;
  Scheduler* scheduler_;
};

// A file of one line.
std::string ReadApiKey(const std::string& path) {
  std::string key = ReadText(path, LimitOfSmallFile("a key"));
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  const bool is_plain = !key.empty() && key.find_first_of(" \t\r\n") == std::string::npos;
  if (is_plain) return key;
  throw Failure(
      KVRUN_INVALID_ARGUMENT,
      fmt::format("--api-key-file: {} has to hold the key alone, without blanks, on one line", path));
}

std::string ModelName(const std::string& path) { return std::filesystem::path(path).stem().string(); }

int64_t ChangedAt(const std::string& path) {
  struct stat facts {};
  return stat(path.c_str(), &facts) == 0 ? static_cast<int64_t>(facts.st_mtime) : 0;
}

// Clients name variables of templates that many templates do not read: that is no reason to refuse them.
std::vector<int32_t> EncodeChatOf(const Model& model, const PromptForm& given, const Json& messages,
                                  const Json& variables) {
  PromptForm form = given;
  for (const auto& [name, value] : variables.items()) form.variables[name] = value;
  try {
    return EncodeConversation(model, form, messages);
  } catch (const Failure& failure) {
    const bool may_be_of_these =
        variables.contains("reasoning_effort") || variables.contains("enable_thinking");
    if (failure.status() != KVRUN_INVALID_ARGUMENT || !may_be_of_these) throw;
    form.variables.erase("reasoning_effort");
    form.variables.erase("enable_thinking");
    return EncodeConversation(model, form, messages);
  }
}

// What others say to a server is kept under a key, or not at all.
bool Keeps(const ServeOptions& options) {
  const bool encrypts =
      kvrun_session_encryption() == KVRUN_ENCRYPTION_FAST || !options.shared.session_key.empty();
  return options.keeping.is_on() && encrypts;
}

void NoteKeeping(const ServeOptions& options) {
  if (!options.keeping.is_on()) return;
  PrintMessage(
      Keeps(options)
          ? fmt::format("note: what is read and said is kept on flash, encrypted, at most {} of it; "
                        "kvrun sessions lists it, --no-keep turns it off",
                        FormatBytes(options.keeping.most_bytes))
          : std::string("note: nothing is kept, as this processor encrypts slowly: --session-key auto "
                        "keeps it all the same"));
}

kvrun_scheduler_options SchedulerOptionsOf(const ServeOptions& options) {
  kvrun_scheduler_options given;
  kvrun_scheduler_options_init(&given);
  given.n_parallel = options.n_parallel;
  given.most_queued = options.queue;
  const bool keeps = Keeps(options);
  given.folder = keeps ? nullptr : "";
  given.keep_bytes = options.keeping.most_bytes;
  if (keeps)
    given.session_key_path = options.shared.session_key.empty() ? "auto" : options.shared.session_key.c_str();
  return given;
}

// Steps the scheduler on this thread, and serves on another, until a signal asks for the end.
void ServeUntilAsked(serve::HttpServer* server, serve::Service* service, kvrun_scheduler* scheduler) {
  std::atomic<bool> has_ended = false;
  std::thread http([&] {
    server->Run();
    has_ended = true;
  });
  auto ticked = std::chrono::steady_clock::now();
  bool is_ending = false;
  kvrun_status status = KVRUN_OK;
  std::string why;  // kvrun_last_error is of the last call
  while (!has_ended) {
    if (status == KVRUN_OK) {
      status = kvrun_scheduler_step(scheduler, kWaitMs, nullptr);
      if (status != KVRUN_OK) why = kvrun_last_error();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(kWaitMs));
    }
    if (std::chrono::steady_clock::now() - ticked >= std::chrono::seconds(1)) {
      service->Tick();
      ticked = std::chrono::steady_clock::now();
    }
    if (!is_ending && (Interrupted() || TerminationAsked() || status != KVRUN_OK)) {
      is_ending = true;
      service->RefuseMore();
      server->Stop(kPatienceSeconds);
    }
  }
  http.join();
  if (status != KVRUN_OK) throw Failure(status, why);
}

int Serve(ServeOptions& options) {
  CheckGenerationOptions(options.generation);
  ReadPromptForm(&options.form);
  options.http.port = static_cast<uint16_t>(options.port);
  if (!options.api_key_file.empty()) options.http.api_key = ReadApiKey(options.api_key_file);
  const Model model = OpenNamedModel(options.shared);
  const Json model_info = ModelInfo(model);
  const bool has_seed = options.set->Given("--seed") && !options.generation.has_random_seed;
  const kvrun_generate_options asked = options.generation.values;
  ChooseSampling(*options.set, model_info, &options.generation);
  const LibraryOptions defaults(options.generation);
  // A text may repeat itself, as with kvrun run.
  kvrun_generate_options text_values = defaults.values;
  text_values.repetition_penalty = asked.repetition_penalty;
  text_values.repeat_limit = asked.repeat_limit;
  const uint32_t n_ctx = LargestContext(model, options.shared);
  SessionPlan plan = TakeConfig(model, options.shared, 1, n_ctx);
  if (!options.shared.quiet) NoteChatTemplate(options.form, model_info);
  Progress progress(ProgressModeOf(options.shared));
  serve::Service* answers = nullptr;
  // The address is taken before the weights are loaded: that it cannot be had is said at once.
  std::unique_ptr<serve::HttpServer> server = serve::HttpServer::Create(
      options.http,
      [&answers](const serve::HttpRequest& request, const std::shared_ptr<serve::HttpReply>& reply) {
        answers->Handle(request, reply);
      });
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  CheckConfig(loaded, options.shared, &plan);
  Scheduler scheduler = MakeScheduler(loaded, plan, SchedulerOptionsOf(options));
  serve::Backend backend{
      .model = &model,
      .scheduler = scheduler.get(),
      .model_name = ModelName(options.shared.model),
      .created_s = ChangedAt(options.shared.model),
      .n_ctx = n_ctx,
      .most_answer = defaults.values.max_tokens,
      .defaults = defaults.values,
      .text_defaults = text_values,
      .has_seed = has_seed,
      .encode_chat =
          [&](const Json& messages, const Json& variables) {
            return EncodeChatOf(model, options.form, messages, variables);
          },
      .encode_text =
          [&](const std::string& text) { return EncodePlain(model, options.form, text, "the prompt"); }};
  serve::Service service(std::move(backend));
  answers = &service;
  const EndInOrder end_in_order(&server, &scheduler);
  if (!options.shared.quiet) {
    const std::string& host = options.http.host;
    PrintMessage(fmt::format("{} is at http://{}:{}/ for people, and at /v1 for programs; Ctrl-C ends it",
                             ModelName(options.shared.model),
                             host.find(':') == std::string::npos ? host : "[" + host + "]", server->port()));
    NoteKeeping(options);
  }
  ServeUntilAsked(server.get(), &service, scheduler.get());
  return 0;
}

void AddServerOptions(OptionSet* set, ServeOptions* options) {
  set->Group(HelpGroup::kWork);
  set->NonEmptyText(
      "--host", &options->http.host, "ADDRESS",
      "the address to be found at (default 127.0.0.1: this machine alone; any other needs a key)");
  set->Number("--port", &options->port, 0, 65535, "the port (default 8080; 0: one that is free)");
  set->NonEmptyText("--api-key-file", &options->api_key_file, "FILE",
                    "a file with the key that clients have to name (Authorization: Bearer KEY)");
  set->Number("--parallel", &options->n_parallel, 1, KVRUN_MAX_SEQUENCES,
              "requests that are computed at once (default 4); a budget in bytes is of all of them");
  set->Number("--queue", &options->queue, 1, 100'000,
              "requests that may wait beside them (default 64); more are told to try again");
}

}  // namespace

Command AddServeCommand(CLI::App* program) {
  auto options = std::make_shared<ServeOptions>();
  auto set = std::make_shared<OptionSet>(
      program, "serve", "Answer programs that speak to an OpenAI server, and a page for people");
  AddModelOption(set.get(), &options->shared);
  AddPromptFormOptions(set.get(), &options->form);
  set->AddExample("kvrun serve -m model.gguf --kv-budget 1/13", "serve at http://127.0.0.1:8080/");
  set->AddExample("kvrun serve -m model.gguf --host 0.0.0.0 --api-key-file key.txt",
                  "and to other machines, which have to know the key");
  AddServerOptions(set.get(), options.get());
  AddGenerationOptions(set.get(), &options->generation, kChatMaxTokens, SamplingDefaults::kChat);
  AddEngineOptions(set.get(), &options->shared, "what the model was trained with", KvComparisons::kShown);
  AddSessionKeyOption(set.get(), &options->shared.session_key,
                      "encrypt what is kept with the key in this file, in place of one of your own (auto)");
  AddKeepOptions(
      set.get(), &options->keeping,
      {.keep =
           "keep what is read and said, encrypted with a key of your own, and read of a prompt that begins "
           "like it only the rest, also after a restart: at most so much in all, with the documents of "
           "kvrun run -f, the least recently used go first (default 20G, where the processor has AES or "
           "--session-key is given)",
       .no_keep = "keep nothing, and use nothing that is kept (the same as --keep 0)"});
  AddQuietOptions(set.get(), &options->shared);
  options->set = set.get();
  return {set, nullptr, [options] { return Serve(*options); }};
}

}  // namespace kvrun::cli
