"""Golden numbers: what known implementations make of a small fixed input, kept as numbers with source."""
