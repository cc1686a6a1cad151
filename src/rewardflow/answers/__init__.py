"""Reads files of answers and writes files of verdicts, as JSONL or parquet.

rows = list(read_answers("answers.jsonl"))
write_verdicts("verdicts.parquet", [JudgedAnswer(row, reward) for row, reward in ...])
"""

from rewardflow.answers.answer_row import Answer, BadRow, JudgedAnswer
from rewardflow.answers.reading import first_rows, read_answers
from rewardflow.answers.row_files import check_format
from rewardflow.answers.writing import write_verdicts

__all__ = ["Answer", "BadRow", "JudgedAnswer", "check_format", "first_rows", "read_answers", "write_verdicts"]
