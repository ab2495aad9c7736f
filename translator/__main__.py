"""`python -m kvc` is `kvc`."""

from kvc.cli import main

if __name__ == "__main__":
    main()
