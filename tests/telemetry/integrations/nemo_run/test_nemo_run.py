"""The plugins with the real NeMo-Run: what they make of executors, scripts and recipes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch_launcher.cli.main import build_parser
from telemetry.integrations.nemo_run.environment import PRELUDE, RECIPE, Nemo

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PAGE = Path(__file__).parents[4] / "docs" / "nemo-run.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
NEMO = """
import functools, types
from recipe import Log, Trainer, pretrain
run.run = functools.partial(run.run, dryrun=True)

def pretrain_recipe(name):
    trainer = run.Config(Trainer, callbacks=[])
    return run.Partial(pretrain, trainer=trainer, log=run.Config(Log, log_dir=name), folder="x")

for name in ("nemo", "nemo.collections"):  # NeMo itself needs a GPU's libraries: what the page uses of it
    sys.modules[name] = types.ModuleType(name)
sys.modules["nemo.collections"].llm = types.SimpleNamespace(
    llama3_8b=types.SimpleNamespace(pretrain_recipe=pretrain_recipe)
)
"""

PROGRAMS = {
    "both plugins": "answer(script_of(slurm(), train, [FaultTolerancePlugin(), PreemptionPlugin()]))",
    "preemption alone": "answer(script_of(slurm(nodes=1), train, [PreemptionPlugin()]))",
    "every parameter": """
f = dict(enable_ft_package=False, calc_ft_timeouts=False, num_in_job_restarts=1, num_job_retries_on_failure=4,
         initial_rank_heartbeat_timeout=600, rank_heartbeat_timeout=None,
         script_args_converter_fn=lambda args: [f"--ft={args}"], launcher_options={"--spares": "1"},
         program=["python", "-m", "rankwatch"])
p = dict(preempt_time=120, enable_exit_handler_for_data_loader=True,
         script_args_converter_fn=lambda args: [f"--exit={args}"])
found, plugins = [], [FaultTolerancePlugin(**f), PreemptionPlugin(**p)]
for order in (plugins, plugins[::-1]):
    executor, task = slurm(container_image="image.sqsh", setup_lines="echo mine"), run.Script("train.sh")
    for plugin in order:
        plugin.setup(task, executor)
    launcher = executor.get_launcher()
    words = launcher.transform(["bash", "train.sh"]).args
    found.append([executor.signal, executor.retries, executor.setup_lines, launcher.options, task.args, words])
answer(found)
""",
    "other launchers": """
torchrun = slurm(launcher=run.Torchrun(rdzv_port=1234, rdzv_id=5))
FaultTolerancePlugin().setup(train, torchrun)
kept = slurm(launcher=run.FaultTolerance())
PreemptionPlugin().setup(train, kept)
mine = slurm()
PreemptionPlugin(use_launcher=False).setup(train, mine)
answer([torchrun.launcher.transform(["python", "train.py"]).args, type(kept.launcher).__name__, kept.signal,
        type(mine.get_launcher()).__name__, mine.signal, mine.ntasks_per_node])
""",
    "mistakes": """
nsys = run.LocalExecutor()
nsys.get_launcher().nsys_profile = True
group = slurm()
group.run_as_group = True
two = run.LocalExecutor(nodes=2)
late = slurm()
FaultTolerancePlugin().setup(train, late)
late.launcher.nsys_profile = True
try:
    late.launcher.transform(["python", "train.py"])
except ValueError as error:
    told = str(error)
answer([
    refusal(FaultTolerancePlugin(num_in_job_restarts=-1)),
    refusal(FaultTolerancePlugin(num_job_retries_on_failure=1.5)),
    refusal(FaultTolerancePlugin(initial_rank_heartbeat_timeout=0)),
    refusal(FaultTolerancePlugin(rank_heartbeat_timeout="soon")),
    refusal(FaultTolerancePlugin(launcher_options={"monitor": "x"})),
    refusal(PreemptionPlugin(preempt_time=0)),
    refusal(FaultTolerancePlugin(), executor=slurm(launcher="slurm_ray")),
    refusal(FaultTolerancePlugin(), executor=nsys),
    refusal(PreemptionPlugin(), executor=group),
    refusal(PreemptionPlugin(), executor=two),
    told,
])
""",
    "recipe": """
import fiddle
from recipe import Log, Trainer, pretrain
from nemo_run.core.serialization.zlib_json import ZlibJSONSerializer
from rankwatch.integrations.lightning import FaultToleranceCallback, PreemptionCallback

def kept(task):  # NeMo-Run writes a recipe down before it runs
    return serializer.deserialize(serializer.serialize(task))

def recipe(trainer):
    return run.Partial(pretrain, trainer=trainer, log=run.Config(Log, log_dir="kept"), folder="x")

def names(task):
    return [callback.__fn_or_cls__.__name__ for callback in task.trainer.callbacks]

plugins = [FaultTolerancePlugin(calc_ft_timeouts=False), PreemptionPlugin()]
own = recipe(run.Config(Trainer, callbacks=[run.Config(PreemptionCallback), run.Config(Log)]))
none = recipe(run.Config(Trainer))
shared = recipe(run.Config(Trainer))
off = recipe(run.Config(Trainer, callbacks=[]))
for task in (own, none):
    for plugin in plugins:
        plugin.setup(task, run.LocalExecutor())
FaultTolerancePlugin(enable_ft_package=False).setup(off, run.LocalExecutor())
plugin = PreemptionPlugin(callbacks=[run.Config(PreemptionCallback, sig=10)])
plugin.setup(shared, run.LocalExecutor())
shared.trainer.callbacks[0].sig = 12
ft = none.trainer.callbacks[0]
serializer = ZlibJSONSerializer()
off.trainer.callbacks.append(straggler_det_callback(stop_if_detected_straggler=False))
slow = fiddle.build(kept(off)).keywords["trainer"].callbacks[-1]
answer([names(own), names(none), names(off), ft.autoresume, ft.calculate_timeouts, str(ft.exp_dir),
        plugin.callbacks[0].sig, kept(none) == none, slow.policy["on_straggler"], slow.policy["report_interval"]])
""",
    "parameters": """
import inspect
from dataclasses import fields
answer([
    [plugin.__name__, [field.name for field in fields(plugin) if field.init], inspect.getdoc(plugin)]
    for plugin in (FaultTolerancePlugin, PreemptionPlugin)
])
""",
    "page": NEMO
    + f"""
import contextlib, io

with contextlib.redirect_stdout(io.StringIO()) as said:
    exec({chr(10).join(BLOCKS)!r}, globals())
run.run = run.run.func
answer(said.getvalue())
""",
}
"""What the tests below ask of the real NeMo-Run, by name."""


Reported = Callable[[str], Any]


@pytest.fixture(scope="module")
def answers(nemo: Nemo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return nemo.answers(PROGRAMS, tmp_path_factory.mktemp("programs"))


@pytest.fixture
def reported(answers: dict[str, Any]) -> Reported:
    """What one of the programs answered."""

    def answer(name: str) -> Any:
        if isinstance(answers[name], AssertionError):
            raise answers[name]
        return answers[name]

    return answer


# What a Slurm script prints ------------------------------------------------------------------------------------------


def launch_line(script: str) -> str:
    (line,) = re.findall(r"^srun --output .*$", script, re.MULTILINE)
    return str(line)


def launcher_arguments(line: str) -> list[str]:
    """What ``rankwatch run`` gets, as the shell of the script would read it."""
    after = line.partition(" rankwatch run ")[2]
    reported = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {after}"],
        env={"head_node_ip": "10.0.0.1", "SLURM_JOB_ID": "77", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    return reported.stdout.split("\0")[:-1]


def test_the_slurm_script_starts_one_launcher_a_node_with_what_the_plugins_state(reported: Reported) -> None:
    script = reported("both plugins")
    assert "#SBATCH --ntasks-per-node=1\n" in script
    assert "#SBATCH --signal=B:TERM@60\n" in script
    assert "TORCHX_MAX_RETRIES=2" in script
    assert "exec rankwatch slurm batch --job-retries 2 --folder " in script
    assert script.index("srun() {") < script.index("srun --output")
    arguments = launcher_arguments(launch_line(script))
    args = build_parser().parse_args(arguments)
    assert (args.nnodes, args.nproc_per_node, args.max_restarts) == ("2", "8", 3)
    assert (args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id) == ("c10d", "10.0.0.1:29500", "77")
    given = vars(args)
    assert [given[name] for name in given if name.endswith("heartbeat_timeout")] == [1800.0, 300.0]
    assert "--calculate-timeouts" in arguments
    assert "--observe-only" not in arguments
    assert arguments[arguments.index("--stop-grace") + 1] == "50"
    assert args.training_script_args == [
        "--name",
        "two words",
        "ft.enable_ft_package=true",
        "ft.calc_ft_timeouts=true",
        "train.exit_signal_handler=True",
        "train.exit_signal_handler_for_dataloader=False",
    ]
    (flag,) = re.findall(r"FAULT_TOL_FINISHED_FLAG_FILE=(\S+)", script)
    assert arguments[arguments.index("--finished-flag") + 1] == flag, "both look at the same file"
    (folder,) = re.findall(r"--folder (\S+)", script)
    assert arguments[arguments.index("--outcome") + 1] == f"{folder}/outcome-{{node}}.json"
    assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0


def test_every_parameter_counts_whichever_plugin_comes_first(reported: Reported) -> None:
    for sent, retries, lines, options, arguments, words in reported("every parameter"):
        assert (sent, retries) == ("B:TERM@120", 4)
        assert lines.startswith("echo mine\n")
        assert "exec python -m rankwatch slurm batch --job-retries 4" in lines
        assert lines.count("srun() {") == 1
        expected = {"--max-restarts": "1", "--initial-heartbeat-timeout": "600", "--heartbeat-timeout": "none"}
        expected |= {"--no-learn-timeouts": True, "--no-detection": True, "--stop-grace": "110", "--spares": "1"}
        assert {name: options[name] for name in expected} == expected
        assert "--calculate-timeouts" not in options
        assert "--observe-only" not in options
        assert sorted(arguments) == [
            "--exit=PreemptionPluginScriptArgs(enable_exit_handler=True, enable_exit_handler_for_data_loader=True)",
            "--ft=FaultTolerancePluginScriptArgs(enable_ft_package=False, calc_ft_timeouts=False)",
        ]
        assert words[-3:] == ["--no-python", "bash", "train.sh"]


def test_preemption_alone_signals_the_steps_restarts_nothing_and_leaves_retries_to_the_template(
    reported: Reported,
) -> None:
    script = reported("preemption alone")
    assert "#SBATCH --signal=TERM@60\n" in script
    assert "slurm batch" not in script
    arguments = launcher_arguments(launch_line(script))
    assert "--standalone" in arguments
    assert "--observe-only" in arguments
    assert arguments[arguments.index("--max-restarts") + 1] == "0"


def test_what_torchrun_was_given_is_kept_and_other_launchers_are_not_replaced_silently(reported: Reported) -> None:
    words, *others = reported("other launchers")
    assert " ".join(words).count("$$${head_node_ip_var}:1234 --rdzv-id 5") == 1
    assert others == ["FaultTolerance", "TERM@60", "Launcher", "TERM@60", 8]


def test_every_mistake_is_reported_in_a_sentence(reported: Reported) -> None:
    sentences = reported("mistakes")
    parts = [
        "num_in_job_restarts must be a whole number of at least 0, not -1",
        "num_job_retries_on_failure must be a whole number",
        "initial_rank_heartbeat_timeout must be a number of seconds",
        "rank_heartbeat_timeout must be a number of seconds",
        "flags of 'rankwatch run', such as --monitor; 'monitor' is not",
        "preempt_time must be a whole number of at least 1",
        "which SlurmRay does not support",
        "remove NsysPlugin",
        "add each task on its own",
        "set MASTER_ADDR and MASTER_PORT",
        "remove NsysPlugin",
    ]
    assert [part for part, sentence in zip(parts, sentences, strict=True) if part not in (sentence or "")] == []


# Recipes -------------------------------------------------------------------------------------------------------------


def test_a_recipe_gets_our_callbacks_beside_its_own(reported: Reported) -> None:
    assert reported("recipe") == [
        ["PreemptionCallback", "Log", "FaultToleranceCallback"],
        ["FaultToleranceCallback", "PreemptionCallback"],
        ["StragglerDetectionCallback"],
        True,
        False,
        "kept",
        10,
        True,
        "log",
        300.0,
    ]


def test_a_recipe_on_this_machine_runs_on_ranks_that_rankwatch_started(nemo: Nemo, tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE)
    program = f"""
sys.path.insert(0, {str(tmp_path)!r})
from recipe import Log, Trainer, pretrain
task = run.Partial(pretrain, trainer=run.Config(Trainer), log=run.Config(Log), folder={str(tmp_path)!r})
executor = run.LocalExecutor(ntasks_per_node=2, env_vars={{"PYTHONPATH": {str(tmp_path)!r}, "OMP_NUM_THREADS": "1"}})
plugins = [FaultTolerancePlugin(), PreemptionPlugin()]
run.run(task, executor=executor, plugins=plugins, name="pretrain", tail_logs=True)
"""
    printed = nemo.run(PRELUDE + program, tmp_path)
    for rank in range(2):
        file = tmp_path / f"rank-{rank}-of-2"
        assert file.exists(), printed[-4000:]
        assert file.read_text() == "FaultToleranceCallback PreemptionCallback; attempt 1"


# The page ------------------------------------------------------------------------------------------------------------


def test_every_block_of_the_page_runs(reported: Reported) -> None:
    assert len(BLOCKS) == 5
    assert reported("page").count("rankwatch") >= len(BLOCKS)


def test_the_reference_has_every_parameter(reported: Reported) -> None:
    """The manual's Python API is made of signatures and docstrings."""
    page = (PAGE.parent / "python-api.md").read_text()
    for plugin, parameters, documented in reported("parameters"):
        assert (
            re.findall(r"^    (\w+): ", documented.partition("Args:\n")[2], re.MULTILINE)[: len(parameters)]
            == parameters
        )
        assert f"::: rankwatch.integrations.nemo_run.plugins.{plugin}\n" in page
