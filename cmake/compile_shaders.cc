// Compiles all variants of one shader in one process: the compiler's own tables take longer to make than a
// variant takes, and so does starting it.
//
//   compile_shaders SHADERS FILE.comp FOLDER DEPFILE < LIST
//
// SHADERS is the folder of shaders/variants.txt, LIST lines "NAME MACRO=VALUE...". Writes FOLDER/NAME.spv of
// each, all of them valid SPIR-V, and DEPFILE with what they include; or none, and says what is wrong.
// Nothing of kvrun is used: it runs on the machine that builds, whatever it builds for.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <shaderc/shaderc.hpp>
#include <spirv-tools/libspirv.h>

namespace {

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << message << "\n";
  std::exit(1);
}

std::string ReadFile(const std::string& path, bool* found = nullptr) {
  std::ifstream file(path, std::ios::binary);
  if (found != nullptr) *found = file.good();
  if (!file.good() && found == nullptr) Fail("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Paths are from the folder of shaders, or from its include/.
class Includer final : public shaderc::CompileOptions::IncluderInterface {
 public:
  Includer(std::string folder, std::set<std::string>* included)
      : folder_(std::move(folder)), included_(included) {}

  shaderc_include_result* GetInclude(const char* requested, shaderc_include_type, const char* requesting,
                                     size_t) override {
    auto* held = new Held;
    const std::string beside = std::string(requesting).substr(0, std::string(requesting).rfind('/'));
    for (const std::string& folder : {beside, folder_ + "/include", folder_}) {
      bool found = false;
      held->path = folder + "/" + requested;
      held->text = ReadFile(held->path, &found);
      if (found) break;
      held->path.clear();
      held->text = std::string("cannot find ") + requested;
    }
    if (!held->path.empty()) included_->insert(held->path);
    held->result = {held->path.c_str(), held->path.size(), held->text.c_str(), held->text.size(), held};
    return &held->result;
  }
  void ReleaseInclude(shaderc_include_result* result) override {
    delete static_cast<Held*>(result->user_data);
  }

 private:
  struct Held {
    std::string path;
    std::string text;
    shaderc_include_result result;
  };

  std::string folder_;
  std::set<std::string>* included_;
};

struct Variant {
  std::string name;
  std::vector<std::pair<std::string, std::string>> macros;
};

std::vector<Variant> ReadList() {
  std::vector<Variant> variants;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    Variant variant;
    if (!(words >> variant.name)) continue;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      variant.macros.emplace_back(word.substr(0, equals),
                                  equals == std::string::npos ? "" : word.substr(equals + 1));
    }
    variants.push_back(std::move(variant));
  }
  return variants;
}

void Validate(spv_context context, const std::string& name, const std::vector<uint32_t>& words) {
  spv_diagnostic diagnostic = nullptr;
  if (spvValidateBinary(context, words.data(), words.size(), &diagnostic) == SPV_SUCCESS) return;
  Fail(name + ": " + (diagnostic == nullptr ? "not valid SPIR-V" : diagnostic->error));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) Fail("usage: compile_shaders SHADERS FILE.comp FOLDER DEPFILE < LIST");
  const std::string shaders = argv[1];
  const std::string path = shaders + "/" + argv[2];
  const std::string folder = argv[3];
  const std::string source = ReadFile(path);
  std::set<std::string> included = {path};
  std::map<std::string, std::vector<uint32_t>> binaries;
  const shaderc::Compiler compiler;
  const spv_context context = spvContextCreate(SPV_ENV_VULKAN_1_1);
  for (const Variant& variant : ReadList()) {
    shaderc::CompileOptions options;
    options.SetTargetEnvironment(shaderc_target_env_vulkan, shaderc_env_version_vulkan_1_1);
    options.SetOptimizationLevel(shaderc_optimization_level_performance);
    options.SetWarningsAsErrors();
    options.SetIncluder(std::make_unique<Includer>(shaders, &included));
    for (const auto& [name, value] : variant.macros) options.AddMacroDefinition(name, value);
    const shaderc::SpvCompilationResult result =
        compiler.CompileGlslToSpv(source, shaderc_compute_shader, path.c_str(), options);
    if (result.GetCompilationStatus() != shaderc_compilation_status_success)
      Fail(variant.name + ": " + result.GetErrorMessage());
    std::vector<uint32_t>& words = binaries[variant.name];
    words.assign(result.cbegin(), result.cend());
    Validate(context, variant.name, words);
  }
  spvContextDestroy(context);
  std::ofstream dependencies(argv[4]);
  for (const auto& [name, words] : binaries) {
    const std::string spv = folder + "/" + name + ".spv";
    std::ofstream file(spv, std::ios::binary);
    file.write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(words.size() * sizeof(uint32_t)));
    if (!file.flush()) Fail("cannot write " + spv);
    dependencies << spv << " ";
  }
  dependencies << ":";
  for (const std::string& file : included) dependencies << " \\\n  " << file;
  dependencies << "\n";
  return dependencies.flush() ? 0 : 1;
}
