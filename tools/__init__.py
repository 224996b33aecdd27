"""Programs for the work on this project."""
