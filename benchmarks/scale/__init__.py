"""``make scale``: the load that one server carries, and three."""
