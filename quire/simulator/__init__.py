"""A cluster in virtual time: the schedulers' real core and the routers' real placement, with workers that take as long
as a linear model says that they do.
"""
