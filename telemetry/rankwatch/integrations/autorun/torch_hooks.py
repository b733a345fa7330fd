"""Where torch is hooked, for a script without a line of Rankwatch: see ``training_loop``.

How this works
--------------
==================  ================================================================================================
optimizers          torch's global step hooks
backward            ``torch.autograd.backward``, which ``Tensor.backward`` calls, in a wrapper
batches             ``next()`` of a data loader's iterator, in a wrapper
saves               ``torch.save``, ``torch.distributed.checkpoint.save``, ``safetensors.torch.save_file``, in wrappers
forward             one global module hook, which is there only while no module runs: the outermost one meets it, and
                    takes it away until it returns. So no inner module is slowed down, and no compiled one sees it
==================  ================================================================================================

Only the main thread is listened to. While torch.compile traces, the wrappers are the functions that they wrap.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

from rankwatch.integrations.autorun.attach import failed
from rankwatch.integrations.autorun.training_loop import TrainingLoop

SAVES: Final = (
    ("torch", "save"),
    ("torch.serialization", "save"),
    ("torch.distributed.checkpoint", "save"),
    ("torch.distributed.checkpoint.state_dict_saver", "save"),
    ("safetensors.torch", "save_file"),
)
"""Functions that write a checkpoint, under each name they are called by."""
COMPILE_WARNING: Final = r"Using `torch\.compile\(module\)` when there are global hooks"
"""torch warns that a global hook meets a compiled module once more; ours is gone by then."""

_MARK: Final = "__rankwatch_plain__"
_get_ident = threading.get_ident
_hooks: _Hooks | None = None


def install(torch: Any, loop: TrainingLoop) -> None:
    """Listen to torch, which has been imported, from now on."""
    global _hooks
    if _hooks is None:
        _hooks = hooks = _Hooks(torch, loop)
        parts = hooks.listen_to_optimizers, hooks.listen_to_backward, hooks.listen_to_loaders, hooks.listen_to_modules
        for part in parts:
            try:
                part()
            except Exception:  # noqa: BLE001 - a torch that has changed is watched by what is left
                failed()
        os.register_at_fork(after_in_child=hooks.disarm)
        watch_saves()


def watch_saves() -> None:
    """Put the wrappers around what saves, in those modules that have been imported by now."""
    for name, function in SAVES:
        plain = getattr(sys.modules.get(name), function, None)
        if plain is not None and _hooks is not None and not hasattr(plain, _MARK):
            setattr(sys.modules[name], function, _hooks.saving(plain))


class _Hooks:
    """What is installed in torch, each a short way to the loop and never an exception."""

    def __init__(self, torch: Any, loop: TrainingLoop) -> None:
        self._torch, self._loop = torch, loop
        self._thread = threading.main_thread().ident
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._gradients: Callable[[], bool] = torch.is_grad_enabled
        self._armed: dict[int, Any] = {}
        self._key = 0
        """Where torch keeps its global hooks, and ours among them."""
        self._forward_handle: Any = None
        self._outermost = 0
        """The module that runs, by its id."""
        self._scripted: Any = getattr(torch.jit, "ScriptModule", ())
        self._looked_back = False
        self._live: dict[int, weakref.ref[Any]] = {}
        """Optimizers by their ids."""
        self._saves: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._forward_hook = self._make_forward_hook()
        self._forward_end_hook = self._make_forward_end_hook()
        warnings.filterwarnings("ignore", message=COMPILE_WARNING, category=UserWarning)

    # Forward ----------------------------------------------------------------------------------------------------------

    def listen_to_modules(self) -> None:
        """Register the global hook; it is armed from then on."""
        handle = self._torch.nn.modules.module.register_module_forward_pre_hook(self._forward_hook)
        self._armed, self._key = handle.hooks_dict_ref(), handle.id

    def arm(self) -> None:
        """From now on the next module that is called is an outermost one."""
        # Under the same key always: what torch.compile has traced is valid only while it finds the same hooks.
        self._armed[self._key] = self._forward_hook

    def disarm(self) -> bool:
        """From now on modules are called by something that is seen itself; return whether that is new."""
        return self._armed.pop(self._key, None) is not None

    def _make_forward_hook(self) -> Callable[[Any, Any], None]:
        is_compiling, thread, scripted = self._is_compiling, self._thread, self._scripted

        def rankwatch_forward(module: Any, inputs: Any) -> None:  # noqa: ARG001
            if is_compiling() or _get_ident() != thread or isinstance(module, scripted):
                return
            self._forward_begins(module)

        return rankwatch_forward

    def _forward_begins(self, module: Any) -> None:
        try:
            self._end_forward()  # one that a KeyboardInterrupt ended, say, of which torch tells nobody
            self.disarm()
            # A model in eval mode, or a loss by itself, may run with gradients though nobody trains now.
            training = self._gradients() and module.training and bool(module._parameters or module._modules)
            if training:
                self._find_first_step()
            # No method: a module that is copied while it runs takes the hook with it, and must not take us.
            self._forward_handle = module.register_forward_hook(self._forward_end_hook, always_call=True)
            self._outermost = id(module)
            self._loop.forward_begins(self._outermost, training=training)
        except Exception:  # noqa: BLE001 - the boundary to training code
            failed()

    def _make_forward_end_hook(self) -> Callable[[Any, Any, Any], None]:
        def rankwatch_forward_end(module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
            if id(module) != self._outermost:
                return
            try:
                self._end_forward()
            except Exception:  # noqa: BLE001 - the boundary to training code
                failed()

        return rankwatch_forward_end

    def _end_forward(self) -> None:
        handle, self._forward_handle = self._forward_handle, None
        if handle is not None:
            handle.remove()
            self._loop.forward_ended(self._outermost)
            self.arm()

    # Backward, batches, saves -----------------------------------------------------------------------------------------

    def listen_to_backward(self) -> None:
        """Put the wrapper where ``Tensor.backward`` looks for the function."""
        autograd = self._torch.autograd
        plain, is_compiling, thread = autograd.backward, self._is_compiling, self._thread

        @functools.wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or _get_ident() != thread:
                return plain(*args, **kwargs)
            self._find_first_step()
            armed = self.disarm()  # what is computed again for its gradients is no forward
            self._tell(self._loop.backward_begins)
            done = False
            try:
                result = plain(*args, **kwargs)
                done = True
                return result
            finally:
                self._tell(self._loop.backward_ended, failed=not done)
                if armed:
                    self.arm()

        autograd.backward = backward

    def listen_to_loaders(self) -> None:
        """Time what every iterator of a data loader takes to give the next batch."""
        iterators = self._torch.utils.data.dataloader._BaseDataLoaderIter
        plain, thread = iterators.__next__, self._thread

        @functools.wraps(plain)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            if _get_ident() != thread:
                return plain(iterator)
            key = id(getattr(iterator, "_dataset", iterator))
            self.disarm()  # what prepares a batch may be made of modules
            self._tell(self._loop.fetch_begins, key)
            done = False
            try:
                batch = plain(iterator)
                done = True
                return batch
            finally:
                self._tell(self._loop.fetch_ended, exhausted=not done)
                self.arm()

        iterators.__next__ = __next__

    def saving(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The function in its wrapper; the same wrapper for the same function."""
        if plain in self._saves:
            return self._saves[plain]
        thread = self._thread

        @functools.wraps(plain)
        def save(*args: Any, **kwargs: Any) -> Any:
            if _get_ident() != thread:
                return plain(*args, **kwargs)
            self._tell(self._end_forward)  # a module is not to be saved with our hook
            self._tell(self._loop.save_begins)
            done = False
            try:
                result = plain(*args, **kwargs)
                done = True
                return result
            finally:
                self._tell(self._loop.save_ended, failed=not done)

        setattr(save, _MARK, plain)
        self._saves[plain] = save
        return save

    @staticmethod
    def _tell(event: Callable[..., None], *given: Any, **named: Any) -> None:
        try:
            event(*given, **named)
        except Exception:  # noqa: BLE001 - the boundary to training code
            failed()

    # Optimizers -------------------------------------------------------------------------------------------------------

    def listen_to_optimizers(self) -> None:
        """Hear of every optimizer that is made, and of each of its steps."""
        optimizer: Any = sys.modules["torch.optim.optimizer"]  # torch.optim hides it
        optimizer.register_optimizer_step_pre_hook(self._step_begins)
        optimizer.register_optimizer_step_post_hook(self._step_ended)
        plain = optimizer.Optimizer.__init__

        @functools.wraps(plain)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            plain(made, *args, **kwargs)
            try:
                self._know(made)
            except Exception:  # noqa: BLE001 - the boundary to training code
                failed()

        optimizer.Optimizer.__init__ = __init__

    def _know(self, optimizer: Any) -> None:
        key = id(optimizer)
        if key in self._live:
            return
        loop, live = self._loop, self._live

        def gone(reference: Any) -> None:
            if live.get(key) is reference:
                del live[key]
                loop.optimizers.gone(key)

        live[key] = weakref.ref(optimizer, gone)
        loop.optimizers.built(key)

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._is_compiling() or _get_ident() != self._thread:
            return
        try:
            self._know(optimizer)
            self._find_first_step()
            self._loop.optimizer_begins(id(optimizer))
        except Exception:  # noqa: BLE001 - the boundary to training code
            failed()

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._is_compiling() or _get_ident() != self._thread:
            return
        try:
            self._loop.optimizer_ended(id(optimizer))
        except Exception:  # noqa: BLE001 - the boundary to training code
            failed()

    def _find_first_step(self) -> None:
        """The step that the script goes on with, as its optimizers remember it from the checkpoint they have loaded."""
        if self._looked_back or not self._live:
            return
        self._looked_back = True
        try:
            steps = [_steps_of(found) for reference in self._live.values() if (found := reference()) is not None]
            # An iteration is complete when each has stepped, so the one that steps least often has counted them.
            self._loop.first_step = min(filter(None, steps), default=None)
        except Exception:  # noqa: BLE001 - an optimizer may keep there what it likes
            failed()


def _steps_of(optimizer: Any) -> int:
    """How often it has stepped, as far as it knows without asking a device; parameters may have sat out some steps."""
    found = 0
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        if step is not None and getattr(getattr(step, "device", None), "type", "cpu") == "cpu":
            found = max(found, int(step))
    return found
