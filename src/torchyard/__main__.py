"""`python -m torchyard` is the same program as `torchyard`."""

from torchyard.cli.main import main

if __name__ == "__main__":
    main()
