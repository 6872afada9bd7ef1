"""Several engines on one file, on one thread at a time and a virtual clock: a seed decides what happens when.

Everything of the engine is the real thing, down to the SQLite file; only threads, time and kills are the
simulation's. `python -m tests.simulation --seed 7` replays a run.
"""
