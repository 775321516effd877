"""A long run of mixed lawful traffic with the abuse in it, and what it leaves behind in each part."""
