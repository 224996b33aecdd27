"""The tutorial, executed by a simulated reader who follows each step and compares the output."""
