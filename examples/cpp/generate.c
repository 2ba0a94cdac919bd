/* Streams a completion of a prompt token by token, in C99:
 *
 *   generate-c opt-1.3b-int8 "The capital of France is" 4x
 */
#include <skipdec/skipdec.h>
#include <stdio.h>

static int failed(void) {
  fprintf(stderr, "error: %s\n", skipdec_last_error());
  return 1;
}

static int run(skipdec_engine* engine, const char* prompt, const char* schedule) {
  skipdec_params params;
  skipdec_params_init(&params, sizeof params);
  params.max_tokens = 32;
  params.temperature = 0;
  params.schedule = schedule;

  skipdec_request* request;
  if (skipdec_submit_text(engine, prompt, &params, &request) != SKIPDEC_OK) return failed();
  const skipdec_delta* delta;
  skipdec_status status;
  while ((status = skipdec_request_next(request, -1, &delta)) == SKIPDEC_OK) {
    fputs(delta->text, stdout);
    fflush(stdout);
  }
  puts("");
  const int code = status == SKIPDEC_END ? 0 : failed();
  skipdec_request_release(request);
  return code;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fputs("usage: generate-c BUNDLE PROMPT SCHEDULE\n", stderr);
    return 2;
  }
  skipdec_engine* engine;
  if (skipdec_engine_open(argv[1], NULL, &engine) != SKIPDEC_OK) return failed();
  const int code = run(engine, argv[2], argv[3]);
  skipdec_engine_close(engine);
  return code;
}
