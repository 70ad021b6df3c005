"""Lets `python -m harness.zoo` work."""

import sys

from harness.zoo.cli import main

sys.exit(main())
