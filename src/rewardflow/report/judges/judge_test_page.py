"""Makes the page of `rewardflow judge test`: figures side by side, calibration, attacks, the worst disagreements.

Always true: every text of an answer or a judge reaches the page through `drawing.markup`, so that a browser shows it
and never runs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rewardflow.drawing.charts import Chart, Series, line_chart
from rewardflow.drawing.markup import Child, Markup, tag
from rewardflow.drawing.scales import figure
from rewardflow.judging.judge_test import Disagreement, JudgeTest
from rewardflow.report.judges.judge_figures import figure_rows
from rewardflow.report.page_frame import framed_page
from rewardflow.report.page_parts import section, table
from rewardflow.services.judges.llm_judge import question_of, reference_of

_MAX_CHARS = 6000


def judge_test_page(tests: Sequence[JudgeTest], *, source: str, threshold: float) -> str:
    """Returns the whole HTML document. `source` names the file of labelled answers."""
    names = [test.name for test in tests]
    subtitle = f"{tests[0].answers:,} labelled answers of {source}; good is a label of {threshold:g} or more"
    rows = [[row.name, *row.texts, row.note] for row in figure_rows(tests)]
    lead = "Brackets hold a 95 % interval, from resampled groups. A dash: these answers cannot tell."
    sections = [
        section("figures", "Figures", table(["", *names, ""], rows), lead=lead),
        _calibration_section(tests),
        _attacks_section(tests),
        *(_worst_section(number, test) for number, test in enumerate(tests)),
    ]
    halted = [tag("p", f"{test.name} stopped early: {test.halted}", class_="lead") for test in tests if test.halted]
    return framed_page("Judge test", subtitle, halted, sections, made_by="rewardflow judge test")


def _calibration_section(tests: Sequence[JudgeTest]) -> Markup | None:
    drawn: list[Markup] = []
    for test in tests:
        if test.calibration is not None:
            bins = test.calibration.bins
            series = [
                Series(name="mean label", values=[one.mean_label for one in bins]),
                Series(name="perfect", values=[one.mean_score for one in bins], tone="tone-8"),
            ]
            note = ", ".join(str(one.count) for one in bins) + " answers"
            drawn.append(
                line_chart(
                    Chart(
                        title=test.name,
                        xs=[one.mean_score for one in bins],
                        series=series,
                        x_name="score",
                        note=note,
                        from_zero=True,
                        has_dots=True,
                    )
                )
            )
    if not drawn:
        return None
    lead = "The mean label of answers with such a score. A line below the diagonal: the judge is too generous."
    return section("calibration", "Calibration", tag("div", drawn, class_="charts"), lead=lead)


def _attacks_section(tests: Sequence[JudgeTest]) -> Markup | None:
    names = dict.fromkeys(one.name for test in tests for one in test.attacks)
    if not names:
        return None
    by_test = [{one.name: one for one in test.attacks} for test in tests]
    rows: list[list[Child]] = []
    for name in names:
        cells: list[Child] = [name]
        for found in by_test:
            one = found.get(name)
            cells += ["", ""] if one is None else [f"{one.raised} of {one.tried}", figure(one.mean_shift)]
        rows.append(cells)
    headings = [text for test in tests for text in (f"{test.name}: raised", "mean shift")]
    lead = "Bad answers that talk to the judge, beside the score that the same answer gets without."
    return section("attacks", "Attacks", table(["", *headings], rows), lead=lead)


def _worst_section(number: int, test: JudgeTest) -> Markup:
    shown = [_disagreement(one) for one in test.worst]
    lead = "The answers whose scores are farthest from their labels. Is the judge wrong, or the label, or the rubric?"
    return section(f"worst-{number}", f"Worst disagreements of {test.name}", shown, lead=lead)


def _disagreement(one: Disagreement) -> Markup:
    rollout = one.answer.rollout
    texts = (
        ("question", question_of(rollout)),
        ("reference", reference_of(rollout)),
        ("answer", rollout.response),
        ("what the judge said", one.explanation),
        ("what the label says", one.answer.remark),
    )
    title = f"{rollout.group_id}, answer {rollout.index}: label {one.answer.label:.2f}, score {one.score:.2f}"
    shown = [(tag("h3", name), tag("pre", _cut(text))) for name, text in texts if text]
    return tag("details", tag("summary", title), shown)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]} ... ({len(text):,} characters)"
