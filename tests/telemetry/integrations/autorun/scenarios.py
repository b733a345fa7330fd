"""Small training loops of many kinds, one after the other in one watched process; what was seen of each goes to stdout.

Started with the launcher's hook in PYTHONPATH; of all that is in here only :func:`seen_in` knows of Rankwatch.
"""

# ruff: noqa: T201

from __future__ import annotations

import sys

AT_LINE_ONE = {"torch": "torch" in sys.modules, "path": list(sys.path), "sitecustomize": "sitecustomize" in sys.modules}

import copy  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import warnings  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

STEPS = 6


class Net(nn.Module):
    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(inputs))


def batch() -> torch.Tensor:
    return torch.randn(2, 4)


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([parameter for model in models for parameter in model.parameters()])


def plain() -> None:
    model = Net()
    optimizer = adam(model)
    for inputs in DataLoader(torch.randn(STEPS, 4)):
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()


def in_workers() -> None:
    model = Net()
    optimizer = adam(model)
    for inputs in DataLoader(torch.randn(STEPS, 4), num_workers=1, multiprocessing_context="fork"):
        model(inputs).mean().backward()
        optimizer.step()


def adversarial() -> None:
    generator, critic = Net(), Net(1)
    of_generator, of_critic = adam(generator), adam(critic)
    for _ in range(STEPS):
        for _ in range(2):
            critic(generator(batch()).detach()).mean().backward()
            of_critic.step()
        critic(generator(batch())).mean().backward()
        of_generator.step()


def accumulated() -> None:
    model = Net()
    optimizer = adam(model)
    for _ in range(STEPS):
        for _ in range(3):
            model(batch()).mean().backward()
        optimizer.step()


def closure() -> None:
    model, inputs = Net(), torch.ones(2, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def loss() -> torch.Tensor:
        value = model(inputs).square().mean()
        value.backward()
        return value

    for _ in range(STEPS):
        optimizer.step(loss)


def raising() -> None:
    model = Net()
    optimizer = adam(model)
    for width in (5, 4) * STEPS:
        try:
            loss = model(torch.randn(2, width)).mean()
        except RuntimeError:  # as one does that runs out of memory
            continue
        loss.backward()
        optimizer.step()


def computed_again() -> None:
    model = nn.Sequential(Net(), Net())
    optimizer = adam(model)
    for _ in range(STEPS):
        checkpoint(model, batch(), use_reentrant=False).mean().backward()
        optimizer.step()


def evaluated() -> None:
    plain()
    model = Net()
    with torch.no_grad():
        for inputs in DataLoader(torch.randn(3, 4)):
            model(inputs)


def evaluated_with_gradients() -> None:
    """As in a script that forgot ``no_grad``, and does other things afterwards."""
    plain()
    model = Net().eval()
    nn.MSELoss()(model(batch()), torch.ones(2, 4))


def of_no_optimizer() -> None:
    model = Net()
    for inputs in DataLoader(torch.randn(STEPS, 4)):
        model(inputs).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad


class Interrupted(Net):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.shape[0] == 1:
            raise KeyboardInterrupt
        return super().forward(inputs)


def interrupted() -> None:
    """What is saved and copied then is the model alone; what comes next is seen as ever."""
    model = Interrupted()
    optimizer = adam(model)
    try:
        model(torch.randn(1, 4))
    except KeyboardInterrupt:
        copy.deepcopy(model)
        held = io.BytesIO()
        torch.save(model, held)
        assert b"rankwatch" not in held.getvalue()
    for _ in range(STEPS):
        model(batch()).mean().backward()
        optimizer.step()


def scripted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch would rather export it
        model = torch.jit.script(Net())
    optimizer = adam(model)
    for _ in range(STEPS):
        model(batch()).mean().backward()
        optimizer.step()


def compiled() -> None:
    model = Net()
    optimizer = adam(model)
    fast = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(STEPS):
        fast(batch()).mean().backward()
        optimizer.step()


def compiled_in_place() -> None:
    model = Net()
    optimizer = adam(model)
    model.compile(backend="eager", fullgraph=True)
    for _ in range(2 * STEPS):  # more than torch.compile would try again, had it to
        model(batch()).mean().backward()
        optimizer.step()


def compiled_around() -> None:
    model = Net()
    optimizer = adam(model)

    @torch.compile(backend="eager", fullgraph=True)
    def loss(inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs).mean()

    for _ in range(2 * STEPS):
        loss(batch()).backward()
        optimizer.step()


def saved() -> None:
    model = Net()
    model(batch())
    held = io.BytesIO()
    torch.save(model, held)
    assert b"rankwatch" not in held.getvalue(), "the process that loads it may not have us"
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save


def resumed() -> None:
    model = Net()
    optimizer = adam(model)
    model(batch()).mean().backward()
    optimizer.step()
    kept = optimizer.state_dict()
    for state in kept["state"].values():
        state["step"] = torch.tensor(500.0)
    start_again()  # a process that goes on from this checkpoint
    optimizer = adam(model)
    optimizer.load_state_dict(kept)
    model(batch()).mean().backward()
    optimizer.step()


def resumed_adversarial() -> None:
    """The critic has stepped five times as often as there were iterations."""
    generator, critic = Net(), Net(1)
    kept = []
    for model, steps in ((generator, 100), (critic, 500)):
        optimizer = adam(model)
        model(batch()).mean().backward()
        optimizer.step()
        state = optimizer.state_dict()
        for each in state["state"].values():
            each["step"] = torch.tensor(float(steps))
        kept.append(state)
    start_again()
    of_generator, of_critic = adam(generator), adam(critic)
    of_generator.load_state_dict(kept[0])
    of_critic.load_state_dict(kept[1])
    for _ in range(5):
        critic(generator(batch()).detach()).mean().backward()
        of_critic.step()
    critic(generator(batch())).mean().backward()
    of_generator.step()


def its_steps() -> None:
    import rankwatch

    model = Net()
    optimizer = adam(model)
    for index in range(40, 40 + STEPS):
        with rankwatch.step(index), rankwatch.section("forward"):
            loss = model(batch()).mean()
        loss.backward()
        optimizer.step()


def start_again() -> None:
    """What this process would be if it began now."""
    from rankwatch.integrations.autorun import torch_hooks
    from rankwatch.integrations.autorun.training_loop import Optimizers

    hooks: Any = torch_hooks._hooks
    loop = hooks._loop
    loop._leave_step(completed=False)
    vars(loop).pop("_begin", None)
    loop.optimizers, loop.first_step, loop._forwards, loop._forward_unseen = Optimizers(), None, 0, False
    loop._open.clear()
    loop._training_loaders.clear()
    hooks._live.clear()
    hooks._first_step_known = False


def seen_in(scenario: Callable[[], None]) -> dict[str, Any]:
    from rankwatch.recording import sections, shared_slots

    start_again()
    recorder: Any = sections._recorder
    recorder.finished.clear()
    recorder.iteration = 0
    recorder.words[shared_slots.ITERATION] = 0
    scenario()
    counts = Counter(recorder.slots.name(number) for number, *_ in recorder.finished)
    words, entries = recorder.words, range(shared_slots.OPEN, shared_slots.OPEN + 2 * shared_slots.OPEN_COUNT, 2)
    return {
        "sections": dict(counts),
        "iteration": words[shared_slots.ITERATION],
        "open": [recorder.slots.name(words[place]) for place in entries if words[place]],
        "failed": recorder.dropped.get("auto", 0),
    }


def broken() -> None:
    """Ours fails at every event; the script does not notice."""
    from rankwatch.integrations.autorun import torch_hooks

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    hooks: Any = torch_hooks._hooks
    hooks._loop._begin = fail
    plain()
    saved()
    start_again()


SCENARIOS = (
    *(plain, in_workers, adversarial, accumulated, closure, raising, computed_again, evaluated, saved, resumed),
    *(evaluated_with_gradients, of_no_optimizer, interrupted, scripted, resumed_adversarial),
    *(compiled, compiled_in_place, compiled_around, its_steps, broken),
)

if __name__ == "__main__":
    reported = {scenario.__name__: seen_in(scenario) for scenario in SCENARIOS}
    environment = {name: value for name, value in os.environ.items() if name.startswith(("PYTHONPATH", "RANKWATCH"))}
    print(json.dumps({"scenarios": reported, "began": AT_LINE_ONE, "environment": environment}))
