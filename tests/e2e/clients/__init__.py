"""Programs as people write them with other libraries, run in an environment of their own (`make clients`): what those
libraries need would hold back what Quire is developed with. Each takes a base URL, a model and parts; it prints JSON.
"""
