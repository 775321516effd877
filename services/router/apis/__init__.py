"""The APIs of a router, a package each. This package imports none of them: some need more libraries than others."""
