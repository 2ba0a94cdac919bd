"""What bench_peers.py runs beside skipdec, and how it judges."""
