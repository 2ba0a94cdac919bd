// Samples as requested by records on standard input, for test_sampling.py: one line of tokens each.
//
// A record is numbers of eight bytes (see `read_params`), token ids, and logits float32
// [steps, vocab_size].
#include <cstdint>
#include <cstdio>
#include <vector>

#include "errors.h"
#include "tokens/sampler.h"

namespace skipdec::runtime {
namespace {

template <class Number>
bool read(Number& number) {
  return std::fread(&number, sizeof number, 1, stdin) == 1;
}

template <class Number>
Number next() {
  Number number{};
  if (!read(number)) throw std::runtime_error("a record ends early");
  return number;
}

template <class Number>
std::vector<Number> next_numbers() {
  std::vector<Number> numbers(static_cast<std::size_t>(next<std::int64_t>()));
  for (Number& number : numbers) number = next<Number>();
  return numbers;
}

template <class Number>
std::optional<Number> next_optional() {
  const auto has_one = next<std::int64_t>();
  const auto number = next<Number>();
  return has_one != 0 ? std::optional<Number>(number) : std::nullopt;
}

SamplingParams read_params() {
  SamplingParams params;
  for (double* number :
       {&params.temperature, &params.top_p, &params.min_p, &params.repetition_penalty,
        &params.presence_penalty, &params.frequency_penalty}) {
    *number = next<double>();
  }
  for (std::int64_t* number : {&params.max_tokens, &params.top_k, &params.n, &params.min_tokens}) {
    *number = next<std::int64_t>();
  }
  params.ignore_eos = next<std::int64_t>() != 0;
  params.seed = next_optional<std::uint64_t>();
  params.logprobs = next_optional<std::int64_t>();
  params.stop_token_ids = next_numbers<std::int64_t>();
  return params;
}

void print(const SampledToken& token) {
  std::printf("%lld", static_cast<long long>(token.token_id));
  for (const Logprob& entry : token.logprobs) {
    std::printf(" %lld:%lld:%.17g", static_cast<long long>(entry.token_id),
                static_cast<long long>(entry.rank), entry.logprob);
  }
  std::printf(";");
}

void answer(std::int64_t vocab_size) {
  const auto output_index = next<std::int64_t>();
  const auto end_token_ids = next_numbers<std::int64_t>();
  const SamplingParams params = read_params();
  const auto prompt = next_numbers<std::int64_t>();
  const auto logits = next_numbers<float>();
  try {
    params.check(vocab_size, end_token_ids);
    Sampler sampler(params, prompt, vocab_size, output_index, end_token_ids);
    const auto row_size = static_cast<std::size_t>(vocab_size);
    for (std::size_t start = 0; start < logits.size(); start += row_size) {
      print(sampler.sample(logits.data() + start));
    }
  } catch (const Error& error) {
    std::printf("%s", error.what());
  }
  std::printf("%c", '\0');
}

}  // namespace
}  // namespace skipdec::runtime

int main() {
  std::int64_t vocab_size = 0;
  while (skipdec::runtime::read(vocab_size)) skipdec::runtime::answer(vocab_size);
  return 0;
}
