"""What bench_cpu.py measures, a file for each kind of figure."""
