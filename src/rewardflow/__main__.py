"""Runs the command `rewardflow` as `python -m rewardflow`, for shells whose path lacks the script."""

from rewardflow.cli.entry import main

if __name__ == "__main__":
    main()
