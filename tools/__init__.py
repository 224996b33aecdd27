"""Development tools of this project."""
