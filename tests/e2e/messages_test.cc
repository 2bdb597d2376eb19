// What the library itself says when something is wrong, through the programs:
// tests/data/library_messages.txt.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/message_list.h"
#include "tests/support/real_program.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

TEST(LibraryMessages, AreAsListed) {
  const TemporaryFolder folder;
  const std::string model = WriteModel(folder, "model.gguf", TalkingModel().Build());
  folder.Write("empty.gguf", "");
  folder.Write("text.gguf", "hello, this is a text\n");
  folder.Write("cut.gguf", ReadWholeFile(model).substr(0, 5000));
  folder.Write("text", std::string(900, 'a'));
  folder.Write("wrong.toml", "format = 1\n");
  folder.Write("wrong.json", "{\"format\": 1}\n");
  WriteModel(folder, "window.gguf", TalkingModel().Set("llama.attention.sliding_window", 100).Build());
  const std::string kvrun = RealProgram();
  const std::string kvadapt = kvrun.substr(0, kvrun.rfind('/')) + "/kvadapt";
  EXPECT_GE(CheckMessages(std::string(KVRUN_SOURCE_DIR) + "/tests/data/library_messages.txt", folder, kvrun,
                          kvadapt),
            20U);
}

}  // namespace
}  // namespace kvrun::testing
