"""Runs the command `rewardflow` as `python -m rewardflow`, for shells whose path lacks the script."""

import sys

from rewardflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
