"""What the C++ library is checked against, and what it compiles that is written by a program."""
