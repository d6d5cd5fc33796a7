"""Installs what the model needs, as the real project's files do."""

import subprocess
import sys

if __name__ == "__main__":
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "-r", "requirements.txt"])
