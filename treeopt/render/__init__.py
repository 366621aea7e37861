"""Reports for a terminal, one file per command. Nothing here computes, and only `treeopt.cli` calls it."""
