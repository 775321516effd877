"""A soak test: long mixed traffic together with the attacks of benchmarks.abuse, to find leaks in each part."""
