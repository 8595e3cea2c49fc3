"""`python -m triolet`: the `triolet` command."""

from .api.cli import main

if __name__ == "__main__":
    main()
