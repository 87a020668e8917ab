// A headless Chromium that a test drives through its debugging pipe: pages, scripts, screenshots,
// and everything that a page complained of or asked the network for.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/scratch.h"

namespace brine::tests {

class Browser {
 public:
  // The program's path; "" where no Chromium is installed.
  static std::string program();

  // Opens a page of a file and waits until it was loaded. Throws when the browser does not answer.
  Browser(const std::string& file, int width, int height);
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // The value of an expression, which may be a promise. Throws with the page's message if it
  // throws.
  nlohmann::json evaluate(const std::string& expression);
  // Another width of the window, at one pixel for a CSS pixel.
  void resize(int width, int height);
  // "light" or "dark".
  void prefer(const std::string& scheme);
  void press(const std::string& key);
  std::string screenshot();  // PNG of the whole page
  std::string printed();     // PDF

  // Errors and warnings of the console, uncaught exceptions.
  const std::vector<std::string>& complaints() const { return complaints_; }
  // Addresses other than the page's and data: and blob: ones.
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  nlohmann::json call(const std::string& method, const nlohmann::json& parameters);
  nlohmann::json read();
  void note(const nlohmann::json& event);
  void start();

  test::Scratch profile_;
  pid_t process_ = -1;
  int in_ = -1, out_ = -1;  // to the browser, and from it
  std::string unread_, session_, address_;
  int64_t calls_ = 0;
  bool loaded_ = false;
  std::vector<std::string> complaints_, requests_;
};

// The bytes of base64.
std::string from_base64(const std::string& text);

}  // namespace brine::tests
