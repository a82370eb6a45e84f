"""``python -m headlab`` is the ``headlab`` command."""

from headlab.cli.app import main

if __name__ == "__main__":
    main()
