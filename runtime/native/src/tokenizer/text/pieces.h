// Scanners, each of which divides a text into pieces like one expression of a tokenizer.json.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace skipdec::runtime {

// Returns the end of the piece that starts at `text[start]`; `text` is valid UTF-8 and `start`
// before its end.
using Scanner = std::function<std::size_t(std::string_view text, std::size_t start)>;

// Returns the scanner of an expression, recognised by its exact text: that of GPT-2, Llama 3 or
// Qwen 2. Returns an empty function for any other.
Scanner scanner_of(std::string_view expression);

// The scanner of `ByteLevel` with use_regex, which is GPT-2's: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|
// ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t end_of_gpt2_piece(std::string_view text, std::size_t start);

// The scanners of `Digits`: a piece is one digit or a run of other characters; or a run of either.
std::size_t end_of_single_digits(std::string_view text, std::size_t start);
std::size_t end_of_digits(std::string_view text, std::size_t start);

// Returns the scanner of a `Metaspace` that splits: each piece except the first starts with
// `blank`.
Scanner scanner_before(std::string_view blank);

}  // namespace skipdec::runtime
