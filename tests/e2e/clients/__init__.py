"""Typical programs with other client libraries. They run in a separate environment (`make clients`), because these
libraries need older versions of packages that Quire's development uses. Each program takes a base URL, a model and the
parts to run, and prints JSON.
"""
