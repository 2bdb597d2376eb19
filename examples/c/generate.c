/* Continues a text: generate MODEL.gguf "Once upon a time" */
#include <kvrun/kvrun.h>
#include <stdio.h>
#include <string.h>

static int print(void* user, uint32_t sequence, int32_t token, const char* text, size_t text_bytes) {
  return fwrite(text, 1, text_bytes, stdout) != text_bytes || fflush(stdout) != 0; /* nonzero: stop */
}

int main(int argc, char** argv) {
  kvrun_model* model = NULL;
  kvrun_engine* engine = NULL;
  kvrun_session* session = NULL;
  kvrun_engine_options on;
  kvrun_session_options with;
  kvrun_generate_options how;
  int32_t ids[4096];
  size_t count = 4096;
  const uint32_t first = 0;
  if (argc != 3 || strlen(argv[2]) + 8 > count) return fprintf(stderr, "usage: generate MODEL TEXT\n"), 2;
  kvrun_engine_options_init(&on), kvrun_session_options_init(&with), kvrun_generate_options_init(&how);
  how.max_tokens = 64;
  const int failed =
      kvrun_model_open(argv[1], &model) || kvrun_engine_create(model, &on, &engine) ||
      kvrun_session_create(engine, &with, &session) ||
      kvrun_tokenize(model, argv[2], strlen(argv[2]), KVRUN_ENCODE_BOS_IF_ASKED, ids, &count) ||
      kvrun_session_feed(session, 0, ids, count) ||
      kvrun_session_generate(session, &first, 1, &how, print, NULL, NULL);
  if (failed) fprintf(stderr, "kvrun: %s\n", kvrun_last_error());
  return kvrun_session_destroy(session), kvrun_engine_destroy(engine), kvrun_model_close(model), failed;
}
