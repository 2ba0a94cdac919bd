/* libskipdec: generates with a skipdec bundle, from C. The C++ face is skipdec.hpp.
 *
 * A bundle is opened as an engine: one thread that runs all requests together, each as if it were
 * alone, with only the layers that its exit schedule names (SkipDecode, arXiv 2307.02628).
 *
 *   skipdec_engine* engine;
 *   if (skipdec_engine_open("opt-1.3b-int8", NULL, &engine) != SKIPDEC_OK)
 *     return fputs(skipdec_last_error(), stderr), 1;
 *   skipdec_params params;
 *   skipdec_params_init(&params, sizeof params);
 *   params.max_tokens = 32;
 *   skipdec_request* request;
 *   skipdec_submit_text(engine, "The capital of France is", &params, &request);
 *   const skipdec_delta* delta;
 *   while (skipdec_request_next(request, -1, &delta) == SKIPDEC_OK) fputs(delta->text, stdout);
 *   skipdec_request_release(request);
 *   skipdec_engine_close(engine);
 *
 * Every function may be called from any thread. Functions that can fail return a status; its words
 * are skipdec_last_error() of the same thread. Strings are UTF-8, ended by a zero byte; whatever a
 * function hands out belongs to the library and lives as long as the object that it says.
 *
 * Threads don't survive a fork: a child is refused, as SKIPDEC_USAGE, the engines and requests of
 * its parent (to release one does nothing), and opens an engine of its own only where the parent
 * had none open when it forked.
 *
 * Structs that a caller owns begin with their size: a library that knows more fields than the
 * caller takes their defaults for the rest. The *_init functions write size and defaults. Structs
 * that the library owns may grow at their end.
 */
#ifndef SKIPDEC_H
#define SKIPDEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SKIPDEC_API __attribute__((visibility("default")))
#else
#define SKIPDEC_API
#endif

/* Grows when something is added; a program runs with any library whose number is at least that of
 * the header it was compiled with. */
#define SKIPDEC_ABI_VERSION 2

typedef enum skipdec_status {
  SKIPDEC_OK = 0,
  SKIPDEC_USAGE = 1,       /* an argument is not allowed */
  SKIPDEC_BUNDLE = 2,      /* the bundle is damaged, incomplete or of another version */
  SKIPDEC_SCHEDULE = 3,    /* the exit schedule is none, or doesn't fit the bundle */
  SKIPDEC_CAPACITY = 4,    /* more rows, positions or KV memory than there are */
  SKIPDEC_ENVIRONMENT = 5, /* something that this machine lacks, e.g. ONNX Runtime */
  SKIPDEC_CLOSED = 6,      /* the engine was closed */
  SKIPDEC_ENGINE = 7,      /* an engine failed, or made logits that are no distribution */
  SKIPDEC_MEMORY = 8,      /* memory ran out */
  SKIPDEC_BUSY = 9,        /* too many requests wait; try again later */
  SKIPDEC_TIMEOUT = 10,    /* nothing came within the time given */
  SKIPDEC_INTERNAL = 11,   /* a bug */
  SKIPDEC_END = 12         /* the request has ended: no more deltas */
} skipdec_status;

typedef struct skipdec_engine skipdec_engine;
typedef struct skipdec_request skipdec_request;
typedef struct skipdec_score skipdec_score;

/* ---- the library ---- */

SKIPDEC_API uint32_t skipdec_abi_version(void);
SKIPDEC_API const char* skipdec_version(void); /* e.g. "0.1.0" */
/* What went wrong in this thread's last call that failed; "" before. Valid until its next call. */
SKIPDEC_API const char* skipdec_last_error(void);
SKIPDEC_API const char* skipdec_status_name(skipdec_status status); /* e.g. "bundle" */

/* ---- engines ---- */

typedef enum skipdec_verify {
  SKIPDEC_VERIFY_FULL = 0,  /* every file is hashed */
  SKIPDEC_VERIFY_GRAPHS = 1 /* all but weights, whose sizes are compared */
} skipdec_verify;

typedef enum skipdec_weights {
  SKIPDEC_WEIGHTS_MAPPED = 0, /* opens at once; processes share the pages */
  SKIPDEC_WEIGHTS_COPIED = 1  /* to memory of this process, in huge pages where there are */
} skipdec_weights;

/* Who finds the beginnings of prompts that are kept. Who shares them can learn, from the time of a
 * first token, what others sent. */
typedef enum skipdec_prefix_cache {
  SKIPDEC_PREFIX_CACHE_OFF = 0,    /* none are kept */
  SKIPDEC_PREFIX_CACHE_SHARED = 1, /* all clients */
  SKIPDEC_PREFIX_CACHE_CLIENT = 2  /* each client its own only, see skipdec_params */
} skipdec_prefix_cache;

typedef struct skipdec_options {
  size_t size;
  const char* schedule;    /* default of all requests, see skipdec_params; NULL: the bundle's own */
  int32_t threads;         /* of the process' one pool; 0: all processors that it may use */
  int32_t max_batch_size;  /* rows that run at once; default 8 */
  uint64_t kv_memory;      /* bytes of KV caches; 0: half of the memory that may be used */
  int32_t raw_prompts;     /* 1: texts stand alone, although the bundle has a prompt template */
  skipdec_verify verify;   /* default SKIPDEC_VERIFY_FULL */
  skipdec_weights weights; /* default SKIPDEC_WEIGHTS_MAPPED */
  int32_t max_waiting;     /* requests that wait at most; default 256 */
  int32_t max_prefill_tokens; /* of one call for prompts; default 2048 */
  int64_t max_model_len;      /* positions of a request, prompt and text; 0: as many as there are */
  const char* admission;      /* "fcfs" or "gang:min_free=2,hold_ms=8"; NULL: fcfs */
  int32_t prefix_cache;       /* a skipdec_prefix_cache; default SKIPDEC_PREFIX_CACHE_SHARED */
  const char* onnxruntime;    /* path of libonnxruntime; NULL: searched for */
} skipdec_options;

SKIPDEC_API void skipdec_options_init(skipdec_options* options, size_t size);

/* Opens the bundle at ``path`` and starts its thread. ``options``: NULL for defaults. */
SKIPDEC_API skipdec_status skipdec_engine_open(const char* path, const skipdec_options* options,
                                               skipdec_engine** engine);

/* Refuses new requests and waits until those there have ended, at most ``timeout`` seconds
 * (negative: for ever); SKIPDEC_TIMEOUT if some have not. */
SKIPDEC_API skipdec_status skipdec_engine_drain(skipdec_engine* engine, double timeout);

/* Waits for the step that runs, ends all requests and frees the engine. Callbacks get a last delta
 * for each completion, with finish_reason "abort" and stop_reason "closed"; other calls for those
 * requests say SKIPDEC_CLOSED. Requests stay readable until they are released. NULL is allowed.
 * Refused, as SKIPDEC_USAGE, within a callback. */
SKIPDEC_API skipdec_status skipdec_engine_close(skipdec_engine* engine);

/* Lives as long as the engine. */
typedef struct skipdec_info {
  const char* model;       /* its name */
  const char* description; /* what runs it, e.g. "ONNX Runtime 1.31.0, skipdec avx512vnni" */
  const char* schedule;    /* the default one, in full */
  int64_t num_layers, hidden_size, vocab_size, max_model_len;
  int64_t eos_token_id;     /* -1: none */
  int32_t has_tokenizer;    /* 0: prompts are token ids only, and why: */
  const char* no_tokenizer; /* "" if it has one */
  const char* warning;      /* e.g. that the model was not tuned to skip layers; "" if none */
} skipdec_info;

SKIPDEC_API skipdec_status skipdec_engine_info(skipdec_engine* engine, const skipdec_info** info);

typedef struct skipdec_stats {
  size_t size;                                       /* the caller's sizeof(skipdec_stats) */
  int64_t running, waiting;                          /* rows that run; requests that wait */
  int64_t submitted, finished, aborted, failed;      /* requests */
  int64_t reserved_bytes, prefix_bytes, limit_bytes; /* of KV memory */
  int64_t prompt_tokens, prefix_tokens, generated_tokens;
  int64_t steps, step_rows, layer_calls, layer_rows; /* of decode steps */
  double prefill_seconds, decode_seconds, sampling_seconds, scoring_seconds;
} skipdec_stats;

SKIPDEC_API skipdec_status skipdec_engine_stats(skipdec_engine* engine, skipdec_stats* stats);

/* ---- requests ---- */

typedef struct skipdec_logprob {
  int64_t token_id;
  double logprob;
  int64_t rank; /* 1 is the most probable token */
} skipdec_logprob;

typedef struct skipdec_delta {
  int64_t index;            /* of the completion within its request, 0 … n-1 */
  const int64_t* token_ids; /* [num_tokens], 0 or 1 of them */
  size_t num_tokens;
  const char* text;          /* whole characters; "" while one, or a stop string, is incomplete */
  size_t num_bytes;          /* of text, which may hold zero bytes */
  const char* finish_reason; /* NULL while it runs; "stop", "length", "abort" or "error" */
  const char* stop_reason;   /* the stop string, or what went wrong; NULL: none */
  int64_t stop_token_id;     /* the stop token that ended it; -1: none */
  int64_t layers;            /* decoder layers that made the token */
  const skipdec_logprob* logprobs; /* [num_logprobs] the chosen one first; NULL unless asked */
  size_t num_logprobs;
} skipdec_delta;

/* Called on the engine's thread, which waits, for each delta of a request, in order. What ``delta``
 * points to lives until it returns. Each completion's last delta has a finish_reason, "error" if
 * the engine failed and "abort" if it was closed, and comes once, unless the request is released
 * before. Returning other than 0 cancels the request.
 *
 * It may submit, cancel and release requests, also its own, and poll any (a timeout of 0). Waiting
 * for a request of this engine, scoring, draining and closing it are refused as SKIPDEC_USAGE. If
 * it is C++ and throws, its request alone ends, with finish_reason "error" and what was thrown as
 * its stop_reason. It may not end its thread, and not leave by longjmp. */
typedef int (*skipdec_callback)(void* user_data, const skipdec_delta* delta);

typedef struct skipdec_params {
  size_t size;
  int64_t max_tokens;        /* default 16; 0: as many as there are positions */
  double temperature;        /* default 1; 0: the most probable token */
  int64_t top_k;             /* default 0: off */
  double top_p;              /* default 1: off */
  double min_p;              /* default 0: off */
  double repetition_penalty; /* default 1: off */
  double presence_penalty;   /* default 0: off */
  double frequency_penalty;  /* default 0: off */
  int32_t has_seed;          /* 1: `seed` is one; 0: fresh entropy */
  uint64_t seed;             /* equal seeds give equal texts */
  int64_t n;                 /* completions; default 1 */
  int64_t min_tokens;        /* before anything stops the text; default 0 */
  const char* const* stop;   /* [num_stop] strings that end the text */
  size_t num_stop;
  const int64_t* stop_token_ids; /* [num_stop_token_ids] */
  size_t num_stop_token_ids;
  int32_t ignore_eos;
  int32_t include_stop_str_in_output;
  int32_t skip_special_tokens; /* default 1 */
  int64_t logprobs;            /* best tokens reported beside the chosen one; default -1: none */
  /* "full", "2x", "4x:horizon=64", or JSON with a plan, as `skipdec schedule show --json` prints,
   * or a path that ends in .json; NULL: the engine's default. */
  const char* schedule;
  double deadline;           /* seconds from now after which it ends, "abort"; 0: none */
  skipdec_callback callback; /* NULL: deltas are asked for by skipdec_request_next */
  void* user_data;
  const char* client; /* any name of whoever asks: clients take turns, a request each; NULL: none */
} skipdec_params;

SKIPDEC_API void skipdec_params_init(skipdec_params* params, size_t size);

/* Lets a request wait; all of it is checked before. ``params``: NULL for defaults; everything that
 * it points to is copied. The caller releases ``request``. */
SKIPDEC_API skipdec_status skipdec_submit_text(skipdec_engine* engine, const char* prompt,
                                               const skipdec_params* params,
                                               skipdec_request** request);
SKIPDEC_API skipdec_status skipdec_submit_tokens(skipdec_engine* engine, const int64_t* token_ids,
                                                 size_t num_tokens, const skipdec_params* params,
                                                 skipdec_request** request);

typedef struct skipdec_prompt {
  const char* text; /* NULL: token ids */
  const int64_t* token_ids;
  size_t num_tokens; /* of token_ids */
} skipdec_prompt;

/* Lets ``count`` requests wait, all of them or, if one is refused, none. They are let in together
 * as far as they fit, so that prompts share calls. ``requests`` has room for ``count``; a callback
 * is called for each, with the same ``user_data``. */
SKIPDEC_API skipdec_status skipdec_submit_many(skipdec_engine* engine,
                                               const skipdec_prompt* prompts, size_t count,
                                               const skipdec_params* params,
                                               skipdec_request** requests);

/* The next delta of any of its completions, waiting at most ``timeout`` seconds (negative: for
 * ever, 0: not at all: a poll). SKIPDEC_END behind the last; SKIPDEC_TIMEOUT if none came;
 * SKIPDEC_CLOSED if the engine was closed; SKIPDEC_ENGINE if it failed for good; SKIPDEC_USAGE
 * within a callback of its engine, unless it polls. ``delta`` and what it points to live until the
 * next call for this request; one thread at a time asks. */
SKIPDEC_API skipdec_status skipdec_request_next(skipdec_request* request, double timeout,
                                                const skipdec_delta** delta);

/* Waits until all completions have ended: SKIPDEC_OK, or what skipdec_request_next says instead of
 * a delta. */
SKIPDEC_API skipdec_status skipdec_request_wait(skipdec_request* request, double timeout);

/* Ends it with finish_reason "abort" before the next step; nothing happens if it has ended. */
SKIPDEC_API skipdec_status skipdec_request_cancel(skipdec_request* request);

typedef struct skipdec_completion {
  const char* text;         /* all of it; pointers live until the request is released */
  size_t num_bytes;         /* of text, which may hold zero bytes */
  const int64_t* token_ids; /* [num_tokens] */
  const int64_t* layers;    /* [num_tokens] decoder layers that made each token */
  size_t num_tokens;
  const char* finish_reason; /* "stop", "length", "abort" or "error" */
  const char* stop_reason;   /* see skipdec_delta */
  int64_t stop_token_id;
  const skipdec_logprob* logprobs; /* of all tokens, one after the other; NULL unless asked for */
  const size_t* logprobs_ends;     /* [num_tokens] where each token's end in it */
  double time_to_first_token;      /* seconds since it was submitted */
  double seconds;                  /* from its first token to its last */
  const double* token_seconds;     /* [num_tokens] since it was submitted, when each token came */
} skipdec_completion;

/* Completion ``index`` of a request that has ended (SKIPDEC_USAGE before). */
SKIPDEC_API skipdec_status skipdec_request_completion(skipdec_request* request, int64_t index,
                                                      const skipdec_completion** completion);
SKIPDEC_API skipdec_status skipdec_request_prompt(skipdec_request* request,
                                                  const int64_t** token_ids, size_t* num_tokens);
/* The schedule that it runs, in full; lives as long as the request. */
SKIPDEC_API skipdec_status skipdec_request_schedule(skipdec_request* request,
                                                    const char** schedule);
/* The layers, [count], lowest first, of a token that ran ``count`` of them, which is one of a
 * completion's ``layers``: a schedule has one set for each number. Lives as long as the request.
 * SKIPDEC_USAGE for a number that no token runs. */
SKIPDEC_API skipdec_status skipdec_request_layers(skipdec_request* request, int64_t count,
                                                  const int64_t** layers);

/* Cancels it if it runs, and frees it: its callback is not called any more. Waits for one that
 * runs, but within it. NULL is allowed. */
SKIPDEC_API void skipdec_request_release(skipdec_request* request);

/* ---- given texts ---- */

/* Log-probabilities of ``continuation`` behind ``prompt``, each token at the depth that generating
 * it has; waits for its turn between two steps. ``schedule`` as in skipdec_params. */
SKIPDEC_API skipdec_status skipdec_score_tokens(skipdec_engine* engine, const int64_t* prompt,
                                                size_t prompt_tokens, const int64_t* continuation,
                                                size_t continuation_tokens, const char* schedule,
                                                skipdec_score** score);
SKIPDEC_API skipdec_status skipdec_score_text(skipdec_engine* engine, const char* prompt,
                                              const char* continuation, const char* schedule,
                                              skipdec_score** score);

typedef struct skipdec_score_values {
  const int64_t* token_ids; /* [num_tokens] of the continuation; live until it is released */
  const double* logprobs;   /* [num_tokens] */
  const int64_t* layers;    /* [num_tokens] */
  size_t num_tokens;
} skipdec_score_values;

SKIPDEC_API const skipdec_score_values* skipdec_score_get(const skipdec_score* score);
SKIPDEC_API void skipdec_score_release(skipdec_score* score);

/* ---- text and tokens ---- */

/* The token ids of ``text``; ``token_ids`` has room for ``capacity``, ``num_tokens`` gets how many
 * there are (more than there is room for: the rest is left out). ``is_prompt``: with the prompt
 * template and special tokens. */
SKIPDEC_API skipdec_status skipdec_encode(skipdec_engine* engine, const char* text,
                                          int32_t is_prompt, int64_t* token_ids, size_t capacity,
                                          size_t* num_tokens);
/* The text of token ids, zero-ended; ``num_bytes`` gets its length without the zero (as snprintf).
 */
SKIPDEC_API skipdec_status skipdec_decode(skipdec_engine* engine, const int64_t* token_ids,
                                          size_t num_tokens, int32_t skip_special_tokens,
                                          char* text, size_t capacity, size_t* num_bytes);

#ifdef __cplusplus
}
#endif

#endif
