/* The C API of kvrun, which runs language models with long contexts on small devices.
 *
 * Objects
 *   kvrun_model: an open GGUF file: shapes, tokenizer, chat form. It needs no device. It is immutable, so any
 *   thread may use it at any time.
 *   kvrun_engine: a model's weights on a device. Calls from several threads are serialised inside.
 *   kvrun_session: 1..16 independent sequences and their KV cache on an engine. One thread at a time may use
 *   a session; different sessions of one engine may be used from different threads. A callback must not use
 *   the session that it is called for.
 *   kvrun_reasoning: tells what a model thinks from what it answers, in one answer. One thread at a time may
 *   use it.
 * An object must outlive those made from it: model > engine > session, and model > reasoning.
 *
 * Errors
 *   Functions return a kvrun_status. After any other than KVRUN_OK, kvrun_last_error() returns one message
 *   for the user: what failed, on what, why, and what to do. The message belongs to the calling thread and is
 *   valid until that thread's next call.
 *
 * Structs
 *   Every options struct begins with struct_size, so that later versions can add fields at the end. Set it to
 *   the struct's sizeof; the *_init functions do that and fill in the defaults.
 *
 * Strings are UTF-8. Free a returned text (such as JSON) with kvrun_string_free. Functions that free, close
 * or destroy accept null.
 */
#ifndef KVRUN_KVRUN_H_
#define KVRUN_KVRUN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVRUN_VERSION_MAJOR 0
#define KVRUN_VERSION_MINOR 1
#define KVRUN_VERSION_PATCH 0

#define KVRUN_MAX_SEQUENCES 16
#define KVRUN_MAX_THREADS 1024

#if defined(__GNUC__)
#define KVRUN_API __attribute__((visibility("default")))
#else
#define KVRUN_API
#endif

typedef enum kvrun_status {
  KVRUN_OK = 0,
  KVRUN_INVALID_ARGUMENT = 1,
  KVRUN_NOT_FOUND = 2,
  KVRUN_CORRUPT = 3,
  KVRUN_UNSUPPORTED = 4,
  KVRUN_OUT_OF_MEMORY = 5,
  KVRUN_CONTEXT_FULL = 6,
  KVRUN_IO_ERROR = 7,
  KVRUN_DEVICE_ERROR = 8,
  KVRUN_CANCELLED = 9,
  KVRUN_INTERNAL_ERROR = 10
} kvrun_status;

typedef struct kvrun_model kvrun_model;
typedef struct kvrun_engine kvrun_engine;
typedef struct kvrun_session kvrun_session;
typedef struct kvrun_reasoning kvrun_reasoning;

/* The library's version and the shader compiler that it was built with: "0.1.0 (glslc ...)".
 * Valid until the program ends. */
KVRUN_API const char* kvrun_version(void);
KVRUN_API const char* kvrun_last_error(void);
/* The short name of a status, such as "corrupt". */
KVRUN_API const char* kvrun_status_name(kvrun_status status);
KVRUN_API void kvrun_string_free(char* text);

/* Tells what a long call is doing. done and total count bytes while loading and of sessions, tokens while
 * prefilling and tests while self-testing. Return nonzero to cancel. Called on the calling thread. */
typedef enum kvrun_phase {
  KVRUN_PHASE_LOAD = 0,
  KVRUN_PHASE_PREFILL = 1,
  KVRUN_PHASE_SELF_TEST = 2,
  KVRUN_PHASE_EVALUATE = 3,
  KVRUN_PHASE_CALIBRATE = 4,
  KVRUN_PHASE_OPEN_SESSION = 5,
  KVRUN_PHASE_SAVE_SESSION = 6
} kvrun_phase;
typedef int (*kvrun_progress_fn)(void* user, kvrun_phase phase, uint64_t done, uint64_t total);

/* ---- Devices --------------------------------------------------------------------------------------- */

/* JSON array, one object per device: index, name, kind ("gpu", "integrated", "virtual", "cpu"), api_version
 * (of Vulkan; empty for a device that does not use it), driver, memory_bytes (the largest heap, or the
 * machine's memory), usable, reason (why it is not usable). Vulkan's devices come first and the CPU itself
 * comes last. After the devices there is an object for each Vulkan driver that kvrun leaves out because it
 * crashed or hung: kind is "driver", index is null, name is the driver's manifest; reason says what happened
 * and how to try the driver again.
 *
 * kvrun tries a driver before its first use. While this process has one thread, the trial runs in a copy of
 * it (fork), where a crash or a hang does no harm; otherwise it runs in this process. A note in the user's
 * cache folder ($XDG_CACHE_HOME/kvrun/drivers, ~/.cache/kvrun/drivers) says that the trial is in progress. If
 * this process ends during the trial, later processes leave the driver out. */
KVRUN_API kvrun_status kvrun_devices_json(char** json);

/* Call this where the user's signals end the program, so that no driver is blamed for it. It removes the
 * notes of the trials that are in progress, and ends the trials that run in copies of this process: the call
 * that waits for one returns KVRUN_CANCELLED. The note of a driver that has exceeded its time (20 seconds for
 * a list of devices) stays. May be called in a signal handler. kvrun itself installs no handler. */
KVRUN_API void kvrun_interrupt_trials(void);

/* Makes the next call that looks for devices try the drivers that were left out once more.
 * KVRUN_RETRY_DRIVERS=1 in the environment does the same for a whole process. */
KVRUN_API kvrun_status kvrun_retry_drivers(void);

/* Runs every self-test on the device that `device` names as in kvrun_engine_options. NULL or "" means all
 * devices; a pair of devices is KVRUN_UNSUPPORTED. The CPU's tests run with each instruction set that the
 * processor has; meanwhile this process's engines on the CPU compute with that instruction set too. JSON
 * object: passed (bool), devices: [{name, driver, limits, plan, tests: [{name, passed, detail}], n_left_out
 * (0)}]. KVRUN_OK means that the tests could be run, whatever they found. */
KVRUN_API kvrun_status kvrun_doctor_json(const char* device, kvrun_progress_fn progress, void* user,
                                         char** json);

/* The same within max_ms milliseconds, of which each device has an equal part; 0: every self-test. A test
 * that has begun ends. The first tests are one of each operation; n_left_out tells how many there was no time
 * for. */
KVRUN_API kvrun_status kvrun_doctor_within_json(const char* device, uint32_t max_ms,
                                                kvrun_progress_fn progress, void* user, char** json);

/* ---- Model ----------------------------------------------------------------------------------------- */

/* `path` names a GGUF file, or any part of a model that is split into several files
 * (NAME-00001-of-00003.gguf); the other parts must be in the same folder. The file stays open, and engines
 * are loaded from it. It must not be truncated or written to until kvrun_engine_create has returned:
 * otherwise that call returns KVRUN_CORRUPT. After that nothing reads the file again. */
KVRUN_API kvrun_status kvrun_model_open(const char* path, kvrun_model** model);
/* The same, also for files that no engine can compute: a vocabulary without weights, an architecture or
 * tensor types that kvrun does not know. Their vocabulary can be used, and kvrun_model_info_json shows what
 * they say; engines, plans and configs for them are KVRUN_UNSUPPORTED (KVRUN_NOT_FOUND where the file lacks a
 * key). A damaged file is refused as by kvrun_model_open. */
KVRUN_API kvrun_status kvrun_model_open_any(const char* path, kvrun_model** model);
KVRUN_API void kvrun_model_close(kvrun_model* model);

/* JSON object: architecture, name, file_bytes, files [path], gguf_version, n_layers, layers
 * {"attention", "windowed attention", "delta net", "short convolution": of each kind that there is {count,
 * and of one layer kv_bytes_per_token (f16) or state_bytes (of a sequence, whatever its length)}}, n_embd,
 * n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx_train (at most the sliding window), sliding_window
 * (null: none; of a model without windowed layers kvrun attends to the whole context all the same), rope,
 * tokenizer, vocabulary (null: none; {tokens, merges, control, user_defined, byte: how many there are of each
 * (merges: null if none), bos, eos: ids or null, adds_bos, ends [the ids that end generation], unusable
 * (null; or why kvrun cannot use it, and then the four before are null)}), chat_form (the known form that the
 * file's chat template is, "template" if it is another, null if there is none that works), chat_note (null;
 * or why a known form stands in for the template, or there is none), sampling {temperature, top_k (0: off),
 * top_p, min_p: what the file advises, null for each that it does not; ignored
 * [..], if there is any: advice that cannot be used, and why}, tensor_types {type: count} (empty: the file is
 * a vocabulary alone), parameters, kv_bytes_per_token (f16), kv_bytes (f16, at `context` tokens; 0 =
 * n_ctx_train), state_bytes (of all layers), context, unsupported (null; of a file that no engine can
 * compute, why not: then what it does not say is null, as are layers, rope, kv_bytes, kv_bytes_per_token and
 * state_bytes, and nothing is checked). */
KVRUN_API kvrun_status kvrun_model_info_json(const kvrun_model* model, uint32_t context, char** json);

KVRUN_API uint32_t kvrun_model_vocab_size(const kvrun_model* model);
/* The context that the model was trained with, in tokens; at most its sliding window, if it has one. */
KVRUN_API uint32_t kvrun_model_context_train(const kvrun_model* model);
/* 1 if the model's file asks for a begin-of-sequence token before a text, otherwise 0. */
KVRUN_API int kvrun_model_adds_bos(const kvrun_model* model);
KVRUN_API int kvrun_model_is_end_of_generation(const kvrun_model* model, int32_t token);

#define KVRUN_ENCODE_ADD_BOS 1u /* the begin-of-sequence token first, if the model has one */
#define KVRUN_ENCODE_PARSE_SPECIAL                                                                           \
  2u                                 /* recognises control tokens that are written in the text; without this \
                                        flag a text never becomes a control or end-of-generation token */
#define KVRUN_ENCODE_BOS_IF_ASKED 4u /* the begin-of-sequence token first, if the file asks for it */

/* Encodes text_bytes bytes of text. On entry *count is how many ids fit into `ids`; on return it is how many
 * the text has. If they do not fit, nothing is written, and the call still returns KVRUN_OK: compare *count.
 */
KVRUN_API kvrun_status kvrun_tokenize(const kvrun_model* model, const char* text, size_t text_bytes,
                                      uint32_t flags, int32_t* ids, size_t* count);

/* Counts the bytes of a text that kvrun_tokenize with these flags loses because the vocabulary has no token
 * for them: they are left out, or an unknown token stands for them. With most vocabularies this is 0, and the
 * call returns at once. */
KVRUN_API kvrun_status kvrun_count_lost_bytes(const kvrun_model* model, const char* text, size_t text_bytes,
                                              uint32_t flags, uint64_t* lost_bytes);

/* Writes the text of `ids`, without a terminating zero. *bytes is used like *count of kvrun_tokenize. */
KVRUN_API kvrun_status kvrun_detokenize(const kvrun_model* model, const int32_t* ids, size_t count,
                                        char* text, size_t* bytes);

typedef struct kvrun_chat_message {
  const char* role; /* "system", "user" or "assistant" */
  const char* content;
} kvrun_chat_message;

/* Whether the model thinks before it answers. Only some chat templates have a switch for that (such as
 * Qwen3's); with the others, ON and OFF are KVRUN_UNSUPPORTED. */
typedef enum kvrun_thinking {
  KVRUN_THINKING_DEFAULT = 0, /* what the model's chat template does by default */
  KVRUN_THINKING_ON = 1,
  KVRUN_THINKING_OFF = 2
} kvrun_thinking;

typedef struct kvrun_chat_options {
  uint32_t struct_size;
  uint32_t continued;     /* nonzero: the messages follow an answer of the assistant that the session holds
                             already, without the end of its turn (even if the model generated that end): the
                             ids begin with it */
  uint32_t parse_special; /* nonzero: control tokens written in messages are obeyed. Use it only with
                             messages that you trust */
  kvrun_thinking thinking;
  const char* chat_template; /* replaces the file's: a name from kvrun_chat_template_names, or the text of a
                                Jinja template; NULL: the file's */
  const char* variables;     /* a JSON object of what the template reads besides: tools, documents,
                                enable_thinking, reasoning_effort, or any other; texts in it are messages'.
                                "messages" in it is the conversation, in place of the call's (whose count is
                                0): objects with role, content, and what else the template reads of one, such as
                                tool_calls; what the model thought before an answer is reasoning_content,
                                whatever its template calls that. NULL: none */
} kvrun_chat_options;

KVRUN_API void kvrun_chat_options_init(kvrun_chat_options* options);
KVRUN_API const char* const* kvrun_chat_template_names(void); /* a list that ends in NULL */

/* Encodes messages by the model's chat template, which kvrun runs (Jinja2, as models use it). The ids end
 * where the assistant's answer begins. They start with a begin-of-sequence token if the file asks for one
 * (not if continued). ids and *id_count are used like those of kvrun_tokenize; options NULL means the
 * defaults. Only the template yields control tokens. A message is text, even where it spells a control token,
 * an end-of-generation token or another token that the template uses. Marks of a template that are not tokens
 * of the vocabulary, such as Llama 2's "[INST]", are text wherever they stand. KVRUN_INVALID_ARGUMENT: what
 * the template says of messages that it does not take; KVRUN_UNSUPPORTED: there is no template that works. */
KVRUN_API kvrun_status kvrun_chat_encode(const kvrun_model* model, const kvrun_chat_message* messages,
                                         size_t count, const kvrun_chat_options* options, int32_t* ids,
                                         size_t* id_count);

/* Writes messages by the model's own chat template as a text, for people to read: that of
 * kvrun_chat_encode's ids, without a begin-of-sequence token that the file asks for. To encode messages, use
 * kvrun_chat_encode: encoding this text with KVRUN_ENCODE_PARSE_SPECIAL would obey control tokens that are
 * written in the messages. */
KVRUN_API kvrun_status kvrun_chat_format(const kvrun_model* model, const kvrun_chat_message* messages,
                                         size_t count, int continued, char** text);

/* Runs any Jinja chat template with these variables (a JSON object: messages, add_generation_prompt,
 * bos_token, ...), as Python's Jinja2 would in a sandbox; no model is needed. now_s: what strftime_now tells,
 * in seconds since 1970; 0: the time of the call. KVRUN_INVALID_ARGUMENT: what the template says, or cannot
 * do, or a limit of steps, depth or bytes that it met. */
KVRUN_API kvrun_status kvrun_template_render(const char* chat_template, const char* variables, int64_t now_s,
                                             char** text);

/* ---- Reasoning: what a model thinks before it answers ----------------------------------------------- */

/* Receives a part of an answer: what the model thinks (is_reasoning 1), or the answer itself (0). text has at
 * least one byte, whole UTF-8 characters where it was given such, and is valid during the call. */
typedef void (*kvrun_reasoning_fn)(void* user, int is_reasoning, const char* text, size_t text_bytes);

/* Begins to tell apart what comes after the prompt ids [count], whose end may have opened thoughts already.
 * Thoughts begin an answer, between marks of the model's chat form: <think>, [THINK], <|channel>thought, the
 * channel "analysis" of gpt-oss, and others. Of a model that does not think, all is answer.
 * KVRUN_NOT_FOUND, KVRUN_UNSUPPORTED: the model has no vocabulary, or one that kvrun cannot use. */
KVRUN_API kvrun_status kvrun_reasoning_begin(const kvrun_model* model, const int32_t* ids, size_t count,
                                             kvrun_reasoning** reasoning);
/* Takes token and text as a kvrun_token_fn is given them (token < 0: text alone), and hands on what is known
 * now, in order: nothing while it may be a mark, and both kinds where thoughts end inside of the text. Marks
 * are left out, and so is white space beside them. Thoughts of several messages have an empty line between
 * them, and so have answers. */
KVRUN_API kvrun_status kvrun_reasoning_next(kvrun_reasoning* reasoning, int32_t token, const char* text,
                                            size_t text_bytes, kvrun_reasoning_fn part, void* user);
/* The answer has ended: hands on what was held back. Thoughts that did not end are thoughts. */
KVRUN_API kvrun_status kvrun_reasoning_end(kvrun_reasoning* reasoning, kvrun_reasoning_fn part, void* user);
KVRUN_API void kvrun_reasoning_close(kvrun_reasoning* reasoning);

/* ---- Engine ---------------------------------------------------------------------------------------- */

typedef struct kvrun_engine_options {
  uint32_t struct_size;
  uint32_t validation; /* nonzero: enable the Vulkan validation layer, if it is installed */
  /* "auto" (or NULL): Vulkan's best device or the CPU itself, whichever computes this model faster. kvrun
   * measures this at first use and keeps it in the user's cache folder; a note of kvrun_engine_info_json says
   * it. "gpu": the best GPU. "vulkan": the best GPU, or a Vulkan driver for the CPU if there is no GPU. "cpu"
   * or "host": the CPU itself. Otherwise a part of a device's name, or an index from kvrun_devices_json.
   * "A+host", where A names a Vulkan device in one of these ways: A computes prompts and the CPU itself
   * decodes, in one memory that both see; the weights are held twice. */
  const char* device;
  kvrun_progress_fn progress; /* may be NULL */
  void* progress_user;
  uint32_t profile; /* nonzero: time each operation on the device (see kvrun_session_stats_json) */
  /* These two are for the CPU itself; other devices ignore them. */
  uint32_t exact_activations; /* nonzero: products do not round to 8 bits, nor attention to 16: slower */
  uint32_t n_threads;         /* at most KVRUN_MAX_THREADS; 0: one for each fast core, within the CPU quota */
  /* For "auto". Nonzero: measure the devices again even if their speed is known. kvrun does so by itself
   * after an engine saw its device compute 1.6 times as fast or as slow as measured. */
  uint32_t remeasure;
  /* For measurements, and for the CPU itself: compute with this instruction set though the processor has a
   * better one. "sse4", "avx2", "avx2-vnni", "avx512", "amx"; "neon", "neon-dot", "neon-i8mm". It holds for
   * the whole process, until another engine names another. NULL or "": as it is, at first the best. */
  const char* instruction_set;
} kvrun_engine_options;

KVRUN_API void kvrun_engine_options_init(kvrun_engine_options* options);
KVRUN_API kvrun_status kvrun_engine_create(const kvrun_model* model, const kvrun_engine_options* options,
                                           kvrun_engine** engine);
KVRUN_API void kvrun_engine_destroy(kvrun_engine* engine);
/* JSON object: device, kind, driver, is_cpu, plan, notes [..], details [..] (notes for experts, such as a
 * choice by times that were measured at an earlier start). */
KVRUN_API kvrun_status kvrun_engine_info_json(const kvrun_engine* engine, char** json);

/* ---- Session --------------------------------------------------------------------------------------- */

typedef enum kvrun_kv_type { KVRUN_KV_F16 = 0, KVRUN_KV_F32 = 1 } kvrun_kv_type;

/* An option of the KV cache, by name. If two have the same name, the later one counts. Those that most
 * sessions need:
 *
 *   budget   memory for all that grows with the context: bytes ("14155776"), bytes with a unit of 1024s
 *            ("13.5M", "13.5MiB"; K, M, G), or a share of the f16 KV of the whole context ("1/13", "8%").
 *            Bytes are never exceeded: too few are KVRUN_OUT_OF_MEMORY. A share that is too small for a
 *            method, given or chosen, is raised to the least that works, which a note says
 *   method   "full": all KV is in memory. "kvswap": all KV is on flash, and each token reads what it is
 *            predicted to attend to. "dynakv": the same, in clusters of entries whose keys are alike. The
 *            default is "full" if there is no budget or the budget holds all KV of the context (which a note
 *            says), otherwise "kvswap". docs/methods/README.md has the others
 *   adapter  a file from `kvadapt calibrate`; without one adapters are computed from the first prompt
 *   dir      a folder on flash; by default the first usable one of $XDG_CACHE_HOME/kvrun/kv,
 *            ~/.cache/kvrun/kv and /var/tmp/kvrun-UID/kv. The file in it has no name and is gone with the
 *            session
 *   type     "f32", "f16", "fp8", "int8", "int4": of K and V both, or one each ("fp8,int4")
 *   select   how many entries (one token's K and V in one layer) a token reads
 *
 * docs/options.md lists all of them, and so does kvrun_kv_options_json. Options that you do not give are
 * chosen from the budget. Those that you give and that exceed a budget of bytes are an error. */
typedef struct kvrun_option {
  const char* name;
  const char* value;
} kvrun_option;

/* Fills in the 32 bytes of the key that a session is encrypted with, and answers 0; anything else: there is
 * none, and the session is not made. For keys that lie in no file: of Android's key store, wrap 32 random
 * bytes with a key of the store, keep what comes of it, and unwrap it here. The library wipes its copies. Not
 * called after kvrun_session_create has returned. */
typedef int (*kvrun_session_key_fn)(void* user, uint8_t* key);

typedef struct kvrun_session_options {
  uint32_t struct_size;
  uint32_t n_sequences;       /* 1..KVRUN_MAX_SEQUENCES */
  uint32_t n_ctx;             /* tokens per sequence; 0: what the model was trained with, at most 8192 */
  kvrun_kv_type kv_type;      /* F16: unless the method chooses another; the option "type" overrides this */
  kvrun_progress_fn progress; /* of prefill; may be NULL */
  void* progress_user;
  const kvrun_option* kv_options; /* [n_kv_options]; read during the call only */
  size_t n_kv_options;
  /* Where the session is kept (see kvrun_session_save): a name, such as "thesis", of the user's folder for
   * sessions ($XDG_STATE_HOME/kvrun/sessions, else $HOME/.local/state/kvrun/sessions), or a path, which has a
   * '/' in it. NULL or empty: it ends with kvrun_session_destroy. Read during the call only. */
  const char* session;
  /* What of the session lies on flash is encrypted with this key: of a file of 32 bytes, or 64 hex digits,
   * that its user alone may read; or "auto", the user's own ($XDG_CONFIG_HOME/kvrun/session.key, else
   * $HOME/.config/kvrun/session.key), which is made where it is missing. NULL or empty: it is not encrypted.
   * A session that is there has to be under the same key. Read during the call only. */
  const char* session_key_path;
  kvrun_session_key_fn session_key; /* in place of a file; may be NULL */
  void* session_key_user;
  /* How many tokens an answer has at most, for the option "write-limit"; 0: 256. */
  uint32_t answer_tokens;
  /* With `session`. Nonzero: the session that is there is only read. What follows goes to nameless files and
   * ends with kvrun_session_destroy, and kvrun_session_save is KVRUN_INVALID_ARGUMENT. Any number of sessions
   * and processes may read one at once, and none of them saves to it meanwhile; its files and their folder
   * need not be writable. KVRUN_NOT_FOUND if there is no session. */
  uint32_t session_read_only;
  /* Of a session that is kept, in bytes of what memory has of it: while kvrun_session_create opens one that
   * is there (KVRUN_PHASE_OPEN_SESSION) and while kvrun_session_save saves it (KVRUN_PHASE_SAVE_SESSION),
   * about a hundred times each; at the end done is total. What is cancelled is KVRUN_CANCELLED, and the
   * session is as it was when it was saved last. It must not use the engine. May be NULL. */
  kvrun_progress_fn session_progress;
  void* session_progress_user;
} kvrun_session_options;

KVRUN_API void kvrun_session_options_init(kvrun_session_options* options);

/* KVRUN_OK if there is such an option and it can have this value; otherwise the message says what is
 * possible. */
KVRUN_API kvrun_status kvrun_kv_option_check(const char* name, const char* value);
/* Every option, in the order of docs/options.md. JSON array of {name, value (what its value is called, as
 * "N"; empty: "on" or "off"), audience: "everybody", "experts", or "comparisons" (what only serves to compare
 * methods with each other), config (whether configs of `kvadapt tune` have it), help (a line of text), least
 * and most (where it takes whole numbers), words (where it takes one of a few), comparisons (of those: such
 * as only serve to compare)}. */
KVRUN_API kvrun_status kvrun_kv_options_json(char** json);
/* The words that this option takes, such as "full" of "method". JSON array of strings; empty where the value
 * is a number, bytes or a path, and where there is no such option. */
KVRUN_API kvrun_status kvrun_kv_option_choices_json(const char* name, char** json);

/* Tells how a session with these options would spend its budget, before anything is loaded; of one that is
 * kept (`session`), how a new one would, with its key if there is one. If the session is impossible, the
 * answer is KVRUN_OUT_OF_MEMORY or KVRUN_INVALID_ARGUMENT, and the message says what is possible. JSON
 * object: line (a summary for people), method, on_flash (whether that method keeps KV there), full_bytes
 * (f16 KV of the whole context, all sequences), budget_bytes (null: none; for a share that was raised, what
 * it was raised to), prefill_bytes and decode_bytes (in memory, of the budget), parts [{name, bytes,
 * prefill, decode: whether it exists in this phase}, the largest first], states (null: all layers keep
 * growing KV; else an object, of what the others keep: bytes (of all sequences, with copies), copies (of a
 * sequence, which a cut goes back to), tokens_per_copy (of a text that fills the context)); in the units of
 * the options: group, select, layer_select (of each layer, select being their mean; null: all layers select
 * as many), hide's reading (null: how much is selected does not follow it; else an object: hide,
 * reads_per_layer (expected of a token), read_us (they take) and layer_us (a layer's computing; both null:
 * not known), limited_by: "time" or "budget"), reads (0: all that is selected is read), adapt, sample, seed,
 * mass (null: not asked for), window, sinks, reuse, rank (0: no index), index, heads, policy, clusters
 * (null: the method has none; else an object: cluster, cluster_max, cluster_room, pending, upkeep, split,
 * update, layout, representatives), kept (null: the method does not evict; else an object: entries (of a
 * list, on average; select is the same), most_entries (of any list, however they share), shares, precisions
 * and moments (null: the method has no such choice), observed_rows (how many of a prompt's rows say what
 * stays, at most)), static (null: there is no static set; else an object: entries (of a list), share,
 * by_prompt, steps, repage, observed_rows, precisions and moments (null: the method has no such choice)),
 * k_type, v_type, rotate, adapter_kind (null if there is none); folder (where KV lies; null: in memory);
 * notes [..] (one if the context is longer than what the model was trained with) and details [..] (for
 * experts). A file of adapters is read to check that it suits; the folder for KV is not created. If no group
 * is given, the one that kvswap takes depends on the storage under that folder. Its speed is measured at
 * first use (0.1 to 0.4 seconds on flash) and kept in the user's cache folder; `details` say if the group is
 * not 4. With `session`, of one that is begun there: nothing of it is made but the user's folder for
 * sessions, and the user's own key where that is named. */
KVRUN_API kvrun_status kvrun_kv_plan_json(const kvrun_model* model, const kvrun_session_options* options,
                                          char** json);

typedef struct kvrun_config_options {
  uint32_t struct_size;
  uint32_t n_sequences; /* as the session's */
  uint32_t n_ctx;       /* as the session's */
  uint32_t force;       /* nonzero: what would be refused becomes a note */
  const char* kv_dir;   /* as the option "dir"; NULL: its default */
} kvrun_config_options;

KVRUN_API void kvrun_config_options_init(kvrun_config_options* options);

/* Reads a config, which `kvadapt tune` writes (docs/config.md), and takes its options for a session of
 * n_sequences and n_ctx. KVRUN_UNSUPPORTED if the config is for another model, or for another device than
 * `engine`'s. With engine NULL, as before loading, the device is not compared. JSON object: kv_options
 * [{name, value}]: give them to kvrun_session_create as kvrun_option, followed by your own, which then count;
 * exact (bool: the config has a solution for these n_sequences and n_ctx; otherwise the nearest was taken),
 * solution {batch, ctx, budget_bytes, predicted_ms, measured_ms, kl, bound: null for what the config does not
 * say}, notes [..] (what differs from where it was tuned, and which solution was taken if not an exact one).
 *
 *   kvrun_config_json("kvrun.toml", model, NULL, &options, &json)      before loading: what will be taken
 *   kvrun_engine_create(model, &engine_options, &engine)
 *   kvrun_config_json("kvrun.toml", model, engine, &options, &json)    refused where the device is another
 *   session_options.kv_options = .., session_options.n_kv_options = ..
 *   kvrun_session_create(engine, &session_options, &session)           with the same n_sequences and n_ctx */
KVRUN_API kvrun_status kvrun_config_json(const char* path, const kvrun_model* model,
                                         const kvrun_engine* engine, const kvrun_config_options* options,
                                         char** json);

/* With `session` in the options, goes on with the session that is kept there, or begins one. Of one that is
 * there, n_sequences has to be the same; n_ctx is the least context; KV options that are not given are as
 * they were, and those that are given may change the budget and what is selected, but not what is kept
 * (KVRUN_INVALID_ARGUMENT says what differs). What cannot be gone on with is begun anew, and a note of
 * kvrun_session_stats_json says why: files of another model or another version of kvrun are left as they are,
 * and the session is not kept then; damaged ones are replaced. KVRUN_INVALID_ARGUMENT if another process has
 * the session, or if what is there is not a regular file of this user. */
KVRUN_API kvrun_status kvrun_session_create(kvrun_engine* engine, const kvrun_session_options* options,
                                            kvrun_session** session);
/* What was computed since the last kvrun_session_save is not kept. */
KVRUN_API void kvrun_session_destroy(kvrun_session* session);
/* A save point of a session that is kept: whatever happens afterwards to the process or the machine, the
 * session goes on from here, or from a later save point. Writes what has changed since the last one, beside
 * the KV itself, which a method that keeps it on flash has written already. For apps that may be killed at
 * any moment: after a prompt was fed, and now and then while tokens are generated (between two calls of
 * kvrun_session_generate). After an error the last save point counts, and the session can be used and saved
 * again. KVRUN_INVALID_ARGUMENT if the session is not kept. Not to be called in a callback of the session. */
KVRUN_API kvrun_status kvrun_session_save(kvrun_session* session);
/* Nonzero: kvrun_session_save keeps it. */
KVRUN_API int kvrun_session_is_kept(const kvrun_session* session);
/* Copies the first `room` tokens of a sequence to ids, and answers how many it has; one that was generated
 * last and is not computed yet is among them. So a text that begins like one that was read need not be read
 * again:
 *
 *   n = kvrun_session_tokens(session, 0, held, room);   how much of it begins like `ids`?
 *   kvrun_session_truncate(session, 0, common);         less than n_ids, so that something is left to be fed
 *   kvrun_session_feed(session, 0, ids + common, n_ids - common); */
KVRUN_API size_t kvrun_session_tokens(const kvrun_session* session, uint32_t sequence, int32_t* ids,
                                      size_t room);
/* A few bytes of the caller's that are kept with the session, from the next kvrun_session_save on: what a
 * chat needs to go on, for instance. At most 64 MiB; they replace those that were there. */
KVRUN_API kvrun_status kvrun_session_set_note(kvrun_session* session, const char* note, size_t size);
/* A zero byte follows it; to be freed with kvrun_string_free. Empty where there is none. size: of the note,
 * where it may have zeros in it; may be NULL. */
KVRUN_API kvrun_status kvrun_session_note(const kvrun_session* session, char** note, size_t* size);
/* Those that are kept in a folder (NULL: the user's folder for sessions), the last used first. JSON array of
 * objects: name, path, model (its name), fingerprint, method, tokens [of each sequence], context, words (the
 * text's first ones), bytes (on the disk), used (seconds since 1970), written (bytes that were ever written
 * to flash for it, up to its last save; a copy goes on from what it is a copy of), written_days [{date (of
 * UTC, "2026-11-30"), bytes}: the last 30 on which something was written], options {as they were given}, form
 * {what is kept, in words}, encrypted, trouble (null; or why it cannot be opened). What is encrypted is read
 * with the user's own key (session_key_path "auto"), where there is one. Of one that has another key, or that
 * cannot be opened, name, path, bytes, used, encrypted and trouble are known, and the rest is null. */
KVRUN_API kvrun_status kvrun_sessions_json(const char* folder, char** json);
/* What all processes of this user have written to flash with this library: for sessions that are kept, those
 * that were removed included, and for those that are not. JSON object: path (of the file that says so, in the
 * user's folder for sessions; null: there is no such folder, and nothing is counted), written (bytes),
 * written_today, days [{date, bytes}] as written_days of kvrun_sessions_json. Processes that were killed may
 * have written up to 64 MiB each, or a save, that is not there. */
KVRUN_API kvrun_status kvrun_written_json(char** json);
/* One of them, by its name or path. */
KVRUN_API kvrun_status kvrun_sessions_info_json(const char* session, char** json);
/* The same of one that is encrypted; the key as session_key_path of kvrun_session_options. */
KVRUN_API kvrun_status kvrun_sessions_info_with_key_json(const char* session, const char* session_key_path,
                                                         char** json);
/* How this build encrypts on this processor: not at all, or with or without instructions for AES. */
typedef enum kvrun_encryption {
  KVRUN_ENCRYPTION_NONE = 0,
  KVRUN_ENCRYPTION_SLOW = 1,
  KVRUN_ENCRYPTION_FAST = 2
} kvrun_encryption;
KVRUN_API kvrun_encryption kvrun_session_encryption(void);
/* Destroys a key (session_key_path of kvrun_session_options; NULL: "auto"): its file is overwritten and
 * removed. So all sessions under it are lost at once, wherever copies of them lie; their files stay. Flash,
 * and file systems that copy before they write, may keep the old bytes where only tools for disks find them.
 * KVRUN_OK where there is none. */
KVRUN_API kvrun_status kvrun_session_key_destroy(const char* session_key_path);
/* Its files; KVRUN_INVALID_ARGUMENT if a process has it, KVRUN_NOT_FOUND if there is none. */
KVRUN_API kvrun_status kvrun_sessions_remove(const char* session);
/* The files of one that no process has, under a name that is free. */
KVRUN_API kvrun_status kvrun_sessions_copy(const char* from, const char* to);
KVRUN_API uint32_t kvrun_session_context(const kvrun_session* session);
/* The number of tokens whose KV is computed. The last generated token is not counted until the sequence is
 * fed or generated again. */
KVRUN_API uint32_t kvrun_session_length(const kvrun_session* session, uint32_t sequence);
/* Forgets a sequence's tokens from position `length` on, and a generated token that is not computed yet.
 * KVRUN_INVALID_ARGUMENT if the sequence is shorter than that. */
KVRUN_API kvrun_status kvrun_session_truncate(kvrun_session* session, uint32_t sequence, uint32_t length);

/* Appends ids to a sequence and computes their KV. On KVRUN_CONTEXT_FULL or KVRUN_INVALID_ARGUMENT nothing is
 * appended; so it is where more than one id would break the limit of what is written (the option
 * "write-limit"), which is KVRUN_INVALID_ARGUMENT: the session can be used, on another day, say. On
 * KVRUN_CANCELLED the chunks that were finished stay. With count 0 it only computes a generated
 * token that is not computed yet. */
KVRUN_API kvrun_status kvrun_session_feed(kvrun_session* session, uint32_t sequence, const int32_t* ids,
                                          size_t count);

/* Receives the logits of `rows` consecutive positions of the sequence, from `position` on: float
 * [rows, vocab_size], valid during the call. Return nonzero to cancel. */
typedef int (*kvrun_logits_fn)(void* user, uint32_t position, uint32_t rows, const float* logits);

/* Like kvrun_session_feed, and also passes the raw logits of the last `last` of these positions (0: of all)
 * to `logits`, in order. */
KVRUN_API kvrun_status kvrun_session_feed_logits(kvrun_session* session, uint32_t sequence,
                                                 const int32_t* ids, size_t count, size_t last,
                                                 kvrun_logits_fn logits, void* user);

#define KVRUN_MAX_LOGPROBS 20

/* A token and the natural logarithm of its probability, which is 0 or less. */
typedef struct kvrun_token_logprob {
  int32_t token;
  float logprob;
} kvrun_token_logprob;

/* Receives the model's own probabilities in a step: those of its raw logits, before penalties, temperature
 * and everything else that sampling does. `taken` is the token that was taken. likeliest [n] are the
 * likeliest tokens, the likeliest first (the lower id first among equals); n is n_logprobs or the
 * vocabulary's size. Called on the calling thread right before the kvrun_token_fn of that token; valid during
 * the call. */
typedef void (*kvrun_logprobs_fn)(void* user, uint32_t sequence, kvrun_token_logprob taken,
                                  const kvrun_token_logprob* likeliest, size_t n);

/* Added to the logit of a token, before anything else is done to it: from -100 to 100. */
typedef struct kvrun_logit_bias {
  int32_t token;
  float bias;
} kvrun_logit_bias;

typedef struct kvrun_generate_options {
  uint32_t struct_size;
  uint32_t max_tokens;      /* per sequence; 0: until the context is full */
  float temperature;        /* 0: greedy */
  uint32_t top_k;           /* 0: off */
  float top_p;              /* 1: off */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 1: off; over the last repetition_window tokens, prompt included */
  uint32_t repetition_window;
  uint64_t seed;
  const char* const* stop; /* strings that end generation and are not part of the text */
  size_t n_stop;
  uint32_t ignore_end; /* nonzero: go on after end-of-generation tokens (benchmarks) */
  uint32_t reserved;   /* not read: it was padding in earlier versions */
  /* These lower the logit of each token that was generated since the sequence was last fed and is among its
   * last repetition_window tokens: presence_penalty once, frequency_penalty for each time that it occurs
   * there. From -100 to 100; 0: off. They apply after the repetition penalty. */
  float presence_penalty;
  float frequency_penalty;
  uint32_t n_logprobs;        /* up to KVRUN_MAX_LOGPROBS; 0: `logprobs` is not called */
  kvrun_logprobs_fn logprobs; /* not NULL unless n_logprobs is 0 */
  void* logprobs_user;
  /* An answer ends whose last tokens are one text (of up to 256 tokens) so many times in a row, and are 128
   * or more together: small models fall into such loops, which have no end. 0: off; 4 is a good number. */
  uint32_t repeat_limit;
  /* Nonzero: what is drawn follows from seed and position alone, so that any sequence of a session draws as
   * the only one of another would. 0: sequences of equal seeds draw differently. */
  uint32_t draws_by_seed_alone;
  const kvrun_logit_bias* logit_bias; /* [n_logit_bias] */
  size_t n_logit_bias;
} kvrun_generate_options;

typedef enum kvrun_finish {
  KVRUN_FINISH_LENGTH = 0,       /* max_tokens reached */
  KVRUN_FINISH_END = 1,          /* the model ended */
  KVRUN_FINISH_STOP = 2,         /* a stop string */
  KVRUN_FINISH_CONTEXT_FULL = 3, /* no room for another token */
  KVRUN_FINISH_CANCELLED = 4,    /* the callback asked to stop */
  KVRUN_FINISH_REPEATS = 5       /* it repeats itself (repeat_limit) */
} kvrun_finish;

/* Called on the calling thread for each generated token, except the end-of-generation token. text is the part
 * of the answer that became certain: whole UTF-8 characters, possibly none (text_bytes 0), and never a part
 * of a stop string. A last call with token < 0 brings only text that was held back. Return nonzero to cancel.
 */
typedef int (*kvrun_token_fn)(void* user, uint32_t sequence, int32_t token, const char* text,
                              size_t text_bytes);

typedef struct kvrun_generate_result {
  uint32_t n_tokens; /* generated, without the end-of-generation token */
  kvrun_finish finish;
} kvrun_generate_result;

KVRUN_API void kvrun_generate_options_init(kvrun_generate_options* options);

/* Continues `n` sequences together: one step of the device computes the next token of all of them. Each must
 * have been fed with at least one token before. results: [n], may be NULL. Afterwards the generated tokens of
 * a sequence are part of its context, except the last, which is appended when the sequence is fed or
 * generated again. If the callback cancels, the status is KVRUN_OK and the results are
 * KVRUN_FINISH_CANCELLED. */
KVRUN_API kvrun_status kvrun_session_generate(kvrun_session* session, const uint32_t* sequences, size_t n,
                                              const kvrun_generate_options* options, kvrun_token_fn token,
                                              void* user, kvrun_generate_result* results);

/* The same with options of its own for each sequence: options [n], of which NULL stands for the defaults. */
KVRUN_API kvrun_status kvrun_session_generate_each(kvrun_session* session, const uint32_t* sequences,
                                                   size_t n, const kvrun_generate_options* const* options,
                                                   kvrun_token_fn token, void* user,
                                                   kvrun_generate_result* results);

/* JSON object: prefill_tokens, prefill_ms, prefill_tps, answer_tokens (generated, without those that end an
 * answer), decode_tokens (of decode steps: an answer's first token comes from the prefill), decode_ms,
 * decode_tps, ttft_ms, cached_tokens (that sequences had when they were fed: these were not read again),
 * recomputed_tokens (once more, after a truncation or a failed step, as the model has
 * layers that cannot go back; no part of the other numbers of tokens, but of their time), last (an object
 * with all of these, of the last turn alone: feeds and the call of kvrun_session_generate after them),
 * memory {weights, kv, activations, staging, total: bytes, of the device; process: the bytes of memory of
 * this process, as its system counts them, and process_peak, the most so far; null where the system does not
 * say; all: process, and what the device has beside it}, operations [{name, count, ms}] with profile, notes
 * [..], details [..] (notes for experts). If KV is kept in records (any method but "full", or "full" in
 * types other than f16 and f32) there is also kv: line (what it is, for experts), method, full_bytes,
 * budget_bytes, prefill_bytes, decode_bytes, parts, states (as in kvrun_kv_plan_json); of decoding:
 * chosen_groups (without sinks), drawn_groups (of them, at random), entries_per_layer {mean, least, most}
 * (chosen by a stream of a layer in a step, without sinks), own_hits (chosen groups that were in memory
 * already), stand_in_groups (those that were not read, as others in memory stood in for them), pool_reads
 * (those that were read into the pool that layers share, as they found no room in their layer's reuse
 * buffer), hit_rate (own_hits of chosen_groups), kept (null: the method does not evict; else an object, of
 * all lists of all layers and sequences, without the window: original (entries that are exact), low (those
 * in 8 bits), evicted (since each sequence began, what was not kept of its prompt among them), lowered
 * (those that went from exact to 8 bits while decoding), original_shares [of each layer, of sequence 0: the
 * share that is exact, 0..1; empty where the method has no such choice]), later_prompts (of prompts after
 * a text that was there: exact (how many attended to all of it), selected (how many to what their tokens
 * chose together), selected_share (of these, how much that was of what lay before the window, 0..1)), static
 * (as a plan has it, and chosen_again (how often, while decoding), chosen_again_ms, repaged_bytes (written
 * for pages that were laid anew)), stall_ms_per_token (how long the device waited for flash), io_hidden
 * (0..1, the share of reading that it did not wait for), and with profile layers [{loads, ms}]; of prefill
 * and decoding: io_mode
 * ("io_uring direct"), io_notes [..], reads, read_bytes, records_read_again (those that were bad at first),
 * mean_read_bytes, read_mbps (10^6 bytes/s, while reading), bytes_written. A value is null if nothing was
 * counted for it. Counters start when the session is created, and again with kvrun_session_stats_reset.
 * Of the session since it was created, also written_bytes: to flash, of all kinds. */
KVRUN_API kvrun_status kvrun_session_stats_json(const kvrun_session* session, char** json);
KVRUN_API void kvrun_session_stats_reset(kvrun_session* session);

/* ---- Evaluation ------------------------------------------------------------------------------------ */

/* Receives the JSON object of one configuration as soon as it is known; valid during the call. */
typedef void (*kvrun_eval_result_fn)(void* user, const char* json);

typedef struct kvrun_eval_options {
  uint32_t struct_size;
  uint32_t n_ctx;   /* how many ids are used */
  uint32_t n_steps; /* how many of these, at the end, are fed */
  /* Each is a line of options as on the command line: "--kv-method kvswap --kv-budget 1/13". A value with
   * blanks in it stands between double quotes. */
  const char* const* configs;
  size_t n_configs;
  kvrun_progress_fn progress; /* in tokens, of the prefill and then of each configuration; may be NULL */
  void* progress_user;
  kvrun_eval_result_fn result; /* may be NULL */
  void* result_user;
  /* The n_steps are fed so many at a time, each time as a prompt, like questions about what came before; 0 or
   * 1: one by one, like an answer. */
  uint32_t n_at_once;
} kvrun_eval_options;

KVRUN_API void kvrun_eval_options_init(kvrun_eval_options* options);

/* Measures what KV methods cost in quality. It prefills ids[0, n_ctx - n_steps) once, then feeds the next
 * n_steps, one by one or as n_at_once says, with all KV in memory (f16) and with each configuration. JSON
 * array, an object for each configuration: config, ppl and ppl_full (perplexity of the method and of full on
 * the ids that follow), kl_mean (KL(full || method), nats), kl_error (its standard error, as if steps did not
 * depend on each other), kl_parts [8] (means of each eighth of the steps, in their order), top1_agreement,
 * recall (the share of the exact attention, by full's keys, that lies on the attended entries; in one step of
 * eight; mean over query heads, layers and steps), recall_oracle, recall_recent and recall_random (the same
 * for as many groups chosen by the exact attention, for as many of the newest entries, and for as many groups
 * chosen by chance; null where tokens are not fed one by one), hit_rate, decode_tps, decode_tps_full, kv (as
 * in kvrun_session_stats_json), notes [..] (as in kvrun_kv_plan_json); or config and error. */
KVRUN_API kvrun_status kvrun_eval_json(kvrun_engine* engine, const kvrun_eval_options* options,
                                       const int32_t* ids, size_t count, char** json);

/* The same of a session as it lies, on its own text: the last n_steps tokens of the sequence are cut off and
 * fed again, and compared with what all KV in memory (f16) makes of the session's tokens, computed anew. The
 * session has the same tokens afterwards, also one that is only read. Of the options, n_steps, n_at_once and
 * progress count. JSON object, as those of kvrun_eval_json without config; recall and its like are null.
 * KVRUN_INVALID_ARGUMENT if the sequence has fewer than n_steps + 2 tokens, KVRUN_UNSUPPORTED if the method
 * has forgotten what it would have to go back to. */
KVRUN_API kvrun_status kvrun_session_eval_json(kvrun_session* session, uint32_t sequence,
                                               const kvrun_eval_options* options, char** json);

typedef struct kvrun_needle_options {
  uint32_t struct_size;
  uint32_t n_ctx;             /* tokens of a document with the longest question and answer after it */
  uint32_t n_needles;         /* how many are asked for, over all documents; from 1 */
  uint32_t n_per_document;    /* at most so many are hidden in one document; 0: 20 */
  uint32_t n_copies;          /* how often the document says each; 0: 3 */
  uint64_t seed;              /* of keys, values and places: the same seed hides the same needles */
  const char* const* configs; /* as in kvrun_eval_options */
  size_t n_configs;
  kvrun_progress_fn progress; /* in tokens, of each document and then of each question; may be NULL */
  void* progress_user;
  kvrun_eval_result_fn result; /* may be NULL */
  void* result_user;
  uint32_t n_at_once; /* a question is fed so many tokens at a time, as prompts; 0 or 1: token by token */
} kvrun_needle_options;

KVRUN_API void kvrun_needle_options_init(kvrun_needle_options* options);

/* Measures what KV methods still find in a long text. Sentences such as " The password is Nozilo 85274." are
 * hidden in parts of the text `ids`, each n_copies times, evenly spread. Each document is computed, and asked
 * at its end for each of its needles: the question " The password is Nozilo" is fed (n_at_once) and
 * continued greedily for as many tokens as the value has. It is answered where all are equal. Then the
 * sequence is truncated to the document's end: question and answer are shorter than the window of methods
 * that evict. The question is not known while a document is computed. JSON array, an object for each
 * configuration: config, answered (the share of needles, 0..1), answered_error (its standard error,
 * binomial), answered_full and answered_full_error (the same with all KV in memory, f16), right [true or
 * false, for each needle, document by document in the order of the needles' places] and right_full, kv (as in
 * kvrun_session_stats_json, of the last document's questions), notes [..] (as in kvrun_kv_plan_json); or
 * config and error. */
KVRUN_API kvrun_status kvrun_needles_json(kvrun_engine* engine, const kvrun_needle_options* options,
                                          const int32_t* ids, size_t count, char** json);

/* ---- Calibration: adapters from texts -------------------------------------------------------------- */

typedef struct kvrun_calibrate_options {
  uint32_t struct_size;
  const char* kind;            /* as the option adapter-kind; NULL: query-centred */
  uint32_t rank;               /* how many columns the file holds; 0: as many as there are, at most 256 */
  uint32_t n_ctx;              /* texts are cut into pieces of at most this many tokens; 0: kvrun chooses */
  const int32_t* const* texts; /* [n_texts], each of counts[i] ids */
  const size_t* counts;
  size_t n_texts;
  kvrun_progress_fn progress; /* in tokens; may be NULL */
  void* progress_user;
  const char* checkpoint;   /* a file that keeps sums until `path` is written, so that the same call can
                               continue an interrupted one. A file of another kind is refused, and so is a
                               checkpoint of other texts, another n_ctx or another model; NULL: none */
  const char* sums;         /* a file for the sums that adapters are computed from; NULL: none */
  uint32_t restart;         /* nonzero: starts anew and replaces `checkpoint`, whatever it holds */
  uint32_t checkpoint_ms;   /* the least time between two writings of `checkpoint`; 0: 30000 */
  uint32_t keep_checkpoint; /* nonzero: `checkpoint` stays at the end, with all sums, for a caller who does
                               more with the adapter and removes the file afterwards: the same call makes the
                               same adapter from it at once */
  uint32_t max_ms; /* pieces that would not end within so many milliseconds are left out, except those
                      that the rank needs; 0: none is. The same pieces give the same adapter */
} kvrun_calibrate_options;

KVRUN_API void kvrun_calibrate_options_init(kvrun_calibrate_options* options);

/* Computes each layer's adapter (KVSwap, section 3.2) from the model's keys and queries on these texts, and
 * writes them to `path` (docs/formats/adapter.md). `path`, `checkpoint` and `sums` must be three files, and
 * none may be a file of the model: KVRUN_INVALID_ARGUMENT otherwise. On an error nothing is written except
 * `checkpoint`, which holds the pieces that are done (docs/formats/sums.md). It is removed when everything is
 * done, unless it is to be kept. json, which may be NULL, becomes an object with kind, rank, n_tokens,
 * n_tokens_given (more than n_tokens, if there was no time for all), made_from (text for people, which the
 * file holds too), n_pieces, resumed_tokens (those that the checkpoint had), notes [text], fingerprint,
 * layers
 * [{energy: [of columns 0..i, by i]}]. */
KVRUN_API kvrun_status kvrun_calibrate(kvrun_engine* engine, const kvrun_calibrate_options* options,
                                       const char* path, char** json);

/* Tells what kvrun_calibrate would start from. JSON object: resumed_tokens, n_tokens, note (for people: what
 * the checkpoint is used for, or why it is not; empty if there is none). It fails if kvrun_calibrate would
 * refuse the checkpoint. */
KVRUN_API kvrun_status kvrun_calibrate_checkpoint_json(kvrun_engine* engine,
                                                       const kvrun_calibrate_options* options, char** json);

typedef struct kvrun_reuse_options kvrun_reuse_options;

/* Tells how long kvrun_calibrate, and kvrun_measure_reuse after it (not, if `reuse` is NULL), will take on
 * this device, from rates that it measures now, in a second or two; and what to give them so that they end
 * within max_ms of `options` together (0: no limit). JSON object: n_ctx (for both), sums_ms (max_ms of
 * kvrun_calibrate; 0: no limit), later_s (for kvrun_measure_reuse), seconds (of both, likely), all_seconds
 * (of both, if there were no limit). A checkpoint's pieces keep their n_ctx. */
KVRUN_API kvrun_status kvrun_calibrate_time_json(kvrun_engine* engine, const kvrun_calibrate_options* options,
                                                 const kvrun_reuse_options* reuse, char** json);

/* ---- Reuse rates: how often a selected group is in memory already ----------------------------------- */

struct kvrun_reuse_options {
  uint32_t struct_size;
  uint32_t n_ctx;             /* at most this many ids are used; 0: kvrun chooses, at most 8192 */
  const char* folder;         /* holds the KV meanwhile; NULL: as kvrun_option "dir" */
  uint32_t allow_tmpfs;       /* nonzero: the folder may be in memory */
  kvrun_progress_fn progress; /* in tokens; may be NULL */
  void* progress_user;
  uint32_t skip_layers; /* nonzero: it is not measured how much each layer's selection matters */
  uint32_t max_ms;      /* what would not end within so many milliseconds is left out, or made shorter; 0: no
                           limit. The same parts give the same table */
};

KVRUN_API void kvrun_reuse_options_init(kvrun_reuse_options* options);

/* Measures how often a group that was chosen with this adapter is in the reuse buffer already, by the
 * buffer's capacity (KVSwap, appendix A.1). It writes the table into the adapter's file in place of an
 * earlier one; on an error the file stays as it was. It prefills the first of the ids that are used and
 * decodes the last of them, for several sizes of groups and numbers of selected entries. json, which may be
 * NULL, becomes an object with n_ctx (ids that were used), n_steps (how many of these, at the end, are
 * counted), rank (of the selection), note (why there are no rates, if there are none) and rates [{policy,
 * group, select (entries), ctx (tokens before the counted ones), capacity (groups per layer, without sinks),
 * rate (0..1)}]. It also measures, and writes into the file, thresholds for clusters, mean keys and values,
 * and, unless skip_layers is set, what it costs to cut each layer alone: layers [{kl (mean, nats), share (of
 * the slots that a layer gets, relative to the mean)}], empty if it was not measured; measured_on (text for
 * people, which the file holds too) and left_out [text: what there was no time for]. */
KVRUN_API kvrun_status kvrun_measure_reuse(kvrun_engine* engine, const kvrun_reuse_options* options,
                                           const char* adapter_path, const int32_t* ids, size_t count,
                                           char** json);

/* ---- Benchmarks -------------------------------------------------------------------------------------- */

/* As n_layers of kvrun_model_make: all where their weights take at most three quarters of the memory that is
 * available, else as many as do, but at least 2; where kinds of layers take turns, that of whole turns. */
#define KVRUN_LAYERS_THAT_FIT UINT32_MAX

/* Makes a model of a named shape with random weights: SmolLM2-135M, Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B,
 * Qwen3-0.6B, Qwen3-4B, Qwen3-8B, Qwen3.5-0.8B, Gemma-3-1B, LFM2-1.2B, SmolLM3-3B. n_layers 0 means all the
 * layers of the shape; more than it has are refused. With fewer, a benchmark also tells the whole model's
 * rates (kvrun_bench_json). Weights are made when an engine loads them: the model alone, such as for
 * kvrun_kv_plan_json, takes neither memory nor a file. There is no tokenizer. kvrun_shape_names returns the
 * names, a list that ends in NULL. */
KVRUN_API kvrun_status kvrun_model_make(const char* shape, uint32_t n_layers, kvrun_model** model);
KVRUN_API const char* const* kvrun_shape_names(void);

typedef struct kvrun_bench_options {
  uint32_t struct_size;
  const char* kv;         /* "--kv-method kvswap --kv-budget 1/13"; NULL: full */
  const uint32_t* depths; /* [n_depths]: how many tokens come before the measured ones */
  size_t n_depths;
  uint32_t n_prompt;      /* tokens of one sequence to prefill from an empty context, timed; 0: none */
  uint32_t n_decode;      /* tokens to decode at each depth, timed; 0: none */
  uint32_t n_sequences;   /* sequences to decode together; 0: 1 */
  uint32_t n_repetitions; /* 0: 3 */
  uint32_t fill_random;   /* nonzero: the KV at a depth is random, not prefilled */
  float hit_rate;         /* with fill_random: the share of a step's groups that the step before chose too */
  uint32_t io_only;       /* nonzero: also repeats the reads of the last run, without computing */
  kvrun_progress_fn progress; /* in tokens; may be NULL */
  void* progress_user;
} kvrun_bench_options;

KVRUN_API void kvrun_bench_options_init(kvrun_bench_options* options);

/* Each depth has a session of its own, with as much context as it needs. JSON array, an object per depth:
 * depth, n_layers (those that were timed), n_layers_model (those of the model: more, if kvrun_model_make made
 * only a part of it), prefill_tps and decode_tps (medians, null if nothing was measured), prefill_tps_runs
 * and decode_tps_runs [..], hit_rate, io_hidden, stall_ms_per_token, kv and memory (as in
 * kvrun_session_stats_json, of the last run), notes [..] (as in kvrun_kv_plan_json), with the engine's
 * profile operations [{name, per_token, ms_per_token}] of the last run that decoded, prompt_operations
 * likewise of the last prompt, and step_work and prompt_work [{name, ms, bytes, bound_ms}]: what a decode
 * step and a prompt take by kind of work ("products", "delta rule", "convolution", "windowed attention",
 * "attention", "selection", ..), the bytes of weights, states and KV that it has to move (null: unknown, or
 * activations alone), and what these take at stream_mbps below; and with io_only io
 * {reads, bytes, fetches (a layer's reads; the next layer's begin when they are done), mbps (10^6
 * bytes/s of the time it took)}. If decoding was measured: weights {step_bytes (the weights that a step
 * multiplies with), mbps (their rate, at the median speed), stream_mbps (what the device reaches in the same
 * run when it only reads as much from memory)}. If a part of the layers was timed, and at least 2:
 * whole_model {n_layers, prefill_tps, decode_tps, prefill_tps_runs, decode_tps_runs}. For this, runs with
 * half as many layers take turns with the others, and the difference, which is the layers' alone, is scaled
 * to all layers. All other keys are of the part. part_note is there if people should know more about it. */
KVRUN_API kvrun_status kvrun_bench_json(kvrun_engine* engine, const kvrun_bench_options* options,
                                        char** json);

#ifdef __cplusplus
}
#endif

#endif /* KVRUN_KVRUN_H_ */
