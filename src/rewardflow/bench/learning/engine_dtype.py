"""Names the dtypes that an engine of the learning benchmark rounds its weights to.

Always true: `float32` rounds nothing; the others give log-probs that differ from the trainer's, as those of vLLM do.
"""

from __future__ import annotations

from typing import Literal

EngineDtype = Literal["float32", "bfloat16", "float8_e4m3fn"]
ROUNDING_ENGINES: tuple[EngineDtype, ...] = ("bfloat16", "float8_e4m3fn")
