"""Relational terms: schemas, views, signed bags, substitution and the fragments that one source can answer. No I/O."""
