"""``python -m pdips.cli``."""

from pdips.cli import main

if __name__ == "__main__":
    main()
