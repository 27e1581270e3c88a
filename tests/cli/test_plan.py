"""`udpfl plan` as a user meets it: a process, its output and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from udpfl.cli import main
from udpfl.figures import _without_giants
from udpfl.mechanisms import BUILT_IN, Gaussian, Laplace

COMMON = ["--steps", "300", "--sampling-rate", "0.05"]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def rows(capsys, *arguments: str) -> list[dict]:
    code, out, err = run(capsys, "plan", *COMMON, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def names(found: list[dict]) -> list[str]:
    return [row["mechanism"] for row in found]


def test_high_dimension_ranks_gaussian_first(capsys):
    found = rows(capsys, "--mechanism", "all", "--epsilon", "8", "--dimension", "26010")
    assert names(found)[0] == "gaussian"
    assert set(names(found)) == {name for name, kind in BUILT_IN.items() if kind.is_ranked}
    assert [row["rank"] for row in found] == list(range(1, len(found) + 1))
    for row in found:
        assert set(row) >= {
            "mechanism", "rank", "parameters", "noise_std", "mean_abs", "epsilon", "delta",
            "kind", "vector_epsilon", "accountant",
        }  # fmt: skip
        assert row["kind"] == "guarantee"
        assert row["epsilon"] <= 8
        assert row["vector_epsilon"] == row["epsilon"]
        assert row["why"]


def test_one_dimension_puts_gaussian_last(capsys):
    found = rows(capsys, "--mechanism", "all", "--epsilon", "8", "--dimension", "1")
    assert names(found)[-1] == "gaussian"


def test_noise_is_matched_to_a_gaussian_and_both_costs_are_told(capsys):
    *found, reference = rows(capsys, "--mechanism", "all", "--match", "1.5", "--dimension", "10")
    assert set(names(found)) == {name for name, kind in BUILT_IN.items() if kind.is_ranked}
    assert (reference["mechanism"], reference["noise_std"]) == ("reference", 1.5)
    allowed = reference["matched"]["other"]["epsilon"]
    assert 3.18 < allowed < 3.21  # of 300 releases at rate 0.05, by Rényi divergences
    for row in found:
        assert row["matched"]["reference"] == 1.5
        assert row["matched"]["other"]["epsilon"] == allowed
        assert row["matched"]["own"]["epsilon"] <= allowed
        assert row["epsilon"] <= row["matched"]["own"]["epsilon"]
    assert next(row for row in found if row["mechanism"] == "gaussian")["noise_std"] == 1.5
    *bounded, _ = rows(
        capsys, "--mechanism", "all", "--match", "1.5", "--epsilon", "3", "--dimension", "10"
    )
    errors = {row["mechanism"]: row["error"] for row in bounded if row["rank"] is None}
    assert "laplace" in errors
    assert "gaussian" not in errors  # by loss distributions it costs less
    assert "more than the budget of ε = 3; matched to a Gaussian with" in errors["laplace"]
    assert "noise multiplier 1.57 it would fit" in errors["laplace"]


def test_the_table_of_matched_noise_has_the_reference_beside_it(capsys):
    code, out, _ = run(
        capsys, "plan", *COMMON, "--mechanism", "all", "--match", "1.5", "--dimension", "10"
    )
    assert code == 0
    assert "Noise that matches a Gaussian of multiplier 1.5" in out
    lines = [line for line in out.splitlines() if line.startswith("│")]
    costs = {line.split("│")[2].strip(): float(line.split("│")[-2]) for line in lines}
    assert max(costs, key=costs.get) in ("reference", "gaussian")
    assert list(costs)[-1] == "reference"
    assert "a matched noise never costs more than the reference" in " ".join(out.split())


@pytest.mark.parametrize(("epsilon", "staircase_wins"), [("8", True), ("2", False)])
def test_scalar_accounting_reproduces_the_papers_picture_and_says_nominal(
    capsys, epsilon, staircase_wins
):
    options = ["--mechanism", "all", "--epsilon", epsilon, "--dimension", "26010"]
    found = rows(capsys, *options, "--accounting", "scalar")
    order = names(found)
    assert (order.index("staircase") < order.index("gaussian")) is staircase_wins
    assert {row["kind"] for row in found} == {"nominal"}
    truth = {row["mechanism"]: row["vector_epsilon"] for row in found}
    assert truth["staircase"] == "inf" or truth["staircase"] > 1000
    assert truth["gaussian"] == pytest.approx(float(epsilon), rel=1e-3)
    code, out, _ = run(capsys, "plan", *COMMON, *options, "--accounting", "scalar")
    assert code == 0
    assert "not a privacy guarantee" in " ".join(out.split())


def test_the_papers_accountant_is_nominal_and_looser(capsys):
    options = ["--mechanism", "all", "--epsilon", "8", "--dimension", "26010"]
    options += ["--accounting", "scalar", "--accountant"]
    paper, rdp = (
        {row["mechanism"]: row for row in rows(capsys, *options, by)} for by in ("paper", "rdp")
    )
    for name, row in paper.items():
        assert (row["kind"], row["accountant"]) == ("nominal", "paper")
        assert row["noise_std"] > 1.05 * rdp[name]["noise_std"]
        assert 7.99 < row["epsilon"] <= 8
    code, out, _ = run(capsys, "plan", *COMMON, *options, "paper")
    assert code == 0
    assert "not a privacy guarantee" in " ".join(out.split())
    assert "Guarantee:" not in out


def test_auto_is_the_first_row_and_the_default(capsys):
    found = rows(capsys, "--epsilon", "8", "--dimension", "26010")
    assert names(found) == ["gaussian"]
    assert found[0]["delta"] == 1e-5


def test_impossible_rows_carry_an_error_under_all(capsys):
    found = rows(capsys, "--mechanism", "all", "--epsilon", "2", "--delta", "0", "--dimension", "5")
    errors = {row["mechanism"]: row["error"] for row in found if "error" in row}
    assert set(errors) >= {"gaussian", "staircase"}
    assert names(found)[0] == "laplace"
    assert found[0]["accountant"] == "pure"
    code, out, _ = run(
        capsys, "plan", *COMMON, "--mechanism", "all", "--epsilon", "2", "--delta", "0",
        "--dimension", "5",
    )  # fmt: skip
    assert code == 0
    assert "impossible" in out


def test_infinite_numbers_are_the_string_inf(capsys):
    code, out, _ = run(
        capsys, "plan", "--epsilon", "1", "--steps", "1", "--delta", "0", "--dimension", "9",
        "--mechanism", "staircase", "--accounting", "scalar", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)[0]["vector_epsilon"] == "inf"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--epsilon", "0"], "--epsilon"),
        (["--epsilon", "-2"], "--epsilon"),
        (["--epsilon", "nan"], "--epsilon"),
        (["--epsilon", "inf"], "--epsilon"),
        (["--epsilon", "two"], "--epsilon"),
        (["--epsilon", "1", "--sampling-rate", "0"], "--sampling-rate"),
        (["--epsilon", "1", "--sampling-rate", "1.5"], "--sampling-rate"),
        (["--epsilon", "1", "--steps", "0"], "--steps"),
        (["--epsilon", "1", "--steps", "2.5"], "--steps"),
        (["--epsilon", "1", "--steps", "1" + "0" * 20], "--steps"),
        (["--epsilon", "1", "--delta", "1"], "--delta"),
        (["--epsilon", "1", "--delta", "-0.1"], "--delta"),
        (["--epsilon", "1", "--clip", "0"], "--clip"),
        (["--epsilon", "1", "--clip", "1e300"], "--clip"),
        (["--epsilon", "1", "--dimension", "0"], "--dimension"),
        (["--epsilon", "1", "--mechanism", "cauchy"], "--mechanism"),
        (["--epsilon", "1", "--norm", "l3"], "--norm"),
        (["--epsilon", "1", "--accountant", "magic"], "--accountant"),
        (["--epsilon", "1", "--accountant", "paper"], "--accountant"),
        (
            ["--epsilon", "1", "--accountant", "paper", "--accounting", "scalar", "--delta", "0"],
            "--delta",
        ),
        (["--epsilon", "1", "--accounting", "vague"], "--accounting"),
        (["--epsilon", "1", "--rank", "l9"], "--rank"),
        (["--epsilon", "1", "--mechanism", "gaussian", "--delta", "0"], "--mechanism"),
        (["--epsilon", "1", "--mechanism", "laplace", "--accountant", "pld"], "--mechanism"),
        (["--epsilon", "0.1", "--sampling-rate", "1e-6", "--steps", "3"], "--delta"),
        (["--epsilon", "1", "--accountant", "pld", "--delta", "1e-12"], "--delta"),
        (["--epsilon", "1", "--plot", "picture.txt"], "--plot"),
        (["--epsilon", "1", "--plot", "no/such/folder/x.png"], "--plot"),
        (["--match", "0"], "--reference"),
        (["--match", "1.5", "--delta", "0"], "--delta"),
        (["--match", "1.5", "--plot", "x.png"], "--plot"),
        (["--match", "1.5", "--epsilon", "0.1"], "--mechanism"),
        (["--epsilon", "1", "--nonsense", "3"], "--nonsense"),
        ([], "--epsilon"),
    ],
)
def test_bad_input_ends_with_exit_code_2_and_one_line_that_names_the_option(
    capsys, arguments, option
):
    defaults = {"--steps": "300", "--sampling-rate": "0.05", "--dimension": "26010"}
    for key, value in defaults.items():
        if key not in arguments:
            arguments = [*arguments, key, value]
    code, out, err = run(capsys, "plan", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert option in err
    assert "Traceback" not in err


def test_the_dimension_is_required_unless_gaussian_under_l2(capsys):
    code, _, err = run(capsys, "plan", *COMMON, "--epsilon", "8")
    assert code == 2
    assert "--dimension" in err
    found = rows(capsys, "--epsilon", "8", "--mechanism", "gaussian")
    assert names(found) == ["gaussian"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--epsilon", "800", "--steps", "1", "--dimension", "1", "--mechanism", "all"],
        ["--epsilon", "1e6", "--steps", "1", "--dimension", "1", "--mechanism", "all"],
        ["--epsilon", "1e-3", "--steps", "1", "--dimension", "3", "--mechanism", "all"],
        ["--epsilon", "1", "--steps", "1000000000", "--dimension", "1", "--mechanism", "all"],
        ["--epsilon", "1", "--steps", "1", "--clip", "1e-90", "--dimension", "3"],
    ],
)
def test_odd_but_legal_input_gives_an_answer(capsys, arguments):
    code, out, err = run(capsys, "plan", *arguments, "--json")
    assert code == 0, err
    assert json.loads(out)[0]["rank"] == 1


def test_plot(capsys, tmp_path):
    for accounting, suffix in (("vector", "png"), ("scalar", "svg")):
        picture = tmp_path / f"noise.{suffix}"
        code, _, err = run(
            capsys, "plan", *COMMON, "--epsilon", "4", "--dimension", "100", "--mechanism", "all",
            "--accountant", "rdp", "--accounting", accounting, "--plot", str(picture),
        )  # fmt: skip
        assert code == 0, err
        assert picture.stat().st_size > 5_000
    text = (tmp_path / "noise.svg").read_text()
    assert "nominal" in text or "<path" in text
    alone = tmp_path / "GAUSSIAN.PNG"
    code, _, err = run(
        capsys, "plan", *COMMON, "--epsilon", "4", "--mechanism", "gaussian", "--accountant",
        "rdp", "--plot", str(alone),
    )  # fmt: skip
    assert code == 0, err
    assert alone.exists()
    (tmp_path / "folder.png").mkdir()
    code, _, err = run(
        capsys, "plan", *COMMON, "--epsilon", "4", "--mechanism", "gaussian", "--accountant",
        "rdp", "--plot", str(tmp_path / "folder.png"),
    )  # fmt: skip
    assert code == 2
    assert "--plot" in err


def test_version_and_help(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("udpfl 0.")
    for arguments in ([], ["--help"], ["plan", "--help"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert "plan" in out


@pytest.mark.parametrize("extra", [[], ["--verbose"]])
def test_the_installed_command_prints_nothing_but_its_answer(extra):
    command = [str(Path(sys.executable).with_name("udpfl")), *extra, "plan", *COMMON]
    command += ["--epsilon", "8", "--dimension", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["rank"] == 1
    assert "dp_accounting" not in done.stderr
    if not extra:
        assert done.stderr == ""


def test_nominal_matching_says_that_it_is_about_one_coordinate(capsys):
    """The table beside it shows a matched noise that costs more than its reference."""
    code, out, _ = run(
        capsys, "plan", "--steps", "10", "--mechanism", "laplace", "--match", "1",
        "--dimension", "5", "--accounting", "scalar", "--accountant", "paper", "--epsilon", "100",
    )  # fmt: skip
    assert code == 0
    said = " ".join(out.split())
    assert "for nominal ε ≤ 100" in said
    assert "matched in one coordinate" in said
    assert "For the whole gradient it may" in said
    assert "a matched noise never costs more than the reference. Other" not in said


def test_a_line_far_above_the_others_is_named_and_not_drawn():
    low, high = [(2.0, Gaussian(1.0))], [(2.0, Gaussian(30.0))]
    drawn, words = _without_giants({"gaussian": low, "laplace": high}, own=[])
    assert (drawn, words) == ({"gaussian": low}, ["laplace: over 30 × the least"])
    drawn, words = _without_giants({"gaussian": low, "laplace": high}, own=[Laplace(1.0)])
    assert (list(drawn), words) == (["gaussian", "laplace"], [])
