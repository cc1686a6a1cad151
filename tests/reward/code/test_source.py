"""Finding and building rewards: what works, and what every mistake says."""

from __future__ import annotations

import functools
import pickle
import sys
import textwrap
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import RewardLoadError
from rewardflow.reward.code.source import RewardSource

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file into this test's folder."""

    def write(source: str, name: str = "judge.py", folder: str = ".") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), "utf-8")
        return path

    return write


@pytest.fixture
def package(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package on sys.path, under a name that no other test uses."""
    name = f"pkg_{uuid.uuid4().hex}"
    write("def compute_score(solution_str):\n    return len(solution_str)\n", "judge.py", name)
    write("import nowhere_to_be_found\n", "broken.py", name)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def compute_score(solution_str: str, scale: float = 1.0) -> float:
    return scale * len(solution_str)


class Judge:
    def __init__(self, model: str, scale: float = 1.0) -> None:
        self.model = model
        self.scale = scale

    def compute_score(self, solution_str: str) -> float:
        return self.scale * len(solution_str)


PROMPT = "not a reward"


def identity(reward: Any, **kwargs: Any) -> str:
    return RewardSource.of(reward, kwargs).find().identity


def error_of(reward: Any, kwargs: dict[str, Any] | None = None) -> str:
    with pytest.raises(RewardLoadError) as raised:
        RewardSource.of(reward, kwargs).find()
    return str(raised.value)


# -- finding --


def test_a_file_and_a_name_give_the_function(write: Write) -> None:
    path = write("def rate(solution_str):\n    return 7.0\n")
    source = RewardSource.of(f"{path}:rate")
    assert source.build()(solution_str="x") == 7.0
    assert source.name == "judge.py:rate"


def test_a_file_alone_means_its_compute_score(write: Write) -> None:
    path = write("def helper(): ...\ndef compute_score(solution_str):\n    return 7.0\n")
    for reward in (str(path), path, f"{path}:"):
        assert RewardSource.of(reward).build()(solution_str="x") == 7.0
        assert RewardSource.of(reward).name == "judge.py:compute_score"


def test_a_module_and_a_name_give_the_function(package: str) -> None:
    source = RewardSource.of(f"{package}.judge:compute_score")
    assert source.build()(solution_str="abc") == 3
    assert source.name == f"{package}.judge:compute_score"


def test_an_object_is_taken_as_it_is_and_named_by_its_module() -> None:
    assert RewardSource.of(compute_score).find().target is compute_score
    assert RewardSource.of(compute_score).name == f"{__name__}:compute_score"
    assert RewardSource.of(Judge("m")).name == f"{__name__}:Judge"
    assert RewardSource.of(functools.partial(compute_score, scale=2)).name == f"{__name__}:compute_score"
    assert RewardSource.of(Judge("m").compute_score).name == f"{__name__}:Judge.compute_score"


def test_a_class_is_built_with_its_reward_kwargs() -> None:
    judge = RewardSource.of(Judge, {"model": "small", "scale": 2.0}).find().target
    assert isinstance(judge, Judge)
    assert (judge.model, judge.scale) == ("small", 2.0)


def test_files_of_the_same_name_in_two_folders_do_not_collide(write: Write) -> None:
    one = RewardSource.of(f"{write('def f(solution_str): return 1.0', folder='one')}:f")
    two = RewardSource.of(f"{write('def f(solution_str): return 2.0', folder='two')}:f")
    assert (one.build()(solution_str=""), two.build()(solution_str="")) == (1.0, 2.0)
    assert one.name == two.name


def test_an_edited_file_is_loaded_anew_and_an_unchanged_one_is_not(write: Write) -> None:
    spec = f"{write('def f(solution_str): return 1.0')}:f"
    first = RewardSource.of(spec).find().target
    assert RewardSource.of(spec).find().target is first
    write("def f(solution_str): return 2.0")
    assert RewardSource.of(spec).build()(solution_str="") == 2.0


def test_dataclasses_and_pickling_work_inside_a_file(write: Write) -> None:
    path = write(
        """
        from __future__ import annotations
        import pickle
        from dataclasses import dataclass

        @dataclass
        class Verdict:
            score: float

        def compute_score(solution_str):
            return pickle.loads(pickle.dumps(Verdict(0.5))).score
        """
    )
    assert RewardSource.of(path).build()(solution_str="") == 0.5


def test_a_relative_path_is_found_from_another_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("def f(solution_str): return 1.0")
    monkeypatch.chdir(tmp_path)
    source = RewardSource.of("judge.py:f")
    monkeypatch.chdir("/")
    assert source.build()(solution_str="") == 1.0


def test_a_source_survives_pickling(write: Write) -> None:
    path = write(
        "class Judge:\n    def __init__(self, n): self.n = n\n    def compute_score(self, rollout): return self.n"
    )
    source = pickle.loads(pickle.dumps(RewardSource.of(f"{path}:Judge", {"n": 3})))
    assert source.build()(rollout=None) == 3
    assert pickle.loads(pickle.dumps(RewardSource.of(compute_score))).find().target is compute_score


def test_a_source_of_a_source_adds_settings() -> None:
    source = RewardSource.of(RewardSource.of(Judge, {"model": "small"}), {"scale": 3.0})
    assert source.kwargs == {"model": "small", "scale": 3.0}


# -- mistakes --


def test_a_missing_file_names_the_absolute_path_and_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = error_of("rewards/judge.py:f")
    assert str(tmp_path / "rewards" / "judge.py") in message
    assert f"the working directory is {tmp_path}" in message


@pytest.mark.parametrize("spec", ["judge", "package.module.name", "", ":f"])
def test_a_spec_without_place_and_name_says_how_rewards_are_named(spec: str) -> None:
    assert "'file.py:name' or 'package.module:name'" in error_of(spec)


def test_a_file_without_compute_score_says_which_names_it_has(write: Write) -> None:
    message = error_of(
        write("import json\nfrom pathlib import Path\ndef rate(): ...\nclass Judge: ...\ndef _private(): ...")
    )
    assert "has no 'compute_score'; it has " in message
    assert {"rate", "Judge"} == {name.strip() for name in message.rpartition("it has ")[2].split(",")}


def test_a_name_that_is_not_there_lists_what_is_with_the_nearest_first(write: Write) -> None:
    path = write("def alpha(): ...\ndef compute_scores(): ...\ndef zeta(): ...")
    assert "has no 'compute_score'; it has compute_scores, " in error_of(f"{path}:compute_score")


def test_a_long_list_of_names_is_cut(write: Write) -> None:
    path = write("\n".join(f"def f{i}(): ..." for i in range(30)))
    assert "and 20 more" in error_of(f"{path}:g")


def test_an_import_that_raises_names_file_and_line_and_chains_the_original(write: Write) -> None:
    path = write("import json\n\njson.loads('{')\n")
    with pytest.raises(RewardLoadError, match="line 3") as raised:
        RewardSource.of(path).find()
    assert f"importing {path} raised JSONDecodeError" in str(raised.value)
    assert isinstance(raised.value.__cause__, ValueError)
    assert str(path) not in [getattr(module, "__file__", None) for module in list(sys.modules.values())]


def test_a_file_that_failed_to_import_is_tried_again(write: Write) -> None:
    path = write(
        "import os\nif 'READY_FOR_TEST' not in os.environ: raise OSError('not ready')\ndef compute_score(rollout): ..."
    )
    assert "OSError: not ready" in error_of(path)
    assert "OSError: not ready" in error_of(path)


def test_a_syntax_error_names_its_line(write: Write) -> None:
    path = write("x = 1\ndef compute_score(:\n")
    message = error_of(path)
    assert "SyntaxError" in message
    assert f"({path}, line 2)" in message


def test_a_file_that_exits_is_an_error_and_not_an_exit(write: Write) -> None:
    assert "SystemExit: 2" in error_of(write("import sys\nsys.exit(2)"))


def test_a_missing_module_is_named(package: str) -> None:
    assert "there is no module 'nowhere_at_all'" in error_of("nowhere_at_all.judge:f")
    assert f"there is no module '{package}.judgement'" in error_of(f"{package}.judgement:f")


def test_a_module_whose_own_import_fails_is_told_apart_from_a_missing_one(package: str) -> None:
    message = error_of(f"{package}.broken:f")
    assert f"importing {package}.broken raised ModuleNotFoundError" in message
    assert "broken.py, line 1" in message


def test_a_file_named_like_a_module_gets_a_hint(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("", "my_judge_file.py")
    monkeypatch.chdir(tmp_path)
    assert "write 'my_judge_file.py:name'" in error_of("my_judge_file:compute_score")


def test_a_class_that_cannot_be_built_says_which_settings_are_missing_and_unknown() -> None:
    assert error_of(Judge, {"modle": "x"}).endswith(":Judge (model, scale), got missing: model; unknown: modle")


def test_a_class_whose_init_raises_names_the_line(write: Write) -> None:
    path = write("import os\nclass Judge:\n    def __init__(self):\n        os.environ['NO_SUCH_KEY_HERE']\n")
    message = error_of(f"{path}:Judge")
    assert "building judge.py:Judge (reward_kwargs: none) raised KeyError" in message
    assert f"({path}, line 4)" in message


def test_a_key_in_what_building_a_reward_raises_is_redacted(write: Write) -> None:
    path = write("class Judge:\n    def __init__(self):\n        raise ValueError('bad key sk-abcdefgh12345678')\n")
    assert "ValueError: bad key [redacted]" in error_of(f"{path}:Judge")


@pytest.mark.parametrize("reward", [42, PROMPT.encode(), object(), sys])
def test_what_cannot_be_called_is_refused(reward: Any) -> None:
    assert "a reward must be a function, or a class or object with score_group" in error_of(reward)


def test_a_name_of_something_else_is_refused_with_what_could_be_meant(write: Write) -> None:
    message = error_of(f"{write('MODEL = 7' + chr(10) + 'def rate(): ...')}:MODEL")
    assert "got judge.py:MODEL, a int; it has rate" in message


def test_settings_must_have_names() -> None:
    with pytest.raises(RewardLoadError, match="names as keys"):
        RewardSource.of(compute_score, {1: 2})  # type: ignore[dict-item]


# -- identity --


def test_the_identity_does_not_depend_on_the_folder_or_on_the_order_of_settings(write: Write) -> None:
    one, two = (write("def f(rollout, a=1, b=2): ...", folder=folder) for folder in ("one", "two"))
    assert identity(f"{one}:f", a=3, b=4) == identity(f"{two}:f", b=4, a=3)


def test_the_identity_follows_the_whole_file_the_settings_the_name_and_the_version(write: Write) -> None:
    template = "PROMPT = {prompt!r}\ndef f(rollout, a=1): ...\ndef g(rollout, a=1): ...\nf.version = {version}\n"
    spec = f"{write(template.format(prompt='rate', version=1))}:f"
    seen = [identity(spec), identity(spec, a=2), identity(spec.replace(":f", ":g"))]
    write(template.format(prompt="judge", version=1))
    seen.append(identity(spec))
    assert len(set(seen)) == 4


def test_the_identity_follows_the_version_of_an_object() -> None:
    class Versioned(Judge):
        version = "1"

    before = identity(Versioned, model="m")
    Versioned.version = "2"
    assert identity(Versioned, model="m") != before


def test_odd_settings_count_by_type_so_that_the_identity_is_stable() -> None:
    def settings() -> dict[str, Any]:
        cycle: list[Any] = []
        cycle.append(cycle)
        return {
            "o": object(),
            "s": {"b", "a"},
            "p": Path("x"),
            "f": len,
            "n": 2**80,
            "u": "\ud800",
            "c": cycle,
            "k": {(1, 2): 3},
        }

    class Anything:
        def __init__(self, **settings: Any) -> None: ...
        def compute_score(self, rollout: Any) -> float:
            return 1.0

    first = identity(Anything, **settings())
    assert identity(Anything, **settings()) == first
    assert identity(Anything, **{**settings(), "n": 2**81}) != first
    assert identity(Anything, **{**settings(), "s": {"b", "c"}}) != first


def test_instances_partials_and_closures_with_other_settings_are_other_rewards() -> None:
    @dataclass(slots=True)
    class Slotted:
        model: str

        def compute_score(self, rollout: Any) -> float:
            return 1.0

    def make(model: str) -> Callable[..., float]:
        def judge(rollout: Any) -> float:
            return len(model)

        return judge

    makers: list[Callable[[str], Any]] = [
        Judge,
        Slotted,
        make,
        lambda model: Judge(model).compute_score,
        lambda model: functools.partial(compute_score, model),
        lambda model: functools.partial(compute_score, scale=float(ord(model))),
    ]
    for maker in makers:
        assert identity(maker("a")) == identity(maker("a"))
        assert identity(maker("a")) != identity(maker("b"))


def test_an_object_and_its_source_without_text_still_have_an_identity() -> None:
    namespace: dict[str, Any] = {"__name__": "typed_at_a_prompt"}
    exec("def f(rollout): ...\ndef g(rollout): ...", namespace)
    assert identity(namespace["f"]) != identity(namespace["g"])
