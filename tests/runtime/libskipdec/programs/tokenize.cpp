// Encodes and decodes records from standard input, for comparison with the `tokenizers` package.
//
//   tokenize TOKENIZER_JSON
//
// A record is a letter, the number of bytes in decimal, a newline, and the bytes. Each gets one
// line:
//   e TEXT  tokens with special tokens, "|", tokens without them, "|", least_tokens
//   d IDS   (decimal, separated by blanks) the text without and with special tokens, then the
//           pieces of an incremental decoder without and with them; all in hexadecimal, separated
//           by blanks
//   n TEXT  the normalized text, in hexadecimal
//   p TEXT  lengths, in bytes, of the pieces into which a text is split that is neither normalized
//           nor searched for added tokens
//   m TEXT  seconds for encoding, and the number of tokens
// The first line is the number of seconds for reading the file. If the file or a text is refused,
// the line is "error ", the status and the message.

#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"
#include "tokenizer/file/parts.h"
#include "tokenizer/incremental_decoder.h"
#include "tokenizer/tokenizer.h"

namespace skipdec::runtime {
namespace {

std::string hexadecimal(const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string written = "x";
  for (const char byte : text) {
    written += kDigits[static_cast<std::uint8_t>(byte) >> 4U];
    written += kDigits[static_cast<std::uint8_t>(byte) & 0xFU];
  }
  return written;
}

void encode(const Tokenizer& tokenizer, const std::string& text) {
  for (const bool special : {true, false}) {
    for (const std::int64_t token_id : tokenizer.encode(text, special))
      std::cout << token_id << ' ';
    std::cout << "| ";
  }
  std::cout << tokenizer.least_tokens(text);
}

void decode(const Tokenizer& tokenizer, const std::string& text) {
  std::istringstream numbers(text);
  const std::vector<std::int64_t> token_ids{std::istream_iterator<std::int64_t>(numbers), {}};
  for (const bool skip : {true, false})
    std::cout << hexadecimal(tokenizer.decode(token_ids, skip)) << ' ';
  for (const bool skip : {true, false}) {
    IncrementalDecoder decoder(tokenizer, skip);
    for (const std::int64_t token_id : token_ids)
      std::cout << hexadecimal(decoder.push(token_id)) << ' ';
    std::cout << hexadecimal(decoder.flush()) << ' ';
  }
}

void pieces(const PreTokenizer& pre_tokenizer, const std::string& text) {
  pre_tokenizer.divide(text, true,
                       [](std::string_view piece) { std::cout << piece.size() << ' '; });
}

// Prints the seconds that encoding takes, and the number of tokens.
void measure(const Tokenizer& tokenizer, const std::string& text) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const std::size_t num_tokens = tokenizer.encode(text, false).size();
  const std::chrono::duration<double> seconds = Clock::now() - start;
  std::cout << seconds.count() << ' ' << num_tokens;
}

void answer(const Tokenizer& tokenizer, const TokenizerParts& parts, char command,
            const std::string& content) {
  if (command == 'e') encode(tokenizer, content);
  if (command == 'd') decode(tokenizer, content);
  if (command == 'n') std::cout << hexadecimal(parts.normalizer.normalized(content));
  if (command == 'p') pieces(parts.pre_tokenizer, content);
  if (command == 'm') measure(tokenizer, content);
}

int run(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = Tokenizer::parse(json, "tokenizer.json", std::nullopt);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << seconds.count() << '\n';
  const TokenizerParts parts = read_tokenizer(json, "tokenizer.json");
  char command = 0;
  std::size_t size = 0;
  while (std::cin >> command >> size && std::cin.get() == '\n') {
    std::string content(size, '\0');
    std::cin.read(content.data(), static_cast<std::streamsize>(size));
    try {
      answer(*tokenizer, parts, command, content);
    } catch (const Error& error) {
      std::cout << "error " << static_cast<int>(error.status()) << ' ' << error.what();
    }
    std::cout << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace skipdec::runtime

int main(int count, char** arguments) {
  std::ios::sync_with_stdio(false);
  try {
    return count == 2 ? skipdec::runtime::run(arguments[1]) : 2;
  } catch (const skipdec::runtime::Error& error) {
    std::cout << "error " << static_cast<int>(error.status()) << ' ' << error.what() << '\n';
    return 1;
  }
}
