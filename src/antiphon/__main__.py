"""`python -m antiphon` is the command line."""

from antiphon.cli.app import main

if __name__ == "__main__":
    main()
