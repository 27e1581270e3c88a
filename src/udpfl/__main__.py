"""`python -m udpfl`: the command, where it is not on the path."""

from udpfl.cli import main

if __name__ == "__main__":
    main()
