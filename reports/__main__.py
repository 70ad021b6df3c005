"""`python -m reports RUN...`."""

import sys

from reports.cli import main

sys.exit(main())
