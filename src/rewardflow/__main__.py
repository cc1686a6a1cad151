"""`python -m rewardflow` is the command `rewardflow`, also where its script is not on the path."""

import sys

from rewardflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
