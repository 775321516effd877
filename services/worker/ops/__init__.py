"""Device operations behind the models: one interface, one implementation per kind of device."""
