"""The reward: one function that scores one completion. A real one would ask a service."""


async def compute_score(response: str, ground_truth: str) -> float:
    right = sum(said == wanted for said, wanted in zip(response.strip(), ground_truth, strict=False))
    return right / len(ground_truth)
