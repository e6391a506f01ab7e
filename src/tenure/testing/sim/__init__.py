"""A simulator: the real code on a seeded virtual clock and a store that goes wrong, every history judged."""
