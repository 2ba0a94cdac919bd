"""Reference implementations for the C++ library, and generators of its sources."""
