"""Simulates a cluster in virtual time, with the real core of the schedulers and the real placement code of the routers.
The duration of a worker's steps comes from a linear model.
"""
