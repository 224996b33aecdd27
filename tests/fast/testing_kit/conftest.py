collect_ignore = ["sample"]  # a project of its own, whose tests `test_sample` runs
