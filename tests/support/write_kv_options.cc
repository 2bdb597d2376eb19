// Writes kvrun_kv_options_json into a file: the toy library that programs are tested with has the options of
// the real one.
#include <kvrun/kvrun.h>

#include <cstdio>
#include <fstream>

int main(int argc, char** argv) {
  char* json = nullptr;
  if (argc != 2 || kvrun_kv_options_json(&json) != KVRUN_OK) {
    std::fputs("usage: write_kv_options FILE\n", stderr);
    return 1;
  }
  std::ofstream file(argv[1]);
  file << json << "\n";
  kvrun_string_free(json);
  return file.flush() ? 0 : 1;
}
