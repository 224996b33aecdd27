"""The tutorial, done by a reader who types what it says and sees what it shows."""
