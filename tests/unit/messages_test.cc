// What the programs say when something is wrong, all in one list: tests/data/messages.txt. The library is the
// toy one.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/message_list.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

TEST(Messages, OfThePrograms) {
  const TemporaryFolder folder;
  folder.Write("text", "hello\n");
  folder.Write("empty", "");
  folder.Write("ids", "104 101\n");
  folder.Write("word", "104 one\n");
  folder.Write("far", "104 70000\n");
  folder.Write("long", std::string(5000, 'a'));
  folder.Write("bytes", std::string("a\0b", 3));
  folder.Write("good.jsonl", "{\"prompt\": \"x\"}\n");
  folder.Write("bad.jsonl", "{\"prompt\": \"x\"}\n{\"prompt\": 1}\n");
  folder.Write("no.jsonl", "{\"prompt\": \"x\"\n");
  folder.Write("list.jsonl", "[1]\n");
  const size_t n_commands = testing::CheckMessages(std::string(KVRUN_SOURCE_DIR) + "/tests/data/messages.txt",
                                                   folder, KVRUN_FAKE_PROGRAM, KVADAPT_FAKE_PROGRAM);
  EXPECT_GE(n_commands, 60U);
}

}  // namespace
}  // namespace kvrun
