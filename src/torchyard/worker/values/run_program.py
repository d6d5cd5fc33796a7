"""The file that Python runs to profile a program: make `torchyard.worker` importable and continue.

Run by path as ``python .../run_program.py PLAN -- SCRIPT ARGUMENTS...``. PLAN is a JSON file:
options, where the result goes, and whether to profile values or run natively.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))
if sys.path and sys.path[0] and os.path.realpath(sys.path[0]) == os.path.realpath(_here):
    del sys.path[0]
# As in worker/boot.py: only `torchyard` itself becomes importable, and this one wins.
_spec = ModuleSpec("torchyard", None, is_package=True)
_spec.submodule_search_locations = [os.path.dirname(os.path.dirname(_here))]
sys.modules["torchyard"] = module_from_spec(_spec)

if __name__ == "__main__":
    from torchyard.worker.values.program import main

    sys.exit(main(sys.argv[1], sys.argv[3:]))
