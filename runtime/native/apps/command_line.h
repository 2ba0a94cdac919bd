// A command-line parser; each option has a name, a reader of its value, and a line of help.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace skipdec::apps {

struct Option {
  std::string name;     // "--max-tokens"
  std::string letter;   // "-p", or ""
  std::string metavar;  // "N"; "" for a switch, which has no value
  std::string help;
  std::function<void(const std::string& value)> read;  // throws BadValue
};

// Reports an invalid value; the message says what is allowed.
class BadValue : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Parses arguments and collects all problems.
class CommandLine {
 public:
  explicit CommandLine(std::vector<Option> options) : options_(std::move(options)) {}

  // Reads each option's value and returns the positional arguments in order. ``--`` ends the
  // options.
  std::vector<std::string> read(const std::vector<std::string>& arguments) {
    std::vector<std::string> others;
    for (std::size_t place = 0; place < arguments.size(); ++place) {
      const std::string& argument = arguments[place];
      if (argument == "--") {
        others.insert(others.end(), arguments.begin() + static_cast<std::ptrdiff_t>(place) + 1,
                      arguments.end());
        break;
      }
      if (argument.size() < 2 || argument[0] != '-') {
        others.push_back(argument);
      } else {
        place += read_option(arguments, place);
      }
    }
    return others;
  }

  const std::vector<std::string>& problems() const { return problems_; }

  std::string help() const {
    std::string text;
    for (const Option& option : options_) {
      std::string left = "  " + option.name;
      if (!option.letter.empty()) left += ", " + option.letter;
      if (!option.metavar.empty()) left += " " + option.metavar;
      left.resize(left.size() < kHelpColumn ? kHelpColumn : left.size() + 2, ' ');
      text += left + option.help + "\n";
    }
    return text;
  }

 private:
  static constexpr std::size_t kHelpColumn = 34;

  // Returns the number of further arguments that the option at ``place`` consumed.
  std::size_t read_option(const std::vector<std::string>& arguments, std::size_t place) {
    const std::string& argument = arguments[place];
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const Option* option = find(name);
    if (option == nullptr) {
      problems_.push_back(name + " is unknown; allowed: " + names());
      return 0;
    }
    const bool has_equals = equals != std::string::npos;
    if (option->metavar.empty()) {
      if (has_equals) problems_.push_back(name + " has a value; allowed: " + name + " alone");
      option->read("");
      return 0;
    }
    if (!has_equals && place + 1 == arguments.size()) {
      problems_.push_back(name + " needs a value, " + option->metavar);
      return 0;
    }
    const std::string value = has_equals ? argument.substr(equals + 1) : arguments[place + 1];
    try {
      option->read(value);
    } catch (const BadValue& bad) {
      problems_.push_back(name + " is '" + value + "'; allowed: " + bad.what());
    }
    return has_equals ? 0 : 1;
  }

  const Option* find(const std::string& name) const {
    for (const Option& option : options_) {
      if (name == option.name || (name == option.letter && !name.empty())) return &option;
    }
    return nullptr;
  }

  std::string names() const {
    std::string text;
    for (const Option& option : options_) text += (text.empty() ? "" : ", ") + option.name;
    return text;
  }

  std::vector<Option> options_;
  std::vector<std::string> problems_;
};

// Parses all of ``text`` as a number, independent of the locale. Throws BadValue.
template <class Number>
Number parse_number(const std::string& text, const char* allowed) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) throw BadValue(allowed);
  return number;
}

// Also refuses the smallest integer, which marks an option that is not given.
inline std::int64_t parse_integer(const std::string& text) {
  const auto number = parse_number<std::int64_t>(text, "an integer");
  if (number == INT64_MIN) throw BadValue("an integer above -2**63");
  return number;
}

inline double parse_real(const std::string& text) {
  const auto number = parse_number<double>(text, "a number");
  if (!std::isfinite(number)) throw BadValue("a finite number");
  return number;
}

// Returns ``text`` with ASCII letters in lower case.
inline std::string lowered(std::string text) {
  for (char& letter : text)
    letter = static_cast<char>(letter | ('A' <= letter && letter <= 'Z' ? 32 : 0));
  return text;
}

// Parses a number of bytes: 512MiB, 1.5GiB, 2GB, 1000000. Throws BadValue.
inline std::uint64_t parse_size(const std::string& text) {
  constexpr const char* kAllowed = "e.g. 512MiB, 1.5GiB, 2GB, 1000000";
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr Unit kUnits[] = {
      {"", 1},     {"b", 1},     {"k", 1e3},       {"kb", 1e3},     {"kib", 1024},
      {"m", 1e6},  {"mb", 1e6},  {"mib", 1048576}, {"g", 1e9},      {"gb", 1e9},
      {"t", 1e12}, {"tb", 1e12}, {"gib", 0x1p30},  {"tib", 0x1p40},
  };
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::size_t letters = text.find_first_not_of(' ', digits);
  const std::string unit = lowered(letters == std::string::npos ? "" : text.substr(letters));
  const auto count = parse_number<double>(text.substr(0, digits), kAllowed);
  for (const Unit& known : kUnits) {
    if (unit == known.name && count * known.bytes >= 1 && count * known.bytes < 0x1p63) {
      return static_cast<std::uint64_t>(count * known.bytes);
    }
  }
  throw BadValue(kAllowed);
}

}  // namespace skipdec::apps
