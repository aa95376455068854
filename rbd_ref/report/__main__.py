"""`python -m rbd_ref.report`.

Tests: tests/test_report.py.
"""

import sys

from rbd_ref.report.page import main

if __name__ == "__main__":
    sys.exit(main())
