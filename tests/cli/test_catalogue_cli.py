"""``hisparse-sim models``, ``nodes`` and ``scenarios``, and what the command does with mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hisparse_sim
from hisparse_sim.cli import main as cli
from hisparse_sim.errors import HiSparseError
from hisparse_sim.scenario.loader import list_models, list_nodes, list_scenarios, load_model, load_scenario


def lines(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """Lines on stdout of a call that succeeds."""
    assert cli.run(list(argv)) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("command", "names"),
    [("models", list_models()), ("nodes", list_nodes()), ("scenarios", list_scenarios())],
)
def test_the_bare_command_lists_every_name(
    capsys: pytest.CaptureFixture[str], command: str, names: list[str]
) -> None:
    bare = lines(capsys, command)
    assert [line.split()[0] for line in bare[1:]] == names
    assert lines(capsys, command, "list") == bare
    assert json.loads("\n".join(lines(capsys, command, "list", "--json"))) == {command: names}


@pytest.mark.parametrize("name", list_models())
def test_show_prints_fields_units_and_sources_of_a_model(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = "\n".join(lines(capsys, "models", "show", name))
    assert f"{load_model(name).max_context_tokens:,} tokens [1]" in text
    assert "GiB) [2]" in text
    assert "[1] https://huggingface.co/" in text and "(config)" in text


@pytest.mark.parametrize("name", list_nodes())
def test_every_figure_of_a_node_is_shown_with_its_source(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shown = lines(capsys, "nodes", "show", name)
    fields = shown[1 : shown.index("")]
    assert all("[" in line for line in fields)
    text = "\n".join(shown)
    assert "nvidia-smi" in text or "rocm-smi" in text
    assert "B/s" in text and "FLOP/s" in text


@pytest.mark.parametrize("name", list_scenarios())
def test_a_shown_scenario_is_a_file_to_start_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "mine.yaml").write_text("\n".join(lines(capsys, "scenarios", "show", name)))
    assert load_scenario(tmp_path / "mine.yaml") == load_scenario(name)
    shown = json.loads("\n".join(lines(capsys, "scenarios", "show", name, "--json")))
    assert shown == load_scenario(name).model_dump(mode="json")
    assert load_scenario(name).description in "\n".join(lines(capsys, "scenarios"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("draw",), "scenarios: 'draw' is not an action; use list or show NAME"),
        (("show",), "scenarios show: needs the name of a scenario, one of agentic-13turn-8xh200"),
        (("show", "nowhere"), "scenario: unknown scenario 'nowhere'"),
        (("list", "x"), "scenarios list: takes no name; to see one: scenarios show x"),
    ],
)
def test_a_mistake_about_scenarios_is_one_line(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    assert cli.run(["scenarios", *argv]) == 2
    assert message in capsys.readouterr().err


def test_show_as_json_is_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads("\n".join(lines(capsys, "models", "show", "glm-5.3", "--json")))
    assert shown == load_model("glm-5.3").model_dump(mode="json")


def test_show_takes_a_config_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 1024,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    text = "\n".join(lines(capsys, "models", "show", str(path)))
    assert "LlamaForCausalLM" in text and "1,024 tokens" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["models", "show", "glm53"], "model: unknown model 'glm53'; did you mean 'glm-5.3'"),
        (["nodes", "show", "8xh20"], "node: unknown node '8xh20'; did you mean '8xh200'"),
        (["models", "show"], "models show: needs the name of a model, one of deepseek-v3.2"),
        (["models", "list", "glm-5"], "models list: takes no name"),
        (["models", "lst"], "models: 'lst' is not an action; use list or show NAME"),
        (["nodes", "show", "/nope/x.yaml"], "/nope/x.yaml: no such file"),
        (["nodez"], "No such command 'nodez'"),
        (["models", "--jsn"], "No such option: --jsn"),
        (["models", "list", "a", "b"], "unexpected extra argument"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert cli.run(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_the_bare_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys) == lines(capsys, "--help")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "--version") == [f"hisparse-sim {hisparse_sim.__version__}"]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (HiSparseError("no", where="a.b"), 2, "error: a.b: no\n"),
        (HiSparseError("two\nlines"), 2, "error: two lines\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_what_a_command_raises_becomes_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    code: int,
    said: str,
) -> None:
    def fail() -> list[str]:
        raise raised

    monkeypatch.setattr("hisparse_sim.scenario.catalogue.list_models", fail)
    assert cli.run(["models"]) == code
    assert capsys.readouterr().err == said


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hisparse_sim.scenario.catalogue.list_models", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.run(["models"])


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from hisparse_sim.cli.main import run; run(['--help']); "
        "print(*(set(sys.modules) & {'pydantic', 'numpy', 'pandas', 'rich', 'yaml', 'matplotlib', 'simpy', "
        "'scipy', 'pyarrow'}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""
    assert "models" in done.stdout and "nodes" in done.stdout


def test_a_command_is_made_without_the_others() -> None:
    code = (
        "import sys; from hisparse_sim.cli.main import run; run(['nodes', '--help']); "
        "print(*sorted(m for m in sys.modules if m.startswith('hisparse_sim.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["hisparse_sim.cli.main", "hisparse_sim.cli.nodes"]
    assert "--json" in done.stdout


def test_a_misspelt_command_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["noodes"]) == 2
    assert "'nodes'" in capsys.readouterr().err
