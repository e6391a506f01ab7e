"""How fast tenure is beside what a user would do without it, as ratios; `bench/compare.py` is the command."""
