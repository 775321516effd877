"""The kinds of weight that operations compute with: floats, fp8, int8 and int4."""
