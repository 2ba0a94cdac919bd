"""libskipdec, the runtime in C++: where it is installed, and what runs it from Python."""
