"""A fleet in virtual time: the real router, scheduler and worker streams in one process, without sockets or threads.

`python -m tests.virtual --help` runs it by seed; docs/testing.md says what it covers.
"""
