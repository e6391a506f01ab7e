"""`python -m tenure` is `tenure`."""

from tenure.cli import main

if __name__ == "__main__":
    main()
