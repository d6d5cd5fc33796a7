"""A build backend that needs no other package, so that installing needs no network."""

import zipfile
from pathlib import Path

NAME = "torchyard_tiny_extra"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the wheel and give its name."""
    info = f"{NAME}-1.0.dist-info"
    files = {
        f"{NAME}.py": Path(f"{NAME}.py").read_text(encoding="utf-8"),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: torchyard-tiny-extra\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: one\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    wheel = f"{NAME}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory, wheel), "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return wheel
