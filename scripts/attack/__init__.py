"""Attacks on exports, bundles and runs, to be run by hand; `.ci/run` runs a short form of each."""
