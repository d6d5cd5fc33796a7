"""Run Torchyard as `python -m torchyard`."""

from torchyard.cli.main import main

if __name__ == "__main__":
    main()
