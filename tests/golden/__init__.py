"""Golden numbers: what known implementations make of a small fixed input, kept as numbers with source.

Each .json and .safetensors file says which repository, commit and functions its numbers come from, and has their
input beside them; `replay` plays our code on it. The scripts that made the files run the authors' code from a
checkout, which no test can do. They stand in the history: `git show 6a9530a2:tests/golden/fdse.py`, and likewise
contrast, fedbr, fedka, fedsb, ga, invariant, make_drift, mixing, personal, style and testtime.
"""
