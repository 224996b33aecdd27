collect_ignore = ["sample"]  # another project, whose tests are run by `test_sample`
