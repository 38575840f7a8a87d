"""Options: what is taken, what is refused and in which words, and what help and completion show."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from nbdist.checks import MAX_DEVICES
from nbdist.errors import NbdistError, OptionError
from nbdist.help import help_text, markdown_table
from nbdist.options import (
    ALL_OPTIONS,
    MAX_SEED,
    START_METHODS,
    Option,
    Options,
    complete,
    from_keywords,
    given,
    parse_magic,
    parse_words,
    spelled,
)


def magic_refusal(line: str) -> str:
    with pytest.raises(OptionError) as refused:
        parse_magic(line)
    return str(refused.value)


def keyword_refusal(**keywords: Any) -> str:
    with pytest.raises(OptionError) as refused:
        from_keywords(**keywords)
    return str(refused.value)


def by_name(name: str) -> Option:
    return next(option for option in ALL_OPTIONS if option.name == name)


def test_nothing_given_means_the_defaults() -> None:
    assert parse_magic("") == parse_magic("  ") == from_keywords() == Options()
    assert Options() == Options(
        devices="auto",
        accelerator="auto",
        backend=None,
        start_method="auto",
        output=None,
        gather=(),
        logs="all",
        seed=None,
        timeout=None,
        init=True,
    )


@pytest.mark.parametrize(
    ("line", "keywords", "field", "value"),
    [
        ("--devices 4", {"devices": 4}, "devices", 4),
        ("--devices=4", {"devices": "4"}, "devices", 4),
        ("-d 4", {"devices": np.int64(4)}, "devices", 4),
        ("-d4", {"devices": 4}, "devices", 4),
        ("-d=4", {"devices": 4}, "devices", 4),
        ("-d auto", {"devices": "auto"}, "devices", "auto"),
        ("-d 0,2", {"devices": [0, 2]}, "devices", (0, 2)),
        ("-d 2,0", {"devices": "2,0"}, "devices", (2, 0)),
        ("-d '0, 2'", {"devices": (0, 2)}, "devices", (0, 2)),
        ("-d 2,", {"devices": [2]}, "devices", (2,)),
        ("-d 0,1,2", {"devices": range(3)}, "devices", (0, 1, 2)),
        (f"-d {MAX_DEVICES}", {"devices": MAX_DEVICES}, "devices", MAX_DEVICES),
        ("--accelerator cuda", {"accelerator": "cuda"}, "accelerator", "cuda"),
        ("--backend gloo", {"backend": "gloo"}, "backend", "gloo"),
        ("--backend GLOO", {"backend": dist.Backend.GLOO}, "backend", "gloo"),
        ("--backend cpu:gloo", {"backend": "cpu:gloo"}, "backend", "cpu:gloo"),
        ("--backend cpu:gloo,cuda:gloo", {"backend": "cpu:gloo,cuda:gloo"}, "backend", "cpu:gloo,cuda:gloo"),
        ("--start-method fork", {"start_method": "fork"}, "start_method", "fork"),
        ("-o model,losses", {"output": ["model", "losses"]}, "output", ("model", "losses")),
        ("-omodel", {"output": "model"}, "output", ("model",)),
        ("--output 'a, b'", {"output": "a, b"}, "output", ("a", "b")),
        ("-o a,b,a", {"output": ("a", "b", "a")}, "output", ("a", "b")),
        ("-o größe,ﬁne", {"output": ["größe", "ﬁne"]}, "output", ("größe", "fine")),
        ("--gather loss", {"gather": ["loss"]}, "gather", ("loss",)),
        ("--logs none", {"logs": "none"}, "logs", "none"),
        ("--seed 0", {"seed": 0}, "seed", 0),
        (f"--seed {MAX_SEED}", {"seed": MAX_SEED}, "seed", MAX_SEED),
        ("--timeout 2.5", {"timeout": 2.5}, "timeout", 2.5),
        ("--timeout 1e3", {"timeout": 1000}, "timeout", 1000.0),
        ("--timeout 90", {"timeout": timedelta(minutes=1.5)}, "timeout", 90.0),
        ("--no-init", {"init": False}, "init", False),
    ],
)
def test_magic_and_keywords_agree(line: str, keywords: dict[str, Any], field: str, value: Any) -> None:
    expected = Options(**{field: value})
    for options in (parse_magic(line), from_keywords(**keywords)):
        assert options == expected
        assert type(getattr(options, field)) is type(value)


def test_none_is_taken_where_it_is_the_default() -> None:
    assert from_keywords(backend=None, output=None, seed=None, timeout=None) == Options()


def test_no_names_at_all_can_be_asked_for() -> None:
    assert from_keywords(output=[], gather=[]) == Options(output=(), gather=())


def test_many_options_in_one_line_the_last_of_a_kind_counts() -> None:
    line = "-d 2 --seed=1 --no-init -o a,b --logs rank0 -d 3 --seed 7"
    assert parse_magic(line) == Options(devices=3, seed=7, init=False, output=("a", "b"), logs="rank0")
    assert parse_words(line.split()) == parse_magic(line)


@pytest.mark.parametrize("seed", [0, MAX_SEED])
def test_every_seed_works_with_every_rank_added(seed: int) -> None:
    ranks = 65_536
    np.random.RandomState(parse_magic(f"--seed {seed}").seed + ranks - 1)


WRONG_VALUES = {
    "devices": [
        "0", "-1", "-4", "banana", "0,0", "1,2,1", "1.5", "''", "' '", "all", "0,,2", ",", "0,-1", "0,x",
        "1_0", "+", "٣", "None", str(MAX_DEVICES + 1), f"0,{MAX_DEVICES}", "9" * 70,
    ],
    "accelerator": ["gpu", "CUDA", "''", "cuda:0"],
    "start_method": ["thread", "''", "FORK"],
    "output": ["1a", "a,,b", "a,", ",", "''", "a.b", "class", "a-b", "'a b'", "a,None", "*"],
    "gather": ["1a", "a,,b", "''", "lambda"],
    "logs": ["some", "''", "rank1", "ALL", "0"],
    "seed": ["x", "-1", "1.5", "''", "1e3", str(MAX_SEED + 1), str(2**64), "0x10"],
    "timeout": ["-3", "0", "nan", "inf", "-inf", "x", "''", "1e300", "0.0001", "1h", "1,5"],
    "backend": ["''", "gloo,", "cpu:", ":gloo", "cpu:gloo,gloo", "a b", "gloo;"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in WRONG_VALUES.items() for text in texts]
)
def test_wrong_value_says_the_value_what_is_allowed_and_the_next_step(name: str, text: str) -> None:
    option = by_name(name)
    flags = [flag for flag in (option.short, option.flag) if flag]
    quoted = text if text.startswith("'") else f"'{text}'"
    for line in [f"{flag} {quoted}" for flag in flags] + [f"{option.flag}={quoted}"]:
        message = magic_refusal(line)
        flag = option.short if line.startswith(f"{option.short} ") else option.flag
        assert re.match(rf"{flag} '?{re.escape(text.strip(chr(39)))}", message)
        assert f"Allowed: {option.allowed}." in message
        assert re.search(rf"Write, for example, {flag} (\S+)\.$", message)
    value = text.strip("'")
    message = keyword_refusal(**{name: value})
    assert message.startswith(f"{name}='{value[:30]}")
    assert f"Allowed: {option.allowed}." in message
    assert re.search(rf"Write, for example, {name}=(.+)\.$", message)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("devices", 0),
        ("devices", -1),
        ("devices", 1.5),
        ("devices", 2.0),
        ("devices", True),
        ("devices", None),
        ("devices", []),
        ("devices", [0, 0]),
        ("devices", [0, True]),
        ("devices", [0.0]),
        ("devices", [[0], [1]]),
        ("devices", {0, 1}),
        ("devices", b"02"),
        ("devices", object()),
        ("devices", np.array([0, 2])),
        ("accelerator", None),
        ("accelerator", 0),
        ("backend", 5),
        ("backend", True),
        ("start_method", None),
        ("output", 5),
        ("output", ["a", ""]),
        ("output", ["a b"]),
        ("output", [5]),
        ("output", b"a"),
        ("gather", None),
        ("logs", True),
        ("seed", True),
        ("seed", 1.0),
        ("seed", -1),
        ("seed", [1]),
        ("timeout", 0),
        ("timeout", True),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", timedelta(0)),
        ("timeout", timedelta.max),
        ("timeout", 10**400),
        ("timeout", [1]),
        ("init", None),
        ("init", 1),
        ("init", "no"),
    ],
)
def test_wrong_python_value_is_named_as_python_writes_it(name: str, value: Any) -> None:
    message = keyword_refusal(**{name: value})
    assert message.startswith(f"{name}={repr(value)[:15]}")
    assert f"Allowed: {by_name(name).allowed}." in message
    assert re.search(rf"Write, for example, {name}=(.+)\.$", message)


def test_what_a_line_does_not_say_is_as_in_its_base() -> None:
    base = parse_magic("-d 3 --hold --no-init --seed 1")
    assert parse_magic("", base) == from_keywords(base) == base
    assert parse_magic("--no-hold --seed 2", base) == Options(devices=3, init=False, seed=2)
    assert parse_magic("--hold --init", base) == Options(devices=3, hold=True, seed=1)
    assert from_keywords(base, devices="auto", hold=False, init=True, seed=None) == Options()
    assert list(given(["--seed", "2", "--no-hold", "-d", "auto"])) == ["seed", "hold", "devices"]


def test_options_are_spelled_as_they_are_read() -> None:
    words = [
        "--devices",
        "0,2",
        "--hold",
        "--output",
        "a,b",
        "--max-return",
        "1024",
        "--timeout",
        "0.5",
        "--init",
    ]
    assert spelled(given(words)) == " ".join(words)
    examples = {option.name: from_keywords(**{option.name: option.example}) for option in ALL_OPTIONS}
    values = {name: getattr(options, name) for name, options in examples.items()}
    assert given(shlex.split(spelled(values))) == values


@pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda option: option.name)
def test_the_example_of_every_message_works(option: Option) -> None:
    assert from_keywords(**{option.name: option.example}) != Options()
    if not option.is_switch:
        wrong = option.flag if option.alone is None else f"{option.flag}="
        example = re.search(r"for example, (.+)\. ", magic_refusal(wrong) + " ")
        assert example is not None
        assert getattr(parse_magic(example[1]), option.name) == getattr(
            from_keywords(**{option.name: option.example}), option.name
        )


def test_refusals_are_value_errors_of_ours() -> None:
    with pytest.raises(ValueError, match="--devices 0"):
        parse_magic("--devices 0")
    with pytest.raises(NbdistError):
        parse_magic("--devices 0")


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("--device 4", "--device: no such option (did you mean --devices?)."),
        ("--dev 4", "--dev: no such option"),
        ("--devicse=4", "--devicse=4: no such option (did you mean --devices?)."),
        ("--no-inits", "--no-inits: no such option (did you mean --no-init?)."),
        ("--start_method fork", "--start_method: no such option (did you mean --start-method?)."),
        ("-x", "-x: no such option."),
        ("--", "--: no such option."),
        ("-", "-: no such option."),
        ("-d 2 3", "3: belongs to no option."),
        ("4", "4: belongs to no option (did you mean --devices 4?). A value stands behind"),
        ("devices=4", "devices=4: belongs to no option (did you mean --devices?)."),
        ("–devices 4", "–devices: belongs to no option (did you mean --devices?)."),
        ("'' -d 2", "''"),
        ("--no-init=1", "--no-init=1: --no-init takes no value. Write --no-init alone."),
        ("--no-init 1", "1: belongs to no option."),
        ("-d 2 # two", "#: a comment stands below this line, in the cell."),
        ("-o 'a", "-o 'a: a quotation mark is not closed."),
        ("-o a\\", "-o a\\: a quotation mark is not closed."),
    ],
)
def test_what_is_no_option_is_refused_with_where_to_look(line: str, start: str) -> None:
    message = magic_refusal(line)
    assert message.startswith(start)
    assert message.endswith("%%distributed? shows all options.")


@pytest.mark.parametrize(
    "line", ["--devices", "-d", "-d --seed 1", "-d -o a", "--seed 1 --devices", "-d -oa"]
)
def test_missing_value(line: str) -> None:
    assert re.match(r"(--devices|-d): its value is missing\. Allowed: auto, ", magic_refusal(line))


@pytest.mark.parametrize("line", ["--devices 0", "--help", "-h", "--nope", "x", "--devices"])
def test_nothing_is_printed_and_nothing_exits(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    magic_refusal(line)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("keywords", "start"),
    [
        ({"device": 4}, "device=4: no such option (did you mean devices=?)."),
        ({"no_init": True}, "no_init=True: no such option (did you mean init=?)."),
        ({"nprocs": 4}, "nprocs=4: no such option."),
    ],
)
def test_unknown_keyword(keywords: dict[str, Any], start: str) -> None:
    message = keyword_refusal(**keywords)
    assert message.startswith(start)
    for option in ALL_OPTIONS:
        assert f"{option.name}=" in message


def test_a_long_value_is_cut_in_the_message() -> None:
    assert "9" * 77 + "...: not a whole number" in magic_refusal(f"-d {'9' * 10_000}")
    assert len(keyword_refusal(devices="x" * 10_000)) < 400
    assert len(keyword_refusal(devices=np.zeros((1000, 1000)))) < 400


@pytest.mark.parametrize(("name", "guess"), [("glo", "gloo"), ("GLOOO", "gloo")])
def test_unknown_backend_lists_what_there_is_and_names_what_is_close(name: str, guess: str) -> None:
    message = magic_refusal(f"--backend {name}")
    assert f"(did you mean {guess}?)" in message
    for backend in ("gloo", "nccl", "mpi"):
        listed = re.search(r"it has ([\w, ]+)\.", message)
        assert listed is not None
        assert (backend in listed[1].split(", ")) == dist.is_backend_available(backend)


def test_unknown_backend_in_a_list_is_named() -> None:
    assert "banana is not in the installed torch" in magic_refusal("--backend cpu:gloo,cuda:banana")


def test_a_backend_that_this_torch_was_built_without_is_refused_before_anything_starts() -> None:
    missing = [name for name in ("mpi", "ucc", "nccl", "xccl") if not dist.is_backend_available(name)]
    assert missing, "every backend is built into this torch"
    for name in missing:
        assert f"{name} is not in the installed torch" in magic_refusal(f"--backend {name}")


def test_a_plugin_s_backend_is_taken_from_when_it_is_registered() -> None:
    # In a process of its own: torch has no way to take a backend's registration back.
    program = """
import torch.distributed as dist
from nbdist.options import OptionError, parse_magic
try:
    parse_magic("--backend carrier_pigeon")
except OptionError:
    dist.Backend.register_backend("carrier_pigeon", lambda *arguments: None, devices=["cpu"])
    print(parse_magic("--backend cpu:carrier_pigeon").backend)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "cpu:carrier_pigeon\n"


def test_torch_is_loaded_only_when_a_backend_is_named() -> None:
    program = """
import sys
from nbdist.help import help_text
from nbdist.options import complete, parse_magic
parse_magic("-d 4 --seed 1 -o a --timeout 5"), help_text(), complete("--b")
assert not {"torch", "IPython", "numpy"} & set(sys.modules)
parse_magic("--backend gloo")
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------- help


def test_help_shows_every_option_with_its_default_aligned() -> None:
    lines = help_text().splitlines()
    columns = set()
    for option in ALL_OPTIONS:
        (line,) = [line for line in lines if f" {option.usage} " in line]
        columns.add(line.index(option.help.split()[0], line.index(option.usage) + len(option.usage)))
        text = " ".join(help_text().split())
        assert f"{option.help}; default: {option.default_help}" in text
    assert len(columns) == 1
    assert max(map(len, lines)) <= 104


def test_every_example_in_help_works() -> None:
    examples = re.findall(r"^ +%%distributed(.*)$", help_text(), re.MULTILINE)
    assert len(examples) == 4
    for example in examples:
        assert parse_magic(example) != Options()


def test_help_names_what_a_cell_finds() -> None:
    assert "rank, local_rank, world_size, device" in help_text()


def test_markdown_table_has_a_row_for_every_option() -> None:
    head, rule, *rows = markdown_table().splitlines()
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in (head, rule, *rows)]
    assert [len(row) for row in cells] == [3] * (len(ALL_OPTIONS) + 2)
    for option, (usage, meaning, default) in zip(ALL_OPTIONS, cells[2:], strict=True):
        assert usage.strip().strip("`").replace("\\|", "|") == option.usage
        assert (meaning.strip(), default.strip()) == (option.help, option.default_help)


# ---------------------------------------------------------------- completion

FLAGS = [option.flag for option in ALL_OPTIONS]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%%distributed ", FLAGS),
        ("%%distributed -", FLAGS),
        ("%%distributed --", FLAGS),
        ("", FLAGS),
        ("%%distributed", []),
        ("%%distributed --dev", ["--devices"]),
        ("%%distributed --s", ["--start-method", "--seed", "--strategy"]),
        ("%%distributed --nothing", []),
        ("%%distributed x", []),
        ("%%distributed -d ", ["auto"]),
        ("%%distributed --logs ", ["all", "rank0", "none"]),
        ("%%distributed --logs  r", ["rank0"]),
        ("%%distributed --logs=", ["all", "rank0", "none"]),
        ("%%distributed --logs=n", ["none"]),
        ("%%distributed --start-method ", list(START_METHODS)),
        ("%%distributed --seed ", []),
        ("%%distributed -o ", []),
        ("%%distributed --no-init --no-dashboard --no", []),
        ("%%distributed -d 4 --de", []),
        ("%%distributed -d4 --de", []),
        ("%%distributed --devices=4 --de", []),
        ("%%distributed --logs all -", [flag for flag in FLAGS if flag != "--logs"]),
        ("%%distributed --no-init ", [flag for flag in FLAGS if flag != "--no-init"]),
        ("--acc", ["--accelerator"]),
        ("--accelerator c", ["cuda", "cpu"]),
    ],
)
def test_completion(line: str, expected: list[str]) -> None:
    assert complete(line) == expected


def test_every_completed_value_is_taken() -> None:
    for option in ALL_OPTIONS:
        for value in complete(f"{option.flag} "):
            if option.name == "backend" and not dist.is_backend_available(value):
                continue
            if not option.is_switch and not value.startswith("--"):
                parse_magic(f"{option.flag} {value}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", None),
        ("--background", ""),
        ("--background train", "train"),
        ("--background=train -d 2", "train"),
        ("--background -d 2", ""),
        ("-d 2 --background", ""),
    ],
)
def test_the_value_of_an_option_may_be_left_out(line: str, expected: str | None) -> None:
    assert parse_magic(line).background == expected


def test_a_flag_is_never_taken_for_the_value_that_was_left_out() -> None:
    assert "did you mean --devices" in magic_refusal("--background --devcies 2")
    assert "--seed" in complete("%%distributed --background --se")


@pytest.mark.parametrize(("value", "expected"), [(True, ""), (False, None), (None, None), ("train", "train")])
def test_background_in_the_python_interface(value: Any, expected: str | None) -> None:
    assert from_keywords(background=value).background == expected


def test_readme_has_the_table_of_options() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    table = readme.split("<!-- options -->\n")[1].split("<!-- /options -->")[0]
    assert table.strip() == markdown_table().strip()
