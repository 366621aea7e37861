"""`python -m treeopt` is the command `treeopt`."""

from treeopt.cli import main

if __name__ == "__main__":
    main()
