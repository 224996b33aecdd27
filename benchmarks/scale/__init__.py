"""What one server carries, and what a Cluster does: ``make scale``."""
