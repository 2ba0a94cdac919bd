#include "json/events.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace skipdec::runtime {
namespace {

class Reader {
 public:
  Reader(const Document& document, const JsonLimits& limits, JsonEvents& events)
      : document_(document), limits_(limits), events_(events) {}

  [[noreturn]] void refuse(const std::string& problem) const { document_.refuse("", problem); }

  // Callbacks of nlohmann::json::sax_parse; they return true to continue.
  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(std::int64_t value) { return scalar(value); }
  bool number_unsigned(std::uint64_t value) { return scalar(value); }
  bool number_float(double value, const std::string& written) {
    if (written.find_first_of(".eE") == std::string::npos)
      refuse("holds the integer " + written.substr(0, 40) + "; allowed: integers of 64 bits");
    return scalar(value);
  }

  bool string(std::string& value) {
    count_value();
    events_.on_string(value);
    return true;
  }

  bool binary(const nlohmann::json::binary_t& /*value*/) const { refuse("holds binary data"); }

  bool start_object(std::size_t /*elements*/) { return start(true); }
  bool end_object() { return end(true); }
  bool start_array(std::size_t /*elements*/) { return start(false); }
  bool end_array() { return end(false); }

  bool key(std::string& value) {
    count();
    events_.on_key(value);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) const {
    constexpr int kOutOfRange = 406;  // nlohmann's error code for an infinite float
    if (error.id == kOutOfRange) refuse("holds a number beyond the range of a double");
    refuse("is not JSON: the text breaks off or goes wrong at byte " + std::to_string(position));
  }

 private:
  void count() {
    if (++values_ > limits_.max_values)
      refuse("holds more than " + std::to_string(limits_.max_values) + " values");
  }

  void count_value() {
    count();
    if (depth_ >= limits_.max_nesting)
      refuse("is nested deeper than " + std::to_string(limits_.max_nesting) + " levels");
  }

  bool scalar(const nlohmann::json& value) {
    count_value();
    events_.on_scalar(value);
    return true;
  }

  bool start(bool is_object) {
    count_value();
    ++depth_;
    events_.on_start(is_object);
    return true;
  }

  bool end(bool is_object) {
    --depth_;
    events_.on_end(is_object);
    return true;
  }

  const Document& document_;
  const JsonLimits& limits_;
  JsonEvents& events_;
  std::size_t depth_ = 0;
  std::size_t values_ = 0;
};

}  // namespace

void read_json(std::string_view text, const Document& document, const JsonLimits& limits,
               JsonEvents& events) {
  Reader reader(document, limits, events);
  if (text.size() > limits.max_bytes)
    reader.refuse("is larger than " + std::to_string(limits.max_bytes) + " bytes, the limit");
  // nlohmann would stop at the first NUL.
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos)
    reader.refuse("is not JSON: byte " + std::to_string(nul + 1) + " is NUL");
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
}

}  // namespace skipdec::runtime
