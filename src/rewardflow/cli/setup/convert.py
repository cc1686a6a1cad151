"""`rewardflow convert`: writes published data sets in the layout that training reads.

Always true: the command writes the whole output or leaves the old file as it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rewardflow.cli.safe_text import safe
from rewardflow.data.convert_gsm8k import convert_gsm8k
from rewardflow.errors import InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads a data set as its authors publish it and writes JSONL or parquet in verl's column layout."
    )
    datasets = parser.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    gsm8k = datasets.add_parser("gsm8k", help="GSM8K's own JSONL, with `question` and `answer`")
    gsm8k.add_argument("source", metavar="SOURCE", help="train.jsonl or test.jsonl")
    gsm8k.add_argument("target", metavar="TARGET", help="the file to write, .jsonl or .parquet")
    gsm8k.add_argument("--split", metavar="NAME", help="the value of extra_info.split (the name of SOURCE)")


def run(args: argparse.Namespace) -> int:
    source, target = Path(args.source), Path(args.target)
    if target.exists() and source.exists() and target.samefile(source):
        raise InvalidInput(f"TARGET must be a file other than SOURCE, got {target}")
    num_rows = convert_gsm8k(source, target, split=args.split or source.stem)
    sys.stdout.write(f"wrote {num_rows:,} rows to {safe(str(target))}\n")
    return 0
