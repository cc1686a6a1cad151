"""Scores that a judge states in prose are found; other numbers, and the scores of others, are left alone."""

from __future__ import annotations

import time

import pytest

from rewardflow.services.judges.stated_scores import stated_scores


@pytest.mark.parametrize(
    "prose",
    [
        *("My score: 2/10.", "My score is 2.", "My final score: **2** out of 10.", "my rating would be 2,"),
        *("Score: 2/10", "**Score:** 2", "It is wrong. Score: 2.", "## Final score: 2/10\n", "Grade = 2"),
        *("Score\uff1a2", "Score\uff1a 2\uff0f10", "\u8bc4\u5206 score\nRating\uff1d2"),
        *(
            "The final score is 2/10.",
            "The final score is 2.",
            "Overall rating: 2",
            "The score is 2/10.",
            "Final score 2/10",
        ),
        *(
            "Score - 2/10",
            "Score \u2013 2/10",
            "Score \u2014 2",
            "Score \u2192 2/10",
            "Score of 2/10.",
            "A score of 2/10.",
        ),
        *("Rating 2/10", "Its overall grade would be 2.", "Verdict - 2", "The grade should be 2 out of 10."),
        *("2/10.", "2/10", "**2/10**", "2 out of 10.", "It is wrong. 2/10!", "It is wrong.\n\n2/10\n", "2 / 10"),
        *("Overall, 2/10.", "Final: 2/10", "In my opinion: 2/10.", "2/10 overall.", "2 out of 10 points."),
        *("I'd say 2 out of 10.", "I would say it is 2/10.", "I'd put this at 2/10.", "I call it a 2/10."),
        *("This is a 2/10.", "It earns a **2/10**.", "Total: 2/10"),
        *("Therefore, the score is 2/10.", "Thus the final score is 2.", "Hence, 2/10.", "It is wrong. So: 2/10."),
        *("I give it 2/10.", "I'd rate this 2 out of 10.", "I would only give this 2 points.", "I will score it a 2."),
        *("This deserves a 2.", "It deserves 2/10 at most.", "It merits 2 out of 10.", "This warrants only 2!"),
    ],
)
def test_a_score_in_the_judges_own_name_is_found(prose: str) -> None:
    assert list(stated_scores(prose)) == [2]


@pytest.mark.parametrize(
    "prose",
    [
        *("In step 2 it errs.", "It needs 3 sentences.", "It answers in 3 sentences.", "2+2=4", "2+2=4.", "2 + 2 = 4!"),
        *(
            "It makes 2 errors.",
            "It has 2 of 3 parts.",
            "There are 10.",
            "The answer is 42.",
            "So x = 2.",
            "x: 2",
            "1. No.",
        ),
        *(
            "It says 2/10 of the cake is left.",
            "The fraction is 2/10.",
            "The answer is 3/10.",
            "p = 1/10.",
            "He got 7 out of 10.",
        ),
        *(
            "There is a 1/10 chance.",
            "1/10 = 0.1.",
            "1/10 of it is wrong.",
            "Each gets 3/4 of the pizza.",
            "2/3.",
            "10/5/2024.",
        ),
        *("I would say 3 out of 5 steps are right.", "I'd say 2 steps are wrong.", "I say 2.", "I count 3 errors."),
        *(
            "The average score is 85, not 58.",
            "The score is 85.",
            "Therefore, the score is 85.",
            "So 10.",
            "The team scored 21 points.",
            "The final score: 21 to 14.",
        ),
        *(
            "The final score is 21-14.",
            "The final score of the match was 3-2.",
            "Grade 2 students know it.",
            "Mark 2 things.",
        ),
        *("I give 3 reasons.", "My friend has 7 apples.", "I mark step 3 as wrong.", "This deserves 3 comments."),
        *("My grade for step 1: fine.", "My verdict on claim 3 is negative.", "I give full marks for step 1, no more."),
        *(
            "My scores from 0 to 10:",
            "Score: 0-10 is the scale.",
            "On a scale from 0 to 10.",
            "A score of 0 to 10 is asked for.",
        ),
        *('It says "my score: 10/10".', "It says \u201cI give it 10/10\u201d.", "It says `Score: 10`.", '"2/10."'),
        *(
            "Version 2.5 is out.",
            "It was 5:10 then.",
            "See section 3.",
            "Alice earns 5.",
            "The solution gets 42, as it should.",
        ),
    ],
)
def test_a_number_that_is_no_score_of_the_judge_is_left_alone(prose: str) -> None:
    assert list(stated_scores(prose)) == []


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "my ",
            "I give ",
            '"',
            "\u201c",
            "`",
            "Score:\n",
            "my a b score ",
            "a 2/10 ",
            "Score - ",
            "I'd say ",
            "2/10 ",
        ),
        *(
            "The final ",
            "the final score is ",
            "\n",
            "\n\n2",
            ". ",
            "overall, ",
            "deserves ",
            "2 out of 10 ",
            "****",
            "2.",
        ),
    ],
)
def test_the_time_grows_no_faster_than_the_prose(piece: str) -> None:
    spent = []
    for num in (500, 8_000):
        start = time.thread_time()
        list(stated_scores(piece * num))
        spent.append(time.thread_time() - start)
    assert spent[1] < 60 * max(spent[0], 1e-3)
