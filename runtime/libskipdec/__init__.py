"""libskipdec, the C++ runtime: its installed files, and programs that run it from Python."""
