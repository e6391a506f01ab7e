"""Real faults: worker processes and servers that are killed, frozen, stalled and cut off, and every history judged.

`python -m tenure.testing.chaos` plays them; a `Kind` is one sort of fault, `kinds.KINDS` names them all.
"""
