"""`make test-steady`: runs the tests that start processes many times, on an idle machine and on slow ones."""
