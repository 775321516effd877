"""`make test-steady`: the tests that start processes, again and again, as fast and as slow as a machine may be."""
