// Outputs of both programs: none takes the place of an input, of another output, or of a file that is not
// kvrun's.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Contains;
namespace fs = std::filesystem;

const char kPrecious[] = "precious";

// A file for each input, which the toy takes for a model too, by two names more.
class CliOutputs : public ::testing::Test {
 protected:
  CliOutputs() {
    fs::create_hard_link(model_, folder_.Path("hard"));
    fs::create_symlink(model_, folder_.Path("soft"));
    fs::create_symlink("soft", folder_.Path("softer"));
    fs::create_directory(folder_.Path("sub"));
  }

  std::vector<std::string> NamesOfModel() const {
    return {model_, folder_.Path("hard"), folder_.Path("soft"), folder_.Path("softer"),
            folder_.Path("sub/../toy")};
  }

  ProgramResult Logits(const std::vector<std::string>& more, const ProgramInput& input = {}) const {
    return Run(KVRUN_FAKE_PROGRAM, {"logits", "-m", model_}, more, input);
  }
  static ProgramResult Run(const char* program, std::vector<std::string> arguments,
                           const std::vector<std::string>& more, const ProgramInput& input = {}) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(program, arguments, input);
  }
  // Before anything was loaded, with or without --force.
  static void ExpectRefused(const ProgramResult& result, const std::string& part) {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_PRED2(Contains, result.err, part);
    EXPECT_FALSE(Contains(result.err, "loading")) << result.err;
  }

  TemporaryFolder folder_;
  std::string model_ = folder_.Write("toy", kPrecious);
  std::string ids_ = folder_.Write("ids", "1 2 3");
  std::string text_ = folder_.Write("text", std::string(2000, 'a'));
  std::string new_ = folder_.Path("new");
};

TEST_F(CliOutputs, AreNeverTheModel) {
  for (const std::string& name : NamesOfModel()) {
    for (const char* option : {"--out", "--nll"}) {
      ExpectRefused(Logits({"--ids", ids_, option, name, "--force", "--progress", "always"}),
                    name + " would replace " + model_ + ", which is read: name another file");
    }
    for (const std::vector<std::string>& more : {std::vector<std::string>{"-o", name},
                                                 {"-o", new_, "--dump-gram", name},
                                                 {"-o", new_, "--plot", name}}) {
      ExpectRefused(Run(KVADAPT_FAKE_PROGRAM, {"calibrate", "-m", model_, "-f", text_, "--force"}, more),
                    name + " would replace " + model_);
    }
    ExpectRefused(Run(KVADAPT_FAKE_PROGRAM,
                      {"tune", "-m", model_, "-f", text_, "--budget", "1/13", "--force"}, {"-o", name}),
                  name + " would replace " + model_);
    ExpectRefused(Run(KVADAPT_FAKE_PROGRAM, {"probe", "-m", model_, "--force"}, {"-o", name}),
                  name + " would replace " + model_);
    EXPECT_EQ(ReadWholeFile(model_), kPrecious);
  }
}

TEST_F(CliOutputs, AreNoOtherInput) {
  ExpectRefused(Logits({"--ids", ids_, "--out", ids_, "--force"}), ids_ + " would replace " + ids_);
  ExpectRefused(
      Logits({"--ids", ids_, "--out", text_, "--force", "--kv-method", "kvswap", "--kv-adapter", text_}),
      text_ + " would replace " + text_);
  ExpectRefused(Logits({"--ids", ids_, "--nll", text_, "--force", "--config", text_}),
                text_ + " would replace " + text_);
  const std::string adapter = folder_.Write("adapter", "adapter");
  ExpectRefused(
      Run(KVADAPT_FAKE_PROGRAM,
          {"tune", "-m", model_, "-f", text_, "--budget", "1/13", "--force", "--kv-adapter", adapter},
          {"-o", adapter}),
      adapter + " would replace " + adapter);
  EXPECT_EQ(ReadWholeFile(ids_), "1 2 3");
}

TEST_F(CliOutputs, AreNotWhatStandardInputIs) {
  const ProgramResult result = RunShell(ShellWords(KVRUN_FAKE_PROGRAM) + " logits -m " + model_ +
                                        " --ids - --out " + ids_ + " --force <" + ids_);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_PRED2(Contains, result.err, ids_ + " would replace standard input, which is read");
  EXPECT_EQ(ReadWholeFile(ids_), "1 2 3");
}

TEST_F(CliOutputs, AreTwoFiles) {
  ExpectRefused(Logits({"--ids", ids_, "--out", new_, "--nll", new_}), new_ + " would hold two results");
  fs::create_symlink(folder_.Write("there", ""), folder_.Path("link"));
  ExpectRefused(Logits({"--ids", ids_, "--out", folder_.Path("there"), "--nll", folder_.Path("link")}),
                "would hold two results");
  const std::string pipe = folder_.Path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ExpectRefused(Logits({"--ids", ids_, "--out", pipe, "--nll", pipe}), pipe + " would hold two results");
  EXPECT_FALSE(fs::exists(new_));
  EXPECT_EQ(Logits({"--ids", ids_, "--out", "/dev/null", "--nll", "/dev/null"}).exit_code, 0);
}

TEST_F(CliOutputs, AFileOfSomebodyElseNeedsForce) {
  const std::string notes = folder_.Write("notes.txt", kPrecious);
  const std::string plot = folder_.Write("drawing.svg", "<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>");
  const std::string model = folder_.Write(
      "other.gguf", std::string("GGUF\x03\0\0\0", 8) + std::string(24, '\0') + "general.architecture" +
                        std::string("\x08\0\0\0\x05\0\0\0\0\0\0\0llama", 17) + std::string(100, '\0'));
  for (const std::string& there : {notes, plot, model}) {
    const std::string before = ReadWholeFile(there);
    const std::string part = there +
                             " is there, and nothing in it says that kvrun wrote it: name another file, or "
                             "give --force to replace it";
    ExpectRefused(Logits({"--ids", ids_, "--out", there}), part);
    ExpectRefused(Logits({"--ids", ids_, "--out", new_, "--nll", there}), part);
    ExpectRefused(Run(KVADAPT_FAKE_PROGRAM, {"calibrate", "-m", model_, "-f", text_, "-o", there}, {}), part);
    ExpectRefused(Run(KVADAPT_FAKE_PROGRAM, {"calibrate", "-m", model_, "-f", text_, "-o", new_},
                      {"--dump-gram", there}),
                  part);
    ExpectRefused(
        Run(KVADAPT_FAKE_PROGRAM, {"tune", "-m", model_, "-f", text_, "--budget", "1/13", "-o", there}, {}),
        part);
    ExpectRefused(Run(KVADAPT_FAKE_PROGRAM, {"probe", "-m", model_, "-o", there}, {}), part);
    EXPECT_EQ(ReadWholeFile(there), before);
    EXPECT_FALSE(fs::exists(new_));
  }
  const std::string partial = folder_.Write("new.partial", kPrecious);
  ExpectRefused(
      Run(KVADAPT_FAKE_PROGRAM, {"calibrate", "-m", model_, "-f", text_, "-o", new_, "--restart"}, {}),
      partial + " is there");
  EXPECT_EQ(ReadWholeFile(partial), kPrecious);
  EXPECT_EQ(Logits({"--ids", ids_, "--out", notes, "--force"}).exit_code, 0);
  EXPECT_NE(ReadWholeFile(notes), kPrecious);
  EXPECT_EQ(Logits({"--ids", ids_, "--out", folder_.Write("empty", "")}).exit_code, 0);
}

// docs/formats: how they begin.
TEST_F(CliOutputs, ItsOwnResultsAreReplaced) {
  const auto gguf = [](const std::string& architecture) {
    return std::string("GGUF\x03\0\0\0", 8) + std::string(24, '\0') + "general.architecture" +
           std::string("\x08\0\0\0", 4) + static_cast<char>(architecture.size()) + std::string(7, '\0') +
           architecture + std::string(100, '\0');
  };
  const std::string adapter = folder_.Write("a.gguf", gguf("kvrun-adapter"));
  const std::string sums = folder_.Write("s.gguf", gguf("kvrun-sums"));
  const std::string plot =
      folder_.Write("p.svg", "<svg xmlns=\"http://www.w3.org/2000/svg\">\n<desc>drawn by kvrun</desc>");
  const ProgramResult calibrated = Run(KVADAPT_FAKE_PROGRAM, {"calibrate", "-m", model_, "-f", text_},
                                       {"-o", adapter, "--dump-gram", sums, "--plot", plot});
  EXPECT_EQ(calibrated.exit_code, 0) << calibrated.err;
  // What offline/ itself writes: the plot is its own, the profile too.
  EXPECT_EQ(Run(KVADAPT_FAKE_PROGRAM, {"calibrate", "-m", model_, "-f", text_},
                {"-o", folder_.Path("b.gguf"), "--plot", plot})
                .exit_code,
            0);
  const std::string profile = folder_.Path("profile.json");
  for (int i = 0; i < 2; ++i) {
    const ProgramResult probed = Run(KVADAPT_FAKE_PROGRAM, {"probe", "-m", model_, "-o", profile}, {});
    EXPECT_EQ(probed.exit_code, 0) << probed.err;
  }
  const std::string config = folder_.Write(
      "kvrun.toml", "# Options of the KV cache for one model on one machine: kvadapt tune wrote them\n");
  const ProgramResult tuned =
      Run(KVADAPT_FAKE_PROGRAM, {"tune", "-m", model_, "-f", text_, "--budget", "1/13", "-o", config}, {});
  EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
}

}  // namespace
}  // namespace kvrun
