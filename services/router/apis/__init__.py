"""The router's APIs, one package each. This package imports none of them, because some need optional libraries."""
