"""Simulates a cluster in virtual time. Schedulers and routers run their real core and placement code. The duration of a
worker's steps comes from a linear model.
"""
