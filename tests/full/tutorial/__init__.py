"""The tutorial and the demo, as a reader uses them on terminals."""
