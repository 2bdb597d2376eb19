// kvadapt probe: what this machine's storage and device do, measured, into a profile.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/number_list.h"
#include "apps/common/outputs.h"
#include "apps/common/shared_options.h"
#include "apps/kvadapt/commands.h"
#include "apps/kvadapt/offline_calls.h"
#include "apps/kvadapt/probe_report.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kUsualContext = 8192;

struct ProbeOptions {
  SharedOptions shared;
  std::string output;
  std::string plot;
  std::string folder;
  bool tmpfs = false;
  bool storage_only = false;
  bool device_only = false;
  bool force = false;
  float storage_seconds = 30.0F;
  std::vector<uint32_t> batches = {1};
  std::vector<uint32_t> contexts = {kUsualContext};
};

void CheckUsage(const ProbeOptions& options) {
  if (options.storage_only && options.device_only) {
    throw UsageError("--storage-only and --device-only leave nothing to measure: give one of them, or none");
  }
}

struct Output {
  std::string path;
  offline::Plot (*plot)(const offline::DeviceProfile&) = nullptr;  // null: the profile itself
};

std::vector<Output> OutputsOf(const ProbeOptions& options) {
  std::vector<Output> outputs;
  if (!options.output.empty()) outputs.push_back({options.output});
  if (options.plot.empty()) return outputs;
  if (!options.device_only) {
    outputs.push_back({options.plot + "-storage.svg", StoragePlot});
    outputs.push_back({options.plot + "-modes.svg", ModePlot});
  }
  if (!options.storage_only) outputs.push_back({options.plot + "-operations.svg", OperationPlot});
  return outputs;
}

std::vector<std::string> PathsOf(const std::vector<Output>& outputs) {
  std::vector<std::string> paths;
  for (const Output& output : outputs) paths.push_back(output.path);
  return paths;
}

// All can be made before one is there.
void Write(const std::vector<Output>& outputs, const offline::DeviceProfile& measured) {
  std::vector<std::unique_ptr<ResultFile>> files;
  for (const Output& output : outputs) files.push_back(std::make_unique<ResultFile>(output.path));
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string text = outputs[i].plot == nullptr ? offline::ProfileToJson(measured)
                                                        : offline::SvgText(outputs[i].plot(measured));
    files[i]->Write(text.data(), text.size());
    files[i]->Commit();
  }
}

offline::StorageProbeOptions StorageOptions(const ProbeOptions& options) {
  return {.folder = options.folder,
          .allow_tmpfs = options.tmpfs,
          .budget_seconds = static_cast<double>(options.storage_seconds)};
}

struct Measured {
  offline::DeviceProfile profile;
  std::vector<std::string> skipped;  // points that did not fit
};

Measured Measure(const ProbeOptions& options, kvrun_engine* engine, Progress* progress) {
  Measured measured;
  offline::DeviceProfile& profile = measured.profile;
  profile.machine = Value(offline::IdentifyMachine(engine, options.folder));
  if (!options.device_only) {
    profile.storage = Value(offline::ProbeStorage(StorageOptions(options), ShowIn(progress)));
    progress->Clear();
  }
  if (engine == nullptr) return measured;
  offline::ModelIdentity model = offline::IdentifyModel(engine);
  profile.model = std::move(model.name);
  profile.model_fingerprint = std::move(model.fingerprint);
  offline::OperationProfile operations = Value(offline::ProbeOperations(engine,
                                                                        {.batches = options.batches,
                                                                         .contexts = options.contexts,
                                                                         .folder = options.folder,
                                                                         .allow_tmpfs = options.tmpfs},
                                                                        ShowIn(progress)));
  progress->Clear();
  profile.operations = std::move(operations.rows);
  measured.skipped = std::move(operations.skipped);
  return measured;
}

void Report(const ProbeOptions& options, const Measured& measured, const std::vector<std::string>& paths) {
  const offline::DeviceProfile& profile = measured.profile;
  if (options.shared.json) {
    Json object = ParseJson(offline::ProfileToJson(profile));
    object["paths"] = paths;
    object["skipped"] = measured.skipped;
    WriteStdout(JsonLine(object));
    return;
  }
  std::string text = StorageTable(profile);
  const std::string operations = OperationTable(profile);
  if (!text.empty() && !operations.empty()) text += "\n";
  WriteStdout(text + operations);
  if (options.shared.quiet) return;
  for (const std::string& path : paths) PrintMessage("wrote " + path);
}

int RunProbe(const ProbeOptions& options) {
  CheckUsage(options);
  std::optional<Model> model;
  if (!options.storage_only) model = OpenNamedModel(options.shared);
  Check(offline::CheckStorage(StorageOptions(options)));
  const std::vector<Output> outputs = OutputsOf(options);
  CheckOutputs({.results = PathsOf(outputs),
                .inputs = model ? InputFiles(*model, options.shared) : std::vector<std::string>(),
                .force = options.force});
  Progress progress(ProgressModeOf(options.shared));
  std::optional<LoadedEngine> loaded;
  if (model) loaded = LoadEngine(*model, options.shared, &progress);
  const Measured measured = Measure(options, loaded ? loaded->engine.get() : nullptr, &progress);
  if (!options.shared.quiet) {
    for (const std::string& point : measured.skipped) {
      PrintMessage("note: left out, for memory does not suffice: " + point);
    }
  }
  Write(outputs, measured.profile);
  Report(options, measured, PathsOf(outputs));
  return 0;
}

}  // namespace

Command AddProbeCommand(CLI::App* program) {
  auto options = std::make_shared<ProbeOptions>();
  options->shared.profile = true;
  auto set = std::make_shared<OptionSet>(
      program, "probe", "Measure this machine: storage by block size, operations of decoding by shape");
  set->Text("-m,--model", &options->shared.model, "FILE",
            "the model, a GGUF file (required unless --storage-only is given)");
  set->Group(HelpGroup::kOutput);
  set->Text("-o,--output", &options->output, "FILE", "the profile to write, a JSON file");
  set->Text("--plot", &options->plot, "PREFIX",
            "also draw PREFIX-storage.svg, PREFIX-modes.svg and PREFIX-operations.svg");
  AddForceOption(set.get(), &options->force);
  set->Group(HelpGroup::kWork);
  set->Text("--kv-dir", &options->folder, "FOLDER",
            "the folder on flash to measure (default: where sessions keep their KV)");
  set->Flag("--kv-tmpfs", &options->tmpfs, "allow --kv-dir to be in memory, for tests");
  set->Flag("--storage-only", &options->storage_only, "measure only storage; this needs no model");
  set->Flag("--device-only", &options->device_only, "measure only the device");
  set->Number("--storage-seconds", &options->storage_seconds, 0.1F, 3600.0F,
              "about how long measuring storage may take (default 30)");
  set->Checked("--batch", "N,N",
               "sequences decoded together (default 1); all other measurements use the first number",
               [options = options.get()](const std::string& source, const std::string& text) {
                 options->batches = ParseNumberList(source, text, 1, KVRUN_MAX_SEQUENCES, "1,2,4");
               });
  set->Checked("-c,--ctx", "N,N",
               "tokens of context (default 8192); all other measurements use the first number",
               [options = options.get()](const std::string& source, const std::string& text) {
                 options->contexts = ParseContexts(source, text);
               });
  set->AddExample("kvadapt probe -m model.gguf -o profile.json", "measure storage and device");
  set->AddExample("kvadapt probe --storage-only --kv-dir /mnt/flash",
                  "measure one folder's storage, without a model");
  AddDeviceOptions(set.get(), &options->shared);
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] { return RunProbe(*options); }};
}

}  // namespace kvrun::cli
