"""Programs that the tests need and the build does not: fetched, and where they cannot be had the test is skipped aloud."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import tools  # noqa: E402


def needed(find, *arguments):
    """What a function of scripts/tools.py finds, as text."""
    try:
        return str(find(*arguments))
    except tools.Missing as missing:
        print(f"\nskipped: {missing}", file=sys.stderr)
        raise unittest.SkipTest(str(missing)) from None
